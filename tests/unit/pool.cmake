# SPDX-License-Identifier: Apache-2.0
sc_test(NAME test_pool LABELS unit LAYERS base kernels pool
    SOURCES test_pool.c test_pool_memory.c test_pool_util.c)
# The audit's tests break a pool from inside.
target_include_directories(test_pool PRIVATE ${PROJECT_SOURCE_DIR}/pool)
