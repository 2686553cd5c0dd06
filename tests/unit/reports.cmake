# SPDX-License-Identifier: Apache-2.0
# One test for each field report that docs/field-reports.md lists.
sc_test(NAME test_reports_kernels LABELS unit LAYERS base kernels SOURCES test_reports_kernels.c)
sc_test(NAME test_reports_numbers LABELS unit LAYERS base kernels SOURCES test_reports_numbers.c)
sc_test(NAME test_reports_windows LABELS unit LAYERS base kernels SOURCES test_reports_windows.c)
sc_test(NAME test_reports_slots LABELS unit LAYERS base kernels pool snapshot
    SOURCES test_reports_slots.c)
sc_test(NAME test_reports_tree LABELS unit LAYERS base radix SOURCES test_reports_tree.c)
# To see that some hashes are equal.
target_include_directories(test_reports_tree PRIVATE ${PROJECT_SOURCE_DIR}/radix)
foreach(name hits flight room)
    sc_test(NAME test_reports_${name} LABELS unit LAYERS ALL SOURCES test_reports_${name}.c)
endforeach()
foreach(name tiers disk)
    sc_test(NAME test_reports_${name} LABELS unit
        LAYERS base kernels pool snapshot radix policy engine tier SOURCES test_reports_${name}.c)
endforeach()
