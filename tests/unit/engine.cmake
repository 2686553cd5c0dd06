# SPDX-License-Identifier: Apache-2.0
foreach(name test_engine test_engine_leases test_engine_cache test_engine_contracts
        test_engine_scenarios test_engine_args
        test_engine_random test_engine_threads test_engine_flight test_engine_tails
        test_engine_begin test_engine_steady test_engine_replay test_engine_fills
        test_engine_policy test_engine_kernels)
    sc_test(NAME ${name} LABELS unit LAYERS ALL SOURCES ${name}.c)
endforeach()

# With tiers below.
foreach(name test_engine_tiers test_engine_tiers_args test_engine_tiers_beside
        test_engine_tiers_figures test_engine_tiers_kept test_engine_tiers_random
        test_engine_ring test_engine_events test_engine_remote
        test_engine_inspect)
    sc_test(NAME ${name} LABELS unit LAYERS base kernels pool snapshot radix policy engine tier
        SOURCES ${name}.c)
endforeach()
