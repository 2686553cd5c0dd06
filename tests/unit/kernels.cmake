# SPDX-License-Identifier: Apache-2.0
foreach(name backend delta delta_bits conv small step args)
    if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/test_kernels_${name}.c)
        sc_test(NAME test_kernels_${name} LABELS unit LAYERS base kernels
            SOURCES test_kernels_${name}.c)
        target_compile_definitions(test_kernels_${name} PRIVATE
            SC_FIXTURE_DIR="${PROJECT_SOURCE_DIR}/tests/oracle/fixtures")
    endif()
endforeach()
if(TARGET test_kernels_small)
    # ref_math.h is private to the layer
    target_include_directories(test_kernels_small PRIVATE ${PROJECT_SOURCE_DIR}/kernels)
endif()
