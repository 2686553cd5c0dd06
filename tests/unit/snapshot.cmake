# SPDX-License-Identifier: Apache-2.0
foreach(name registry)
    sc_test(NAME test_snapshot_${name} LABELS unit LAYERS base kernels pool snapshot
        SOURCES test_snapshot_${name}.c)
endforeach()
