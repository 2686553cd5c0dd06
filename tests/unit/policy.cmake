# SPDX-License-Identifier: Apache-2.0
sc_test(NAME test_policy LABELS unit LAYERS base radix policy
    SOURCES test_policy.c test_policy_args.c test_policy_random.c test_policy_longer.c
    test_policy_tiers.c)
