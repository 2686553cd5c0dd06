# SPDX-License-Identifier: Apache-2.0
"""`statecache-bench service` as a user runs it: every part gives figures, the service ends well and
leaves nothing behind; bad usage is 2."""
import glob
import json
import subprocess
import sys


def run(*arguments):
    return subprocess.run([sys.argv[1], "service", *arguments], capture_output=True, text=True,
                          timeout=600, check=False)


def main():
    before = set(glob.glob("/tmp/sc-bench-*"))
    done = run("--program", sys.argv[2], "--tokens", "300", "--rounds", "50", "--clients", "4",
               "--idle", "20", "--json")
    assert done.returncode == 0 and not done.stderr, done
    assert set(glob.glob("/tmp/sc-bench-*")) <= before
    results = [json.loads(line) for line in done.stdout.splitlines()]
    for r in results:
        assert r["bench"] == "service" and r["n"] > 0 and r["p99"] >= r["p50"] >= 0, r
    found = {(r["params"]["workload"], r["metric"]): r["p50"] for r in results}
    for row in (("trip", "socketpair, the frame of a look-up"), ("trip", "echo of that frame"),
                ("trip", "look-up"), ("trip", "echo / socketpair, p50"),
                ("trip", "look-up / echo, p50"), ("trip", "look-up / echo, p99"),
                ("crowd", "look-ups with 1 client"), ("crowd", "look-ups with 4 clients"),
                ("hostile", "beside / alone, p50")):
        assert found[row] > 0, (row, found)
    assert ("idle", "resident memory of a client") in found, found
    for bad in (("--tokens", "3"), ("--clients", "0"), ("--idle", "-1"), ("surplus",),
                ("--program", "/nowhere/at/all")):
        done = run(*bad)
        assert done.returncode == 2 and done.stderr, (bad, done)


main()
