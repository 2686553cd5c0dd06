# SPDX-License-Identifier: Apache-2.0
sc_test(NAME test_schema LABELS unit LAYERS base kernels pool SOURCES test_schema.c)
