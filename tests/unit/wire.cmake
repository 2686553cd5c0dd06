# SPDX-License-Identifier: Apache-2.0
if(SC_BUILD_SERVICE)
    sc_test(NAME test_wire LABELS unit LAYERS wire SOURCES test_wire.c)
endif()
