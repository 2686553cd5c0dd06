# SPDX-License-Identifier: Apache-2.0
foreach(name store keys room faults crash threads pack host tree)
    sc_test(NAME test_tier_${name} LABELS unit LAYERS base kernels pool snapshot tier
        SOURCES test_tier_${name}.c)
endforeach()

sc_test(NAME test_tier_golden LABELS unit LAYERS base kernels pool snapshot tier
    SOURCES test_tier_golden.c)
target_compile_definitions(test_tier_golden PRIVATE SC_GOLDEN="${PROJECT_SOURCE_DIR}/tests/golden")

# The recorder stands in for functions of libc and liburing (tier_power.h).
sc_test(NAME test_tier_power LABELS unit LAYERS base kernels pool snapshot tier
    SOURCES test_tier_power.c tier_power.c LIBS ${CMAKE_DL_LIBS})
set_source_files_properties(tier_power.c PROPERTIES COMPILE_OPTIONS -fvisibility=default)
