# SPDX-License-Identifier: Apache-2.0
# sc_layer(NAME radix SEES base SOURCES a.c b.c)
#   One object library sc_<NAME> that exposes <dir>/include and sees only the layers named in SEES
#   (and what those expose), so that an include which points up or sideways does not compile.
#   tests/tidy proves that for the layers which must not see each other.
function(sc_layer)
    cmake_parse_arguments(L "" "NAME" "SEES;SOURCES" ${ARGN})
    if(L_UNPARSED_ARGUMENTS OR NOT L_NAME OR NOT L_SOURCES)
        message(FATAL_ERROR "sc_layer(${L_NAME}): NAME and SOURCES are needed, "
            "'${L_UNPARSED_ARGUMENTS}' is not known")
    endif()
    add_library(sc_${L_NAME} OBJECT ${L_SOURCES})
    target_include_directories(sc_${L_NAME} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/include)
    target_link_libraries(sc_${L_NAME} PUBLIC sc_public Threads::Threads PRIVATE sc_flags)
    foreach(dep IN LISTS L_SEES)
        if(NOT TARGET sc_${dep})
            message(FATAL_ERROR "layer ${L_NAME} sees ${dep}, which is not below it")
        endif()
        target_link_libraries(sc_${L_NAME} PUBLIC sc_${dep})
    endforeach()
endfunction()

# sc_test(NAME test_radix LABELS unit LAYERS base radix SOURCES test_radix.c [TIMEOUT 120] [LIBS m])
#   A Check program from the objects of the named layers alone (ALL: every layer but the tier).
function(sc_test)
    cmake_parse_arguments(T "" "NAME;TIMEOUT" "LABELS;LAYERS;SOURCES;LIBS" ${ARGN})
    if(T_UNPARSED_ARGUMENTS OR NOT T_NAME OR NOT T_LABELS OR NOT T_SOURCES)
        message(FATAL_ERROR "sc_test(${T_NAME}): NAME, LABELS and SOURCES are needed, "
            "'${T_UNPARSED_ARGUMENTS}' is not known")
    endif()
    add_executable(${T_NAME} ${T_SOURCES})
    list(TRANSFORM T_LAYERS REPLACE "^ALL$" "base;kernels;pool;snapshot;radix;policy;engine")
    foreach(layer IN LISTS T_LAYERS)
        target_link_libraries(${T_NAME} PRIVATE sc_${layer})
    endforeach()
    target_include_directories(${T_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(${T_NAME} PRIVATE sc_flags PkgConfig::CHECK m ${T_LIBS} sc_program)
    add_test(NAME ${T_NAME} COMMAND ${T_NAME})
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 300)
    endif()
    if(NOT SC_SANITIZE STREQUAL "")
        math(EXPR T_TIMEOUT "${T_TIMEOUT} * 4")
    endif()
    set_tests_properties(${T_NAME} PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT}
        SKIP_RETURN_CODE 77)
endfunction()
