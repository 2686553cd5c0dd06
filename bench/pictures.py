# SPDX-License-Identifier: Apache-2.0
"""Draws bars of what a benchmark printed with --json: one JSON object a line on standard input.

./dev bench NAME --pictures pipes statecache-bench through this. Numbers that are compared share one
scale, which starts at zero; smaller or larger is better as the heading says.
"""
import json
import sys

WIDTH = 50

# Heading and rows (label, path in the object) of each picture that `replay` gives.
REPLAY = [
    ("prompt tokens hit, percent: more is better", [
        ("with the cache", ("cached", "hit_percent")),
        ("ideal, ends", ("ideal_end_percent",)),
        ("ideal, ends and branches", ("ideal_end_branch_percent",))]),
    ("tokens computed: fewer is better", [
        ("with the cache", ("cached", "computed_tokens")),
        ("cold", ("cold", "computed_tokens"))]),
    ("seconds of compute: fewer is better", [
        ("with the cache", ("cached", "compute_s")),
        ("cold", ("cold", "compute_s"))]),
    ("steps launched: all, and while another was out", [
        ("all", ("cached", "steps")),
        ("overlapped", ("cached", "steps_overlapped"))]),
    ("drafts: proposed, and accepted", [
        ("proposed", ("cached", "drafts")),
        ("accepted", ("cached", "drafts_accepted"))]),
    ("requests that were preempted and came back", [
        ("all", ("cached", "readmitted")),
        ("resumed", ("cached", "readmitted_hits")),
        ("with all that they had", ("cached", "readmitted_whole"))]),
    ("tokens of prompts", [
        ("computed or resumed", ("cached", "prompt_tokens")),
        ("forked", ("cached", "forked_tokens"))]),
]
# Pictures of what a run need not have: not drawn where their last row is 0.
OPTIONAL = 4


def find(value, path):
    """The number at `path`, or None."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, (int, float)) else None


def draw(heading, rows):
    """Lines of one picture; none when there is nothing to compare."""
    rows = [(label, number) for label, number in rows if number is not None]
    if not rows:
        return []
    top = max(number for _, number in rows) or 1
    wide = max(len(label) for label, _ in rows)
    lines = [heading]
    for label, number in rows:
        bar = "#" * max(1 if number > 0 else 0, round(WIDTH * number / top))
        lines.append(f"  {label:{wide}}  {bar:{WIDTH}}  {number:.6g}")
    return lines


def pictures(result):
    """The pictures of one result; an object of another benchmark gives its metric's quantiles."""
    if result.get("bench") == "replay":
        for at, (heading, paths) in enumerate(REPLAY):
            rows = [(label, find(result, path)) for label, path in paths]
            if at < len(REPLAY) - OPTIONAL or rows[-1][1]:
                yield draw(heading, rows)
    elif result.get("bench") in ("radix", "spill"):
        yield radix_picture(result)
    elif "metric" in result:
        heading = f"{result.get('bench')} {result['metric']}, {result.get('unit', '')}"
        yield draw(heading, [(name, find(result, (name,))) for name in ("min", "p50", "p99")])


def radix_picture(result):
    """What has a bar, beside it; the rest is in the table that the program prints by itself."""
    if "bar" not in result:
        return []
    workload = result["params"]["workload"]
    heading = (f"{workload + ' ' if workload else ''}{result['metric']}, {result['unit']}: "
               f"{result['bar_is']} {result['bar']:g}, {'met' if result['met'] else 'MISSED'}")
    return draw(heading, [("measured", result["p50"]), ("bar", result["bar"])])


def hit_pictures(results):
    """A picture for each trace, model and budget: policies side by side."""
    groups = {}
    for result in results:
        key = (result["trace"], result["model"], result["budget_gib"])
        groups.setdefault(key, []).append((result["policy"], result["hit_percent"]))
    for (trace, model, budget), rows in groups.items():
        yield draw(f"{trace}, {model}, {budget:g} GiB: percent hit, more is better", rows)


def kernel_pictures(results):
    """A picture for each limit: every case side by side."""
    groups = {}
    for result in results:
        p = result["params"]
        label = (f"{p['op']} {p['model']} {p['dtype']}/{p['state']} b{p['batch']} t{p['tokens']} "
                 f"({result['row']})")
        if "bar_percent" in result and result["limit_percent"] is not None:
            met = result["limit_percent"] >= result["bar_percent"]
            label += f" >= {result['bar_percent']}: {'met' if met else 'MISSED'}"
        groups.setdefault(result["limit"], []).append((label, result["limit_percent"]))
    for limit, rows in groups.items():
        yield draw(f"kernels: percent of the limit \"{limit}\", more is better", rows)


def main():
    drawn = 0
    results = [json.loads(line) for line in sys.stdin if line.startswith("{")]
    hits = [result for result in results if result.get("bench") == "hit"]
    kernels = [result for result in results if result.get("bench") == "kernels"
               and result["metric"] == "time"]
    others = [lines for result in results
              if result not in hits and result.get("bench") != "kernels"
              for lines in pictures(result)]
    for lines in [*others, *hit_pictures(hits), *kernel_pictures(kernels)]:
        if lines:
            drawn += 1
            print("\n".join(lines))
    if not drawn:
        sys.exit("pictures: no result to draw on standard input")


if __name__ == "__main__":
    main()
