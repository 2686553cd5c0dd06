# SPDX-License-Identifier: Apache-2.0
"""replay_matrix.py PROGRAM [--traces FOLDER] [--requests N] [--check N] [--jobs N] [--out FILE]

Every form of model and pool, every page size, two and three steps in flight, with drafts, forks,
preemption, tenants and tails at once: `--check` must find no differing bit, and what was asked for
must really have happened. A line for each run, a summary at the end; exit status 1 if one failed.

  generator  {gdn, kda} x {page-major, contiguous} x {fp32, bf16} x page {1, 16, 64} x
             {2 steps in flight and chains of drafts, 3 steps, trees and late stops}; the same
             forms, and Mamba-2, with rings; then each feature alone
  traces     each *.jsonl.zst below FOLDER: two forms at page 16 and 1, blocks replayed as 16, and
             one at page 64, blocks replayed as 64, of a third of the requests

--jobs runs that many at a time; lines come in order. --out appends what each run printed with
--json, a line each.
"""
import argparse
import concurrent.futures
import itertools
import json
import pathlib
import sys
import time

import replay_runs as runs

CHAINS = ("--in-flight", "2", "--draft", "3")
TREES = ("--in-flight", "3", "--draft", "5", "--draft-tree", "--late-stop")
ALL = ("--preempt", "0.02", "--fork", "0.2", "--tenants", "2", "--tails", "--verify-every", "50")
RING_PLACES = (
    ("--ring", "4", "--layout", "page-major", "--in-flight", "2"),
    ("--ring", "16", "--layout", "contiguous", "--in-flight", "3", "--late-stop"))
ALONE = (
    (("--in-flight", "2"), (runs.IN_FLIGHT,)), (("--in-flight", "3"), (runs.IN_FLIGHT,)),
    (("--in-flight", "3", "--late-stop"), (runs.IN_FLIGHT, runs.LATE)),
    (("--draft", "4"), (runs.DRAFTS,)), (("--draft", "6", "--draft-tree"), (runs.DRAFTS,)),
    (("--preempt", "0.03"), (runs.PREEMPT,)), (("--fork", "0.3"), (runs.FORKS,)),
    (("--tenants", "2"), (runs.TENANTS,)), (("--tails",), (runs.TAILS,)))


def generator_cells():
    forms = itertools.product(("gdn", "kda"), ("page-major", "contiguous"), ("fp32", "bf16"),
                              ("1", "16", "64"), (CHAINS, TREES))
    for kind, layout, state, page, flight in forms:
        wanted = [runs.IN_FLIGHT, runs.DRAFTS, runs.BOTH, runs.PREEMPT, runs.FORKS, runs.TENANTS]
        wanted += [runs.TAILS] if page != "1" else []
        wanted += [runs.LATE] if flight is TREES else []
        yield ("generator", ("--kind", kind, "--layout", layout, "--state", state, "--page", page,
                             *flight), ALL, wanted)
    forms = itertools.product(("gdn", "kda", "mamba2"), RING_PLACES, ("fp32", "bf16"),
                              ("1", "16", "64"))
    for kind, place, state, page in forms:
        ends = () if page != "1" else ("--decode-interval", "24")
        wanted = [runs.IN_FLIGHT, runs.PREEMPT, runs.FORKS, runs.TENANTS, runs.RINGS]
        form = ("--kind", kind, *place, "--state", state, "--page", page, *ends)
        yield "rings", form, ALL, wanted
    for arguments, wanted in ALONE:
        yield "generator", arguments, (), wanted


def trace_cells(folder):
    forms = (("--kind", "gdn", "--state", "fp32", "--layout", "page-major", *CHAINS),
             ("--kind", "kda", "--state", "bf16", "--layout", "contiguous", "--page", "1", *TREES),
             ("--kind", "kda", "--state", "fp32", "--layout", "page-major", "--scale", "64",
              *TREES))
    for path in sorted(pathlib.Path(folder).rglob("*.jsonl.zst")):
        for form in forms:
            # How much of the rest happens is for the trace to say.
            yield path.name, form, ("--trace", str(path), *ALL), (runs.IN_FLIGHT,)


def run_cell(arguments, wanted, options):
    requests = 240
    if "--trace" in arguments:
        requests = 100 if "--scale" in arguments else 300
    result = runs.replay(*arguments, "--no-cold", "--check", str(options.check), "--requests",
                         str(options.requests or requests))
    runs.assert_checked(result, least=options.check)
    runs.assert_happened(result, wanted)
    return result


def row(name, arguments, result, seconds):
    cached, check = result["cached"], result["check"]
    of_them = ", ".join(f"{count} {what}" for what, count in check["of_them"].items() if count)
    happened = (
        f"overlapped {cached['rows_overlapped']} rows",
        f"drafts {cached['drafts_accepted']} of {cached['drafts']}",
        f"preempted {cached['preempted_by_coin']}, resumed {cached['readmitted_hits']}",
        f"forked {cached['forked']}",
        f"across tenants {cached['tenant_hits']} (beyond {cached['tenant_leaks']})",
        f"tails {cached['tails_resumed']}")
    return (f"ok {name} {' '.join(arguments)}\n   {seconds:.0f} s; {', '.join(happened)}\n"
            f"   checked {check['checked']} ({of_them}): {check['differing_bits']} differing bits, "
            f"{check['kv_tokens']} of KV, {check['text_tokens']} of {check['text_checked']} tokens")


def try_cell(cell, options):
    """The result (None if it failed), and what to print."""
    name, arguments, more, wanted = cell
    begin = time.monotonic()
    try:
        result = run_cell((*arguments, *more), wanted, options)
    except AssertionError as problem:
        return None, f"NOT OK {name} {' '.join((*arguments, *more))} {problem}"
    return result, row(name, arguments, result, time.monotonic() - begin)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--traces", help="folder with traces")
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--check", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out")
    options = parser.parse_args()
    cells = list(generator_cells()) + list(trace_cells(options.traces) if options.traces else ())
    results = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for result, text in pool.map(lambda cell: try_cell(cell, options), cells):
            results += [result] if result else []
            print(text, flush=True)
            if options.out and result:
                with open(options.out, "a", encoding="utf-8") as out:
                    out.write(json.dumps(result) + "\n")
    checked = sum(result["check"]["checked"] for result in results)
    bits = sum(result["check"]["differing_bits"] for result in results)
    print(f"{len(results)} runs passed, {len(cells) - len(results)} failed; {checked} requests "
          f"checked, {bits} differing bits")
    return 0 if len(results) == len(cells) else 1


if __name__ == "__main__":
    sys.exit(main())
