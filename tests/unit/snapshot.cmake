# SPDX-License-Identifier: Apache-2.0
foreach(name copy gather registry codec side)
    sc_test(NAME test_snapshot_${name} LABELS unit LAYERS base kernels pool snapshot
        SOURCES test_snapshot_${name}.c)
endforeach()
