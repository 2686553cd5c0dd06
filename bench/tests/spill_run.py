# SPDX-License-Identifier: Apache-2.0
"""`statecache-bench spill` as a user runs it: every part gives figures and leaves nothing behind;
bad usage is 2."""
import json
import os
import subprocess
import sys
import tempfile


def run(*arguments):
    return subprocess.run([sys.argv[1], "spill", *arguments], capture_output=True, text=True,
                          timeout=600, check=False)


def main():
    with tempfile.TemporaryDirectory() as folder:
        done = run("--dir", folder, "--state-kib", "256", "--states", "3", "--pairs", "2",
                   "--records", "500", "--seconds", "1", "--json")
        assert done.returncode == 0 and not done.stderr, done
        assert os.listdir(folder) == [], os.listdir(folder)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    for r in results:
        assert r["bench"] == "spill" and r["n"] > 0 and r["p99"] >= r["p50"] >= 0, r
        if "bar" in r:
            holds = r["p50"] >= r["bar"] if r["bar_is"] == "at least" else r["p50"] <= r["bar"]
            assert holds == r["met"], r
    found = {(r["params"]["workload"], r["metric"]): r["p50"] for r in results}
    for row in (("disk", "spill / raw"), ("disk", "restore / raw"), ("check", "XXH3-128"),
                ("alone", "random restores"), ("beside", "random restores"),
                ("beside", "spills meanwhile"),
                ("reopen", "open until the first hit is read"),
                ("reopen", "metadata on disk, a record")):
        assert found[row] > 0, (row, found)
    assert found[("reopen", "records of 64 tokens and 4 KiB")] == 500
    done = run("--device", "host", "--pairs", "2", "--json")
    assert done.returncode == 0 and not done.stderr, done
    found = [json.loads(line) for line in done.stdout.splitlines()]
    names = [r["metric"] for r in found]
    for state in ("fp32 page-major", "fp32 contiguous", "bf16 page-major", "bf16 contiguous"):
        for what in ("to the tier / plain", "from the tier / plain"):
            assert f"{state}, {what}" in names, names
    assert all(r["p50"] > 0 for r in found if "pinned" not in r["metric"]), found
    for bad in (("--device", "abacus"),
                ("--state-kib", "6"), ("--states", "0"), ("--pairs", "0"), ("--threads", "65"),
                ("--dir", "/nowhere/at/all"), ("--records", "-1"), ("surplus",)):
        done = run(*bad)
        assert done.returncode == 2 and done.stderr, (bad, done.returncode)


main()
