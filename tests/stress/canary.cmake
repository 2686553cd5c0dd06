# SPDX-License-Identifier: Apache-2.0
# One wrong bit in a state, planted by --canary, must be found, and the short script must find it;
# the last script is one with tiers.
foreach(modes "--virtual" "--threads 2" "--virtual --tiers")
    separate_arguments(mode UNIX_COMMAND ${modes})
    execute_process(COMMAND ${STRESS} --canary --threads 2 --worlds 3 --out ${SCRIPT} ${mode}
        RESULT_VARIABLE rc OUTPUT_VARIABLE out ERROR_VARIABLE err)
    if(NOT rc EQUAL 1 OR NOT err MATCHES "is not|does not hold" OR NOT EXISTS ${SCRIPT})
        message(FATAL_ERROR "not found (${rc}):\n${out}${err}")
    endif()
endforeach()
execute_process(COMMAND ${STRESS} --canary --script ${SCRIPT}
    RESULT_VARIABLE rc OUTPUT_VARIABLE out ERROR_VARIABLE err)
if(NOT rc EQUAL 1)
    message(FATAL_ERROR "the script does not fail (${rc}):\n${out}${err}")
endif()
execute_process(COMMAND ${STRESS} --script ${SCRIPT}
    RESULT_VARIABLE rc OUTPUT_VARIABLE out ERROR_VARIABLE err)
if(NOT rc EQUAL 0)
    message(FATAL_ERROR "without the wrong bit the script fails, too (${rc}):\n${out}${err}")
endif()
file(STRINGS ${SCRIPT} lines REGEX "^set tier_(host|disk) [1-9]")
if(lines STREQUAL "")
    message(FATAL_ERROR "the script has no tiers")
endif()
file(STRINGS ${SCRIPT} lines REGEX "^op ")
list(LENGTH lines count)
if(count GREATER 20)
    message(FATAL_ERROR "the script has ${count} operations")
endif()
message(STATUS "found, shrunk to ${count} operations, found again")
