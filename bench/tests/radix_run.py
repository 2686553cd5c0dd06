# SPDX-License-Identifier: Apache-2.0
"""`statecache-bench radix` as a user runs it: every part gives figures; bad usage is 2."""
import json
import struct
import subprocess
import sys


def run(*arguments):
    return subprocess.run([sys.argv[1], "radix", *arguments], capture_output=True, text=True,
                          timeout=600, check=False)


def main():
    done = run("--requests", "160", "--threads", "1,2", "--seconds", "0.02", "--json")
    assert done.returncode == 0 and not done.stderr, done
    results = [json.loads(line) for line in done.stdout.splitlines()]
    for r in results:
        assert r["bench"] == "radix" and r["n"] > 0 and r["p99"] >= r["p50"], r
        if "bar" in r:
            holds = {"at most": r["p50"] <= r["bar"], "at least": r["p50"] >= r["bar"],
                     "within 3 %": abs(r["p50"] - r["bar"]) <= 0.03 * r["bar"]}[r["bar_is"]]
            assert holds == r["met"], r
    names = {(r["params"]["workload"], r["metric"]) for r in results}
    for workload in ("W1", "W2"):
        for metric in ("prompt tokens hit", "match / memcmp 9k, hot", "lock a path, clock included",
                       "evict 8k to a tenth, ids handed out, filled",
                       "bytes a token, filled, without ids", "resident / allocated, filled"):
            assert (workload, metric) in names, (workload, metric)
    assert ("W1", "insert 256 tokens behind 4k, path held") in names
    for metric in ("2,000 keys of 9k, 2 threads, one tree / private",
                   "8 keys of 1k, 1 threads, one tree, pthread_rwlock"):
        assert ("", metric) in names, metric

    made = subprocess.run([sys.argv[1], "radix", "--workload", "w2", "--requests", "9", "--export"],
                          capture_output=True, timeout=600, check=True).stdout
    count = 0
    while made:
        prompt, full = struct.unpack_from("<II", made)
        assert 0 < prompt <= full <= 32768 and len(made) >= 8 + 4 * full, (prompt, full)
        assert max(struct.unpack_from(f"<{full}i", made, 8)) < 151936
        made = made[8 + 4 * full:]
        count += 1
    assert count == 9, count

    table = run("--workload", "w1", "--requests", "80").stdout
    assert "match / memcmp" in table and "bars met" in table, table
    first, second = (run("--workload", "w1", "--requests", "80", "--json", "--seed", seed).stdout
                     for seed in ("3", "4"))
    assert first.splitlines()[0] != second.splitlines()[0]
    for bad in (("--workload", "w3"), ("--requests", "0"), ("--threads", "0"), ("--threads", ","),
                ("--seconds", "x"), ("--export",),
                ("--workload", "threads", "--export"),
                ("--mutations", "-1"), ("--seed", "1x"), ("surplus",)):
        done = run(*bad)
        assert done.returncode == 2 and done.stderr, (bad, done.returncode)


main()
