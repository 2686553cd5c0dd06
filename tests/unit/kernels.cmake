# SPDX-License-Identifier: Apache-2.0
foreach(name backend delta delta_bits decode conv small step rows draft ssm project move linear
        stage choice args replay replay_args ranks sweep sweep_parts
        sweep_layers sweep_bits linear_ssm)
    if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/test_kernels_${name}.c)
        sc_test(NAME test_kernels_${name} LABELS unit LAYERS base kernels
            SOURCES test_kernels_${name}.c)
        target_compile_definitions(test_kernels_${name} PRIVATE
            SC_FIXTURE_DIR="${PROJECT_SOURCE_DIR}/tests/oracle/fixtures")
    endif()
endforeach()
foreach(name small rows choice) # ref_math.h and the table are private to the layer
    if(TARGET test_kernels_${name})
        target_include_directories(test_kernels_${name} PRIVATE ${PROJECT_SOURCE_DIR}/kernels)
    endif()
endforeach()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    sc_test(NAME test_kernels_turns LABELS unit LAYERS base kernels
        SOURCES test_kernels_turns.c kernels_turns_wide.c)
    target_include_directories(test_kernels_turns PRIVATE ${PROJECT_SOURCE_DIR}/kernels)
    get_property(row_options GLOBAL PROPERTY SC_AVX512_BF16_OPTIONS)
    set_source_files_properties(kernels_turns_wide.c PROPERTIES COMPILE_OPTIONS "${row_options}")
    sc_test(NAME test_kernels_lanes LABELS unit LAYERS base kernels
        SOURCES test_kernels_lanes.c kernels_lanes_avx2.c kernels_lanes_avx512.c)
    target_include_directories(test_kernels_lanes PRIVATE ${PROJECT_SOURCE_DIR}/kernels)
    foreach(row avx2 avx512)
        string(TOUPPER ${row} name)
        get_property(row_options GLOBAL PROPERTY SC_${name}_OPTIONS)
        set_source_files_properties(kernels_lanes_${row}.c PROPERTIES
            COMPILE_OPTIONS "${row_options}")
    endforeach()
endif()
# The rows that are not this processor's first choice: the same tests once more.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    set(rows reference avx2 avx512)
endif()
foreach(row IN LISTS rows)
    foreach(name delta delta_bits decode conv draft ssm project move linear stage replay sweep
            sweep_parts sweep_layers)
        add_test(NAME test_kernels_${name}_${row} COMMAND test_kernels_${name})
        set_tests_properties(test_kernels_${name}_${row} PROPERTIES LABELS unit TIMEOUT 1200
            ENVIRONMENT SC_KERNELS=${row})
    endforeach()
endforeach()
