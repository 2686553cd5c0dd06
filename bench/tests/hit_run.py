# SPDX-License-Identifier: Apache-2.0
"""statecache-bench hit as a user runs it: exit codes, reports, and tiers against a naive version.

The naive version below plays linear conversations through two or three plain LRU lists, from the
description alone; every hit, in every tier, must be the same."""
import csv
import io
import json
import pathlib
import random
import subprocess
import sys
import tempfile

BENCH = sys.argv[1]
BLOCK = 64


def run(*args):
    return subprocess.run([BENCH, "hit", *map(str, args)], capture_output=True, text=True,
                          check=False)


def conversations(rng, count, turns):
    """Requests in order: (conversation, blocks of its prompt)."""
    lengths, requests = {}, []
    for _ in range(turns):
        which = min(int(rng.expovariate(3 / count)), count - 1)
        lengths[which] = lengths.get(which, 0) + rng.randint(1, 4)
        if lengths[which] > 40:
            del lengths[which]
            continue
        requests.append((which, lengths[which]))
    return requests


def write_trace(path, requests):
    """A conversation that starts again is another one."""
    era, last, named, ids = {}, {}, [], {}
    with open(path, "w", encoding="ascii") as out:
        for i, (which, blocks) in enumerate(requests):
            if blocks <= last.get(which, 0):
                era[which] = era.get(which, 0) + 1
            last[which] = blocks
            name = (which, era.get(which, 0))
            named.append((name, blocks))
            hashes = [ids.setdefault((name, k), len(ids)) for k in range(blocks)]
            print(json.dumps({"timestamp": 1000 * i, "input_length": BLOCK * blocks + 1,
                              "output_length": 5, "hash_ids": hashes}), file=out)
    return named


class Level:
    """States by (stamp, number); numbers are given again, the newest first."""

    def __init__(self, cap, below=None):
        self.cap, self.below = cap, below
        self.items, self.free, self.used, self.requests = {}, [], 0, 0

    def deepest(self, name, blocks):
        return max((n for (who, n) in self.items if who == name and n <= blocks), default=0)

    def room(self, need, held, spared):
        """`held`: of the request that is being served; `spared`: besides, in this level."""
        while self.cap - len(self.items) < need:
            victims = [(*self.items[key], key) for key in self.items
                       if not held(key) and not spared(key)]
            if not victims:
                return False
            _, number, key = min(victims)
            if self.below:
                self.below.take(key, held)
            del self.items[key]
            self.free.append(number)
        return True

    def put(self, key):
        if self.free:
            number = self.free.pop()
        else:
            self.used += 1
            number = self.used
        self.items[key] = (self.requests, number)

    def take(self, key, held):
        """From the level above."""
        if key in self.items:
            return
        name, blocks = key
        fits = self.cap >= 1 and self.room(1, held, lambda k: k[0] == name and k[1] < blocks)
        if fits:
            self.put(key)
        elif self.below:
            self.below.take(key, held)


def naive(requests, caps):
    levels = []
    for cap in reversed(caps):
        levels.insert(0, Level(cap, levels[0] if levels else None))
    device, hits = levels[0], [0] * len(caps)
    for name, blocks in requests:
        depth = [level.deepest(name, blocks) for level in levels]
        tier = depth.index(max(depth))
        hits[tier] += BLOCK * depth[tier]
        for level in levels:
            level.requests += 1
        points = [n for n in sorted({depth[tier] if tier else 0, blocks}) if n > depth[0]]

        def held(key, name=name):
            return key[0] == name

        if device.cap >= len(points) and device.room(len(points), held, lambda key: False):
            for n in points:
                device.put((name, n))
        elif device.below:
            for n in points:
                device.below.take((name, n), held)
        for level, n in zip(levels, depth):
            if n:
                level.items[(name, n)] = (level.requests, level.items[(name, n)][1])
    total = sum(BLOCK * blocks + 1 for _, blocks in requests)
    return [100 * h / total for h in hits]


def check_tiers(folder):
    seen = [0, 0, 0]
    for seed in range(24):
        rng = random.Random(seed)
        path = folder / "trace.jsonl"
        requests = write_trace(path, conversations(rng, rng.randint(4, 30), 400))
        caps = [rng.randint(1, 8), rng.randint(1, 12), rng.randint(0, 20)]
        out = run("--trace", path, "--block", BLOCK, "--policy", "lru", "--kv", "none",
                  "--state-bytes", 1 << 30, "--budget", caps[0], "--host", caps[1], "--disk",
                  caps[2], "--flops", 1, "--json=-")
        assert out.returncode == 0, out.stderr
        got = json.loads(out.stdout)
        expected = naive(requests, caps if caps[2] else caps[:2])
        for i, tier in enumerate(got["tiers"]):
            want = expected[i] if i < len(expected) else 0
            assert abs(tier["hit_percent"] - want) < 1e-3, (seed, caps, got["tiers"], expected)
            assert tier["peak_bytes"] <= tier["gib"] * (1 << 30), tier
            seen[i] += tier["hit_percent"] > 1
        assert abs(sum(t["hit_percent"] for t in got["tiers"]) - got["hit_percent"]) < 1e-3, got
        assert 0 < got["saved_s"] < got["prefill_s"], got
    assert min(seen) >= 8, seen


def check_worth(folder):
    """Where reading back takes longer than computing, nothing is written; else more is saved."""
    path = folder / "trace.jsonl"
    write_trace(path, conversations(random.Random(5), 30, 800))
    saved = {}
    for name, more in (("none", []), ("slow", ["--host", 64, "--host-rate", 0.001]),
                       ("fast", ["--host", 64])):
        out = run("--trace", path, "--block", BLOCK, "--budget", 1, "--flops", 1, "--json=-",
                  "--policy", "gittins,lru", "--state-bytes", 1 << 27, *more)
        assert out.returncode == 0, out.stderr
        for line in out.stdout.splitlines():
            cell = json.loads(line)
            saved[name, cell["policy"]] = cell["hit_percent"]
            if name == "slow":
                assert cell["tiers"][1]["written_bytes"] == 0, cell
                assert cell["saved_s"] > 0, cell
    for policy in ("gittins", "lru"):
        assert saved["slow", policy] == saved["none", policy], saved
        assert saved["fast", policy] > saved["none", policy] + 5, saved


def check_reports(folder):
    path = folder / "trace.jsonl"
    write_trace(path, conversations(random.Random(1), 9, 200))
    common = ["--trace", path, "--block", BLOCK, "--budget", "1,2", "--policy", "lru,gittins"]
    text = run(*common, "--host", 4)
    assert text.returncode == 0, text.stderr
    for word in ("token hit rate, %", "first tenth", "tiers: device + host 4 GiB", "saved s"):
        assert word in text.stdout, (word, text.stdout)
    assert "tiers:" not in run(*common).stdout
    rows = list(csv.DictReader(io.StringIO(run(*common, "--host", 4, "--csv", "-").stdout)))
    assert len(rows) == 4 and all(float(r["host_gib"]) == 4 for r in rows), rows
    assert all(float(r["host_hit_percent"]) + float(r["device_hit_percent"]) -
               float(r["hit_percent"]) < 1e-3 for r in rows), rows
    for bad in (["--host", -1], ["--disk", "x"], ["--host-rate", 0], ["--flops", 0],
                ["--host", 4, "--policy", "belady"], ["--disk", 4, "--policy", "fixed"],
                ["--policy", "nothing"], ["--budget", 0]):
        out = run(*common, *bad)
        assert out.returncode == 2 and out.stderr, (bad, out.returncode, out.stderr)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_tiers(folder)
        check_worth(folder)
        check_reports(folder)
    print("hit: tiers agree with the naive version; reports and refusals are as described")


main()
