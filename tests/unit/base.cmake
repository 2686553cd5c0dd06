# SPDX-License-Identifier: Apache-2.0
sc_test(NAME test_base LABELS unit LAYERS base SOURCES test_base.c)
sc_test(NAME test_base_heap LABELS unit LAYERS base SOURCES test_base_heap.c)
if(SC_WITH_JEMALLOC AND SC_SANITIZE STREQUAL "")
    target_compile_definitions(test_base_heap PRIVATE EXPECT_ARENA=1)
endif()

# The same without jemalloc in the process: what somebody who dlopens the library gets.
add_executable(test_base_heap_plain test_base_heap.c)
target_link_libraries(test_base_heap_plain PRIVATE sc_base sc_flags PkgConfig::CHECK m)
target_include_directories(test_base_heap_plain PRIVATE ${PROJECT_SOURCE_DIR}/tests)
add_test(NAME test_base_heap_plain COMMAND test_base_heap_plain)
set_tests_properties(test_base_heap_plain PROPERTIES LABELS unit TIMEOUT 300)
