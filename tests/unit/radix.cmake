# SPDX-License-Identifier: Apache-2.0
sc_test(NAME test_radix LABELS unit LAYERS base radix
    SOURCES test_radix.c test_radix_insert.c test_radix_evict.c test_radix_args.c test_radix_marks.c
        test_radix_tails.c test_radix_fuzz.c test_radix_shape.c test_radix_storage.c)
# To plant faults that sc_radix_verify must find.
target_include_directories(test_radix PRIVATE ${PROJECT_SOURCE_DIR}/radix)
