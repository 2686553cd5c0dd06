# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/explanation/kernels/figures.md, from `statecache-bench kernels --json`.

./dev bench kernels --table pipes it through this; standard output is one section of that page.
Cells with several numbers are of the batches, or of the lengths, that the third column names. A
share is of the limit; "x" is how many times as long the rival takes.
"""
import datetime
import json
import sys


BY_ROWS = ("decode", "conv update", "verify", "replay")


def short(number):
    """Three digits."""
    return "-" if number is None else f"{number:.3g}" if number < 100 else f"{number:.0f}"


def cell(values):
    return " / ".join(values) if any(value != "-" for value in values) else "-"


def times(result):
    rival = result.get("rival", {})
    return short(rival["us"] / result["p50"]) if "us" in rival else "-"


def share(result):
    percent = result["limit_percent"]
    return "-" if percent is None else f"{percent:.0f} %"


def head(machine, results):
    """Where and how this was measured."""
    threads = machine["params"]["threads"]
    rows = sorted({result["row"] for result in results})
    there = machine["rival_is_there"]
    return [
        f"## {machine['processor']}, {threads} thread{'s' if threads > 1 else ''} of "
        f"{machine['processors']} processors", "",
        f"`./dev bench kernels --threads {threads} --table`, {datetime.date.today():%-d %B %Y}, "
        f"load {machine['load']:.1f} before it. Kernel rows: {', '.join(rows)}. States of "
        f"{machine['params']['pool_mib']} MiB, last-level cache {machine['cache_mib']} MiB. "
        f"`x *= c` by {machine['scale']}; sgemm: OpenBLAS core {machine['openblas']}. Rival: "
        f"{machine['rival'] if there else 'none, ' + machine['rival']}.", ""]


def operations(results):
    """A line for each operation and model: fp32 beside bf16."""
    lines = ["| operation | model | of | fp32, us | share | x | bf16, us | share | x |",
             "|---|---|---|---|---|---|---|---|---|"]
    groups = {}
    for result in results:
        p = result["params"]
        narrow = "bf16" in (p["dtype"], p["state"])
        groups.setdefault((p["op"], p["model"]), ([], []))[narrow].append(result)
    for (op, model), both in groups.items():
        what = "batch" if op in BY_ROWS else "tokens"
        sizes = cell([str(r["params"][what]) for r in both[0]])
        limit = both[0][0]["limit"]
        cells = [part for half in both for part in (
            cell([short(r["p50"]) for r in half]), cell([share(r) for r in half]),
            cell([times(r) for r in half]))]
        lines.append(f"| {op} | {model} | {limit}, {what} {sizes} | {' | '.join(cells)} |")
    return lines + [""]


def rings(results):
    """What a cycle's time is made of; nothing where no ring was measured."""
    lines = ["| ring | states | batch | by bytes | by time | decode, append, flush, us "
             "| the same from a cache | reading / `x *= c` |", "|---|---|---|---|---|---|---|---|"]
    for result in results:
        if "ring" not in result:
            continue
        p, ring, cached = result["params"], result["ring"], result["ring"]["cached"]
        steps = [" / ".join(short(part[name]) for name in ("decode_us", "append_us", "flush_us"))
                 for part in (ring, cached)]
        lines.append(f"| {p['model']} | {p['state']} | {p['batch']} | {ring['model_ratio']:.2f} x "
                     f"| {ring['ratio']:.2f} x | {steps[0]} | {steps[1]} "
                     f"| {100 * ring['read_ratio']:.0f} % |")
    return lines + [""] if len(lines) > 2 else []


def main():
    objects = [json.loads(line) for line in sys.stdin if line.startswith("{")]
    objects = [x for x in objects if x.get("bench") == "kernels"]
    machine = [x for x in objects if x["metric"] == "machine"]
    results = [x for x in objects if x["metric"] == "time"]
    if not machine or not results:
        sys.exit("kernels_table: no result of `statecache-bench kernels --json` on standard input")
    print("\n".join(head(machine[0], results) + operations(results) + rings(results)))


if __name__ == "__main__":
    main()
