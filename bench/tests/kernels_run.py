# SPDX-License-Identifier: Apache-2.0
"""`statecache-bench kernels` as a user runs it: every operation gives figures; bad usage is 2; a
rival of any kind disturbs nothing."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

OPS = {"decode", "chunk", "recurrent", "conv prefill", "conv update", "gates", "gated rmsnorm",
       "l2norm", "verify", "replay"}


BENCH = pathlib.Path(__file__).parents[1]
TINY = ("--quick", "--rounds", "1", "--pool-mib", "4", "--tokens-max", "64", "--no-sgemm")
# What a rival says: first, and to every question; {} is the question.
FAKE = """import json, sys, time
print({hello!r}, flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    print({answer!r}.replace("OP", asked["op"]), flush=True)
"""
HELLO = '{"rival": "a fake"}'
GOOD = '{"by": "fake OP", "us": 1234.5, "n": 3, "error": 1e-7}'


def run(*arguments, **more):
    return subprocess.run([sys.argv[1], "kernels", *arguments], capture_output=True, text=True,
                          timeout=600, check=False, **more)


def objects(done):
    """The machine's object, and those of cases."""
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["metric"] for r in results] == ["machine"] + ["time"] * (len(results) - 1), results
    return results[0], results[1:]


def rings(results):
    """A cycle's parts make its time; the bytes are those of the traffic model."""
    found = [r for r in results if r["params"]["op"] == "replay"]
    assert {r["params"]["model"] for r in found} == {"qwen3-next", "kimi-linear", "nemotron-h"}
    for r in found:
        ring = r["ring"]
        cycle = (15 * ring["append_us"] + ring["flush_us"]) / 16
        assert abs(cycle - r["p50"]) <= 0.02 * cycle, r  # medians of one round: the same
        assert ring["decode_bytes"] > ring["ring_bytes"] == r["bytes"] and r["bar_ratio"] == 1, r
        assert abs(ring["decode_bytes"] / ring["ring_bytes"] - ring["model_ratio"]) < 1e-3, r
        assert all(v > 0 for v in ring["cached"].values()) and ring["read_ratio"] > 0, r


def rivals():
    """One that answers, and all that can go wrong: the figures stay, the reason is told."""
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "fake.py"

        def fake(hello, answer, *more):
            script.write_text(FAKE.format(hello=hello, answer=answer), encoding="ascii")
            return objects(run(*TINY, "--op", "l2norm", "--json", *more, "--rival",
                               f"{sys.executable} {script}"))

        machine, results = fake(HELLO, GOOD)
        assert machine["rival"] == "a fake" and machine["rival_is_there"], machine
        for r in results:
            assert r["rival"] == {"by": "fake l2norm", "us": 1234.5, "n": 3, "error": 1e-7}, r
        table = subprocess.run([sys.executable, "-B", BENCH / "kernels_table.py"], text=True,
                               input="\n".join(map(json.dumps, [machine, *results])), check=True,
                               capture_output=True, timeout=60).stdout
        assert "| l2norm | qwen3-next | memory, tokens 64 |" in table and "a fake" in table, table
        for answer, why in (('{"skip": "no OP here"}', "no l2norm here"),
                            ("nonsense", "what it says is no JSON object"),
                            ("{}", "it gives neither a time nor a reason"),
                            ('{"by": "fake", "us": 0}', "it gives neither a time nor a reason"),
                            ('{"skip": "a \\"quoted\\" one"}', "a 'quoted' one"),
                            ("x" * 5000, "it says too much in a line")):
            for r in fake(HELLO, answer)[1]:
                assert r["rival"] == {"skip": why} and r["p50"] > 0, r
        for hello, why in (('{"skip": "no torch"}', "no torch"), ("{}", "it does not say what"),
                           ("7", "what it says is no JSON object")):
            machine, results = fake(hello, GOOD)
            assert machine["rival"].startswith(why) and not machine["rival_is_there"], machine
            assert all(r["rival"]["skip"] == machine["rival"] for r in results), results
        for command, why in (("/nowhere/at/all", "it has ended"), ("true", "it has ended"),
                             ("sleep 60", "no answer within 1 s"),
                             (f"printf '{HELLO}\\n'", "it has ended")):
            _, results = objects(run(*TINY, "--op", "l2norm", "--json", "--rival-wait", "1",
                                     "--rival", command))
            assert all(r["rival"] == {"skip": why} for r in results), (command, results)


def real_rival():
    """kernels_torch.py: agrees and is timed, or says why not."""
    environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
    machine, results = objects(run(*TINY, "--op", "l2norm", "--json", "--rival",
                                   f"{sys.executable} {BENCH / 'kernels_torch.py'}",
                                   env=environment))
    for r in results:
        if machine["rival_is_there"]:
            assert "skip" in r["rival"] or r["rival"]["us"] > 0, r
        else:
            assert "No module named" in machine["rival"] and r["rival"]["skip"], r


def main():
    done = run(*TINY, "--threads", "2", "--json")
    machine, results = objects(done)
    assert machine["openblas"] == "not asked for" and not machine["rival_is_there"], machine
    assert {r["params"]["op"] for r in results} == OPS, done.stdout
    assert {r["params"]["model"] for r in results} == {"qwen3-next", "kimi-linear", "nemotron-h"}
    for r in results:
        assert r["p50"] > 0 and r["gb_s"] > 0 and r["row"], r
        assert r["limit"] == "sgemm" or r["limit_percent"] > 0, r
        assert r["rival"] == {"skip": "not asked for (--rival)"}, r
    rings(results)
    rivals()
    real_rival()
    done = subprocess.run([sys.argv[1], "layers", "--quick", "--rounds", "1"], capture_output=True,
                          text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("kda-stage", "project", "ssm scan", "move"):
        assert name in done.stdout, done.stdout
    for bad in (("--op", "none such"), ("--model", "none"), ("--rounds", "0"), ("surplus",)):
        done = run(*bad)
        assert done.returncode == 2 and done.stderr, (bad, done.returncode)


main()
