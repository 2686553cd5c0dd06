# SPDX-License-Identifier: Apache-2.0
"""`--bars` of every benchmark, as a user runs it: each bar has a line of the form that people and
programs read, the status is 1 exactly if one is missed, and JSON is not disturbed."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

LINE = re.compile(r"bar (\S.*): (not measured|\S+)( \S+)? "
                  r"\(must (<=|>=|be within 3 % of) (\S+)( \S+)?\)")
NO_BAR = re.compile(r"bar (\S.*): (\S+)( \S+)? \(no bar: (\S.*)\)")
TINY_KERNELS = ("--quick", "--rounds", "1", "--pool-mib", "4", "--tokens-max", "64")


def run(name, *arguments):
    commit = {**os.environ, "SC_BENCH_GIT": "0123456789ab"}
    commit.pop("SC_BENCH_DIRTY", None)
    return subprocess.run([sys.argv[1], name, *map(str, arguments)], capture_output=True, text=True,
                          timeout=600, check=False, env=commit)


def met(value, sign, limit):
    if value == "not measured":
        return False
    value, limit = float(value), float(limit)
    if sign == "<=":
        return value <= limit
    if sign == ">=":
        return value >= limit
    return abs(value - limit) <= 0.03 * limit


def judge(done, text):
    """The names of bars in `text`, after a look at their form and at the status."""
    lines = [line for line in text.splitlines() if line.startswith("bar ")
             and not NO_BAR.fullmatch(line)]
    bars = [LINE.fullmatch(line) for line in lines]
    assert all(bars), [line for line, bar in zip(lines, bars) if not bar]
    missed = [line[8:] for line in text.splitlines() if line.startswith("missed: ")]
    names = [bar.group(1) for bar in bars]
    for bar in bars:
        name, value, unit, sign, limit, limit_unit = bar.groups()
        assert value == "not measured" or unit == limit_unit, bar.group(0)
        shown = value != "not measured"  # with four digits
        close = shown and abs(float(value) - float(limit)) <= 5e-4 * float(limit)
        assert close or met(value, sign, limit) == (name not in missed), bar.group(0)
    assert set(missed) <= set(names) and done.returncode == (1 if missed else 0), done
    if names:
        assert f"{len(names) - len(missed)} of {len(names)} bars met" in text, text
    else:
        assert "there are no bars for what was measured" in text, text
    return names, missed


def measured_where(line):
    """What every object ends with; the commit comes from the environment (run() sets it)."""
    return (line["git"] == "0123456789ab" and line["dirty"] is False and line["gpu"] is None
            and re.fullmatch("(optimised|debug) gcc .+, assertions [123]", line["build"])
            and re.fullmatch(r".+, [1-9]\d* threads", line["host"])
            and re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", line["utc"]))


def rings():
    """Each has a bar or a reason, parts that leave no room; none where caches hold
    states, since nothing was measured."""
    done = run("kernels", *TINY_KERNELS, "--op", "replay", "--json", "--bars")
    names, _ = judge(done, done.stderr)
    told = [line for line in done.stderr.splitlines() if NO_BAR.fullmatch(line)]
    results = [json.loads(line) for line in done.stdout.splitlines()][1:]
    assert len(told) == sum("no_bar" in result for result in results), done.stderr
    assert len(names) == sum("bar_ratio" in result for result in results), done.stderr
    assert len(names) + len(told) == 6, done.stderr
    for result in results:
        assert "no_bar" not in result or result["ring_least"] >= 1, result
        assert ("no_bar" in result) != ("bar_ratio" in result), result


def main():
    # A missed bar, whatever the machine: the limit was not measured.
    done = run("kernels", *TINY_KERNELS, "--op", "chunk", "--no-sgemm", "--bars")
    names, missed = judge(done, done.stdout)
    assert names == missed and len(names) == 6 and done.returncode == 1, done
    # The same without --bars is no failure.
    assert run("kernels", *TINY_KERNELS, "--op", "chunk", "--no-sgemm").returncode == 0
    # JSON stays JSON.
    done = run("kernels", *TINY_KERNELS, "--op", "decode", "--json", "--bars")
    names, _ = judge(done, done.stderr)
    assert len(names) == 6 and all("decode" in name for name in names), names
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(x["bench"] == "kernels" for x in objects), objects
    assert all(measured_where(x) for x in objects), objects
    # States that a cache holds tell nothing of memory.
    machine = json.loads(done.stdout.splitlines()[0])
    for op, word in (("decode", "of x *= c in place"), ("replay", "faster than decode")):
        done = run("kernels", *TINY_KERNELS, "--op", op, "--bars", "--no-sgemm")
        names, missed = judge(done, done.stdout)
        assert len(names) == 6 and all(name.endswith(word) for name in names), names
        assert machine["cache_mib"] < 4 or names == missed, done.stdout
    rings()
    # No bars at all.
    done = run("kernels", *TINY_KERNELS, "--op", "gates", "--bars")
    assert judge(done, done.stdout)[0] == [] and done.returncode == 0, done
    done = run("layers", "--quick", "--rounds", "1", "--json", "--bars")
    assert judge(done, done.stderr)[0] == [] and done.returncode == 0, done
    parts = {json.loads(line)["params"]["part"] for line in done.stdout.splitlines()}
    assert parts == {"kda-stage", "project", "ssm scan", "ssm token by token", "move"}, parts

    done = run("radix", "--requests", "160", "--threads", "1,2", "--seconds", "0.02", "--bars")
    names, missed = judge(done, done.stdout)
    for name in ("W1 match / memcmp 9k, hot", "W2 match / memcmp 9k, hot",
                 "W2 match / memcmp 32k, hot", "W1 bytes a token, filled, without ids",
                 "W1 evict 8k to a tenth, ids handed out, filled",
                 "2,000 keys of 9k, 2 threads, one tree / private"):
        assert name in names, (name, names)
    # So few requests do not fill the tree that evictions then churn: not measured, so missed.
    for name in ("W1 bytes a token in churn, with ids", "W2 resident / allocated after churn",
                 "W1 evict 8k to a tenth, ids handed out, after churn"):
        assert name in missed and f"bar {name}: not measured (" in done.stdout, done.stdout
    assert "nan" not in done.stdout, done.stdout
    done = run("replay", "--requests", "12", "--no-cold", "--check", "2", "--bars")
    assert "differing bits" in judge(done, done.stdout)[0] and done.returncode == 0, done
    done = run("replay", "--requests", "24", "--sabotage", "7", "--bars")
    assert judge(done, done.stdout)[1] and done.returncode == 1, done
    with tempfile.TemporaryDirectory() as folder:
        done = run("spill", "--dir", folder, "--state-kib", "256", "--states", "3", "--pairs", "2",
                   "--records", "500", "--seconds", "1", "--bars")
        assert set(judge(done, done.stdout)[0]) == {"disk spill / raw", "disk restore / raw",
            "reopen open until the first hit is read"}, done.stdout
        trace = pathlib.Path(folder) / "trace.jsonl"
        trace.write_text("".join(json.dumps({"timestamp": i, "input_length": 65, "output_length": 1,
                         "hash_ids": [i % 3]}) + "\n" for i in range(9)), encoding="ascii")
        done = run("hit", "--trace", trace, "--block", 64, "--budget", 1, "--policy", "lru",
                   "--bars")
        assert judge(done, done.stdout)[0] == [] and done.returncode == 0, done
        done = run("hit", "--trace", trace, "--bars", folder)
        assert done.returncode == 2 and "one at a time" in done.stderr, done
    done = run("hit", "--bars")
    assert done.returncode == 2 and "folder" in done.stderr, done
    done = run("hit", "--bars", "/nowhere/at/all")
    assert done.returncode == 2 and "/nowhere/at/all" in done.stderr, done


main()
