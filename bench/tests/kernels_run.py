# SPDX-License-Identifier: Apache-2.0
"""`statecache-bench kernels` as a user runs it: every operation gives figures; bad usage is 2."""
import json
import subprocess
import sys

OPS = {"decode", "chunk", "recurrent", "conv prefill", "conv update", "gates", "gated rmsnorm",
       "l2norm", "verify", "replay"}


def run(*arguments):
    return subprocess.run([sys.argv[1], "kernels", *arguments], capture_output=True, text=True,
                          timeout=600, check=False)


def main():
    done = run("--quick", "--rounds", "1", "--pool-mib", "4", "--threads", "2", "--json",
               "--tokens-max", "64", "--no-sgemm")
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert {r["params"]["op"] for r in results} == OPS, done.stdout
    assert {r["params"]["model"] for r in results} == {"qwen3-next", "kimi-linear", "nemotron-h"}
    for r in results:
        assert r["p50"] > 0 and r["gb_s"] > 0 and r["row"], r
        assert r["limit"] == "sgemm" or r["limit_percent"] > 0, r
    done = subprocess.run([sys.argv[1], "layers", "--quick", "--rounds", "1"], capture_output=True,
                          text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("kda-stage", "project", "ssm scan", "move"):
        assert name in done.stdout, done.stdout
    for bad in (("--op", "none such"), ("--model", "none"), ("--rounds", "0"), ("surplus",)):
        done = run(*bad)
        assert done.returncode == 2 and done.stderr, (bad, done.returncode)


main()
