# SPDX-License-Identifier: Apache-2.0
"""replay_runs.py PROGRAM: runs `statecache-bench replay` as a user does and judges what it prints.

SC_TEST_SCALE (percent, as in the other tests) lowers the number of runs in sanitizer builds.
"""
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time

PROGRAM = sys.argv[1]
SCALE = int(os.environ.get("SC_TEST_SCALE", "100"))
SHORT = ["--system-len", "150"]
if SCALE < 100:  # a sanitizer build: seventeen times slower
    SHORT += ["--hidden", "16", "--heads", "1", "--head-dim", "8", "--attention-dim", "8", "--mlp",
              "16", "--vocab", "64", "--layers", "2", "--attention-every", "2"]
SMALL = ["--requests", "36", "--no-cold", *SHORT]
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def run(*arguments, code=0):
    """stdout of a run that must end with `code`."""
    done = subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=False)
    assert done.returncode == code, (f"exit status {done.returncode}, not {code}: "
                                     f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
    assert done.stdout or code, "nothing was printed"
    assert "\r" not in done.stderr, "a progress bar without a terminal"
    return done.stdout if code != 2 else done.stderr


def replay(*arguments, code=0):
    return json.loads(run("replay", "--json", *arguments, code=code))


def scaled(items, least):
    """All of `items`, or fewer in slow builds, evenly chosen."""
    items = list(items)
    wanted = max(least, len(items) * min(SCALE, 100) // 100)
    return items[::max(1, len(items) // wanted)]


def assert_checked(result, least=6):
    check = result["check"]
    assert check["checked"] >= least, check
    for name in ("differing_bits", "kv_tokens", "unsound_histories", "text_tokens"):
        assert check[name] == 0, check
    assert 0 < check["worst_output"] <= check["tolerance"], check
    assert 0 < check["worst_state"] <= check["tolerance"], check
    assert result["passed"] is True, result
    for name in ("kv_id_faults", "lookup_differs", "tenant_leaks"):
        assert result["cached"][name] == 0, result


def write_trace(folder, rows, name="trace.jsonl"):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    return path


def chat_trace(sessions=4, turns=4, io=False):
    """Sessions over one shared first block; ids are chained, blocks have 64 tokens."""
    rows, fresh = [], itertools.count(1)
    for session in range(sessions):
        ids = [0]
        for turn in range(turns):
            ids = ids + [next(fresh) for _ in range(2)]
            row = {"timestamp": 1000 * turn + session, "session": session,
                   "input_length": 64 * len(ids) + 10, "output_length": 70, "hash_ids": list(ids)}
            if io:
                ids = ids + [next(fresh)]
                row.update(io=1, hash_ids=list(ids))
            rows.append(row)
    return rows


@test
def usage_errors_end_with_2_and_a_reason():
    for arguments in ([], ["nonsense"], ["replay", "--nonsense"], ["replay", "word"],
                      ["replay", "--requests", "0"], ["replay", "--requests", "x"],
                      ["replay", "--requests", "5x"], ["replay", "--requests", "-1"],
                      ["replay", "--page", "99999999999"], ["replay", "--layout", "round"],
                      ["replay", "--save", "prompt,nothing"], ["replay", "--save", ""],
                      ["replay", "--chunk", "17"], ["replay", "--block", "16"],
                      ["replay", "--no-compute", "--check", "1"],
                      ["replay", "--heads", "2", "--v-heads", "3"], ["replay", "--hidden", "12"],
                      ["replay", "--attention-every", "9"], ["replay", "--temperature", "nan"],
                      ["replay", "--page", "16", "--decode-interval", "8"],
                      ["replay", "--in-flight", "4"], ["replay", "--in-flight", "0"],
                      ["replay", "--draft", "17"], ["replay", "--draft-tree"],
                      ["replay", "--draft-accept", "0.5"], ["replay", "--forks", "2"],
                      ["replay", "--fork", "1.5"], ["replay", "--preempt", "0.9"],
                      ["replay", "--tenants", "1"], ["replay", "--ring", "0"],
                      ["replay", "--ring", "65"], ["replay", "--ring", "4", "--draft", "2"],
                      ["replay", "--ring", "4", "--no-compute"], ["replay", "--lose-flush", "1"],
                      ["replay", "--compare-kernels", "0"],
                      ["replay", "--compare-kernels", "1", "--no-compute"],
                      ["replay", "--compare-kernels", "1", "--sabotage", "3"],
                      ["replay", "--trace", os.devnull], ["replay", "--trace", "/nowhere/trace"]):
        reason = run(*arguments, code=2)
        assert reason.strip(), arguments
        if len(arguments) == 3 and arguments[1] != "--trace":
            assert arguments[1] in reason, f"{arguments} are refused with {reason}"


@test
def help_names_every_option_and_code():
    assert "replay" in run("--help")
    text = run("replay", "--help")
    for word in ("--trace", "--check", "--sabotage", "--no-compute", "--kind", "Exit status"):
        assert word in text, word


@test
def a_device_serves_too_or_says_why_not():
    assert "host, cuda" in run("replay", "--backend", "nowhere", code=2)
    assert "mamba2" in run("replay", "--kind", "mamba2", "--draft", "2", code=2)
    done = subprocess.run([PROGRAM, "replay", "--json", *SMALL, "--check", "6", "--backend",
                           "cuda"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)
    if done.returncode == 77:
        assert "cuda" in done.stderr and not done.stdout, done
        return
    result = json.loads(done.stdout)
    assert result["backend"] == "cuda", result
    assert_checked(result)
    run("replay", "--backend", "cuda", "--draft", "2", code=2)
    run("replay", "--backend", "cuda", "--no-compute", code=2)


@test
def text_report_has_what_was_promised():
    text = run("replay", "--requests", "36", "--check", "3", *SHORT)
    for word in ("hit ", "ideal", "cold", "times less", "slots", "evicted", "not more", "KV pages",
                 "differing bits", "float64", "result      passed"):
        assert word in text, f"{word!r} is missing in\n{text}"


@test
def every_form_is_bit_equal_to_cold_runs():
    forms = itertools.product(("gdn", "kda", "mamba2"), ("contiguous", "page-major"),
                              ("fp32", "bf16"), ("1", "16"))
    for kind, layout, state, page in scaled(forms, 3):
        result = replay(*SMALL, "--check", "10", "--kind", kind, "--layout", layout, "--state",
                        state, "--page", page, "--verify-every", "7")
        assert_checked(result, least=10)
        for way in ("prompt end", "branch point", "decoded end"):
            assert result["check"]["resumed_at"][way] >= 2, result["check"]
        assert result["check"]["grid_snapshots"] > 0, result["check"]


@test
def odd_shapes_and_settings_are_bit_equal_too():
    for arguments in scaled((
            ("--page", "5"), ("--page", "48", "--chunk", "32"), ("--chunk", "64", "--page", "1"),
            ("--keep-cuts", "--budget", "37"), ("--decode-interval", "4", "--page", "1"),
            ("--heads", "3", "--v-heads", "6", "--head-dim", "16", "--hidden", "40", "--layers",
             "5", "--attention-every", "2"),
            ("--slots", "9"), ("--path-snapshots", "2"), ("--running", "1"),
            ("--temperature", "0")), 3):
        assert_checked(replay(*SMALL, "--check", "8", *arguments), least=8)


@test
def too_few_pages_preempt_and_change_no_bit():
    result = replay(*SMALL, "--check", "10", "--kv-pages", "540", "--page", "1", "--running", "16")
    assert_checked(result, least=10)
    assert result["cached"]["preempted"] > 0, result["cached"]
    assert result["cached"]["kv_pages_peak"] == 540, result["cached"]
    run("replay", *SMALL, "--kv-pages", "20", code=2)


def forget_times(result):
    """Leaves what does not depend on when, and on how many threads, a run was made."""
    for item in (result, result["cached"]):
        for name in [name for name in item if name.endswith("_s")]:
            del item[name]
    del result["params"]["threads"], result["utc"]


@test
def same_options_same_decisions_whatever_the_threads():
    results = [replay(*SMALL, "--check", "5", "--threads", threads) for threads in "113"]
    for result in results:
        forget_times(result)
    assert results[0] == results[1] == results[2]


# What a combination of options must have made happen: counts of the run, and of what was checked.
IN_FLIGHT = ("steps_overlapped", "rows_overlapped"), ("overlapped",)
DRAFTS = ("draft_rows", "drafts_accepted", "guessed_right"), ("drafted",)
BOTH = ("rows_uncertain",), ()
LATE = ("rows_late",), ()
PREEMPT = ("preempted_by_coin", "readmitted_hits"), ("preempted", "readmitted")
FORKS = ("forks", "forked", "forked_tokens"), ("forked",)
TENANTS = ("tenant_hits",), ("across tenants",)
TAILS = ("tails_handed", "tails_resumed"), ("inside a page",)
RINGS = ("ring_appends", "ring_flushes", "ring_folds", "ring_resumed"), ("on records",)
EVERYTHING = ("--preempt", "0.04", "--fork", "0.25", "--tenants", "2", "--tails")
HAPPENING = (
    (("--in-flight", "2"), (IN_FLIGHT,)),
    (("--in-flight", "3", "--draft", "3", "--late-stop"), (IN_FLIGHT, DRAFTS, BOTH, LATE)),
    (("--draft", "5", "--draft-tree", "--state", "bf16"), (DRAFTS,)),
    (("--preempt", "0.04", "--fork", "0.25"), (PREEMPT, FORKS)),
    (("--in-flight", "2", "--draft", "4", "--page", "1", *EVERYTHING),
     (IN_FLIGHT, DRAFTS, BOTH, PREEMPT, FORKS, TENANTS)),
    (("--in-flight", "3", "--draft", "4", "--draft-tree", "--kind", "kda", "--layout",
      "contiguous", *EVERYTHING), (IN_FLIGHT, DRAFTS, BOTH, PREEMPT, FORKS, TENANTS, TAILS)),
    (("--in-flight", "2", "--page", "64", "--kind", "kda", "--state", "bf16", "--slots", "40",
      *EVERYTHING), (IN_FLIGHT, PREEMPT, FORKS, TENANTS, TAILS)),
    (("--in-flight", "2", "--kind", "mamba2", "--page", "64", *EVERYTHING),
     (IN_FLIGHT, PREEMPT, FORKS, TENANTS, TAILS)))


def assert_happened(result, wanted):
    for counts, checked in wanted:
        for name in counts:
            assert result["cached"][name] > 0, (name, result["cached"])
        for name in checked:
            assert result["check"]["of_them"][name] > 0, (name, result["check"])


@test
def what_overlapped_schedulers_do_changes_no_bit():
    for arguments, wanted in scaled(HAPPENING, 3):
        result = replay(*SMALL, "--requests", "48", "--check", "20", "--verify-every", "7",
                        *arguments)
        assert_checked(result, least=20)
        assert result["check"]["text_checked"] > 100, result["check"]
        assert_happened(result, wanted)
        if "--draft" in arguments: # texts come from the model, whatever the drafts
            cached = result["cached"]
            assert cached["guessed"] >= 48, cached
            assert cached["guessed_right"] >= 0.9 * cached["guessed"], cached
            assert cached["drafts_accepted"] < cached["drafts"], cached


# Ends with records on top: inside a page, or where no decoded state is saved.
RINGED = (
    (("--ring", "4", "--kind", "kda", "--in-flight", "2", *EVERYTHING), (IN_FLIGHT, TAILS)),
    (("--ring", "7", "--kind", "mamba2", "--page", "64", "--state", "bf16", "--layout",
      "contiguous", "--slots", "40", *EVERYTHING), (TAILS,)),
    (("--ring", "16", "--in-flight", "3", "--late-stop", "--save", "prompt,branch,end",
      "--page", "5", "--state", "bf16", *EVERYTHING), (IN_FLIGHT, LATE)),
    (("--ring", "64", "--decode-interval", "9", "--page", "1", "--fork", "0.3", "--preempt",
      "0.04"), ()))


@test
def rings_change_no_bit_of_what_their_history_says():
    for arguments, wanted in scaled(RINGED, 2):
        result = replay(*SMALL, "--requests", "48", "--check", "20", "--verify-every", "7",
                        *arguments)
        assert_checked(result, least=20)
        assert_happened(result, (RINGS, PREEMPT, FORKS, *wanted))
        assert 0 < result["check"]["worst_ring"] <= result["check"]["tolerance"], result["check"]
    with tempfile.TemporaryDirectory() as folder:  # states from below lie on flushed positions
        options = [*TIERED, "--disk", folder + "/tier", "--check", "12", "--preempt", "0.02",
                   "--requests", "80", "--tenants", "2"]
        assert_tiers(replay(*options, "--ring", "4"), "device", "host")
        again = replay(*options, "--ring", "4")
        assert_tiers(again, "device", "disk")
        assert again["tiers"]["loaded"] > 20, again["tiers"]
        for other in (("--ring", "5"), ()):  # whose states have other bits
            result = replay(*options, *other)
            assert_tiers(result, "device")
            assert result["tiers"]["loaded"] == 0, result["tiers"]


@test
def a_flush_that_is_lost_is_noticed():
    for number in scaled(("1", "5"), 1):
        result = replay(*SMALL, "--requests", "16", "--ring", "4", "--lose-flush", number, code=1)
        assert result["check"]["output_bits"] > 0 and not result["passed"], result["check"]
        assert result["check"]["unsound_histories"] == 0, result["check"]
    run("replay", *SMALL, "--ring", "4", "--lose-flush", "999999", code=2)


@test
def without_a_ring_there_is_no_trace_of_one():
    plain = replay(*SMALL, "--check", "4")
    assert not any(plain["cached"][name] for name in plain["cached"] if "ring_" in name), plain
    assert plain["check"]["worst_ring"] == 0 and plain["params"]["ring"] == 0, plain
    assert "rings " not in run("replay", *SMALL)
    ringed = replay(*SMALL, "--check", "4", "--ring", "8")
    assert ringed["cached"]["ring_bytes"] > 0, ringed["cached"]
    assert ringed["cached"]["slot_bytes"] == plain["cached"]["slot_bytes"], (plain, ringed)


@test
def drafts_do_not_change_how_much_is_computed_for_a_text():
    wrong = replay(*SMALL, "--draft", "3", "--draft-accept", "0")["cached"]
    right = replay(*SMALL, "--draft", "3", "--draft-accept", "1")["cached"]
    assert wrong["drafts_accepted"] == 0 and wrong["drafts"] > 0, wrong
    assert right["drafts_accepted"] >= 0.9 * right["drafts"] > 0, right
    assert wrong["output_tokens"] == right["output_tokens"], (wrong, right)
    assert right["rows"] < wrong["rows"], (wrong, right)


@test
def overlapped_runs_repeat_and_too_few_pages_preempt_there_too():
    options = [*SMALL, "--check", "6", "--in-flight", "3", "--draft", "3", "--kv-pages", "560",
               "--page", "1", "--running", "16", "--fork", "0.3", "--tenants", "2"]
    results = [replay(*options, "--threads", threads) for threads in "12"]
    for result in results:
        assert_checked(result, least=6)
        assert result["cached"]["preempted"] > 0, result["cached"]
        forget_times(result)
    assert results[0] == results[1]
    dry = replay("--no-compute", "--requests", "60", "--running", "4", "--in-flight", "2",
                 "--draft", "2", *EVERYTHING)["cached"]
    for name in ("rows_uncertain", "drafts_accepted", "readmitted_hits", "forked", "tenant_hits"):
        assert dry[name] > 0, (name, dry)


@test
def sabotage_is_noticed():
    for seed in scaled(range(1, 21), 3):
        result = replay(*SMALL, "--sabotage", str(seed), code=1)
        assert result["check"]["snapshot_bits"] == 1, result["check"]
        assert result["passed"] is False and result["check"]["sabotaged"], result
    for seed in scaled(range(1, 6), 1):
        result = replay(*SMALL, "--sabotage", str(seed), "--in-flight", "3", "--draft", "3",
                        *EVERYTHING, code=1)
        assert result["check"]["snapshot_bits"] == 1, result["check"]
        assert result["passed"] is False and result["check"]["sabotaged"], result
    run("replay", "--requests", "1", "--sabotage", "1", code=2)


@test
def the_cache_is_worth_it():
    result = replay("--requests", "100", *SHORT, "--system-len", "400")
    cached, cold = result["cached"], result["cold"]
    assert cached["hit_percent"] >= 0.95 * result["ideal_end_branch_percent"], result
    assert cold["hit_tokens"] == 0 and cold["computed_tokens"] == (
        cold["prompt_tokens"] + cold["output_tokens"]), cold
    assert cached["computed_tokens"] + cached["hit_tokens"] == cold["computed_tokens"], result
    assert cold["computed_tokens"] > 3 * cached["computed_tokens"], result
    assert sum(cached["reasons"].values()) == cached["requests"] + cached["preempted"], cached


@test
def kernels_are_compared_over_the_same_work():
    small = ("--compare-kernels", "2", "--requests", "6", "--heads", "1", "--v-heads", "2",
             "--head-dim", "32", "--slots", "16", "--system-len", "60", "--check", "2")
    text = run("replay", *small)
    lines = [line for line in text.splitlines() if "medians of 2" in line]
    assert [line.split()[0] for line in lines] == ["reference", "fast"], text
    assert all(" 0 differing bits in 2 requests" in line for line in lines), text
    assert lines[0].split(";")[1] == lines[1].split(";")[1], text  # tokens computed and decoded
    result = replay(*small)
    assert result["differing_bits"] == 0 and result["computed_tokens"] > 0, result
    assert min(result[key] for key in ("wall_reference", "wall_fast", "cpu_reference",
                                       "cpu_fast")) > 0, result


@test
def dry_replay_reaches_the_ideal():
    with tempfile.TemporaryDirectory() as folder:
        for io in (False, True):
            trace = write_trace(folder, chat_trace(io=io))
            for save, ideal in (("end", "ideal_end_percent"),
                                ("end,branch", "ideal_end_branch_percent")):
                result = replay("--no-compute", "--trace", trace, "--save", save)
                assert result["passed"] is True
                assert abs(result["cached"]["hit_percent"] - result[ideal]) < 1e-9, result
            assert result["ideal_end_branch_percent"] > result["ideal_end_percent"] > 30, result
    for page in ("1", "16"):
        result = replay("--no-compute", "--page", page, "--requests", "60")
        assert result["cached"]["hit_percent"] > 0.95 * result["ideal_end_branch_percent"]


@test
def traces_are_served_and_checked():
    with tempfile.TemporaryDirectory() as folder:
        turns = [{"session": str(s), "timestamp": 50 * s, "turns": [
            {"input_length": 90, "output_length": 9}, {"input_length": 20, "output_length": 5,
                                                       "delay": 10}]} for s in range(6)]
        chats = [{"chat_id": i, "parent_chat_id": i - 1 if i % 3 else -1, "timestamp": i / 2,
                  "input_length": 16 * (i % 3 + 2) + 3, "output_length": 4, "type": "text",
                  "turn": i % 3 + 1, "hash_ids": [0] + [100 * (i // 3) + j for j in
                                                        range(i % 3 + 2)]} for i in range(12)]
        for rows in (turns, chats, chat_trace(), chat_trace(io=True)):
            trace = write_trace(folder, rows)
            result = replay("--trace", trace, "--no-cold", "--check", "8", *SHORT)
            assert_checked(result, least=8)
            assert result["check"]["resumed_at"]["nothing"] <= 4, result["check"]
        trace = write_trace(folder, chat_trace())
        run("replay", "--trace", trace, "--page", "5", code=2)
        result = replay("--trace", trace, "--no-cold", "--check", "8", *SHORT, "--in-flight", "2",
                        "--draft", "2", "--page", "1", *EVERYTHING)
        assert_checked(result, least=8)
        assert_happened(result, (IN_FLIGHT, DRAFTS, BOTH, FORKS))
        run("replay", "--trace", trace, "--scale", "24", code=2)
        run("replay", "--trace", trace, "--scale", "128", code=2)


# A pool of 8 slots and 16 states in host memory; the prompts want some hundreds.
TIERED = ["--slots", "8", "--running", "2", "--host-slots", "16", "--kv-pages", "600", "--no-cold",
          "--requests", "120", *SHORT]


def assert_tiers(result, *names):
    assert_checked(result, least=8)
    for name in names:
        assert result["tiers"][name]["resumed"] > 0, result["tiers"]
    assert result["tiers"]["failed"] == 0, result["tiers"]


@test
def hits_come_from_each_tier():
    with tempfile.TemporaryDirectory() as folder:
        options = [*TIERED, "--disk", folder + "/tier", "--check", "12"]
        first = replay(*options)
        assert_tiers(first, "device", "host", "disk")
        assert first["tiers"]["loaded"] == 0, first["tiers"]
        again = replay(*options)
        assert_tiers(again, "device", "host", "disk")
        assert again["tiers"]["loaded"] > 20, again["tiers"]
        assert again["cached"]["hit_tokens"] > first["cached"]["hit_tokens"], again["cached"]
        twice = [replay(*TIERED, "--disk", f"{folder}/{name}") for name in "ab"]
        for result in twice:  # the same decisions, however long transfers take
            for name in ("compute_s", "cpu_s", "library_s", "wall_s"):
                del result["cached"][name]
        assert twice[0]["cached"] == twice[1]["cached"], twice
        tails = replay(*TIERED, "--disk", folder + "/tails", "--check", "8", "--tails",
                       "--in-flight", "2", "--preempt", "0.02", "--disk-write", "back",
                       "--host-write", "selective", "--policy", "lru")
        assert_tiers(tails, "device", "host")
    run("replay", "--disk-bytes", "1000000", code=2)
    run("replay", "--disk-write", "back", code=2)
    run("replay", "--host-write", "back", code=2)
    run("replay", "--disk", "/nowhere/at/all", code=2)
    run("replay", "--host-slots", "4", "--host-write", "sometimes", code=2)


@test
def a_killed_run_leaves_hits_for_the_next():
    with tempfile.TemporaryDirectory() as folder:
        options = [*TIERED, "--disk", folder + "/tier"]
        wait_s, loaded = 0.5, 0
        while loaded == 0:  # killed too early: nothing was on disk
            with subprocess.Popen([PROGRAM, "replay", *options, "--requests", "2000"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                time.sleep(wait_s)
                assert process.poll() is None, "it ended before it was killed"
                process.kill()
            wait_s *= 2
            assert wait_s < 100, "nothing is on disk after a minute"
            result = replay(*options, "--check", "12")
            loaded = result["tiers"]["loaded"]
            assert_tiers(result, "device")
        assert result["tiers"]["disk"]["resumed"] > 0, result["tiers"]
        assert result["tiers"]["disk"]["read"] > 0, result["tiers"]


def main():
    failed = 0
    tests = TESTS
    if SCALE < 100:  # a sanitizer build: each way through the code once, not every combination
        tests = [usage_errors_end_with_2_and_a_reason, text_report_has_what_was_promised,
                 too_few_pages_preempt_and_change_no_bit, sabotage_is_noticed,
                 what_overlapped_schedulers_do_changes_no_bit, hits_come_from_each_tier,
                 rings_change_no_bit_of_what_their_history_says, a_flush_that_is_lost_is_noticed,
                 a_killed_run_leaves_hits_for_the_next]
    for function in tests:
        try:
            function()
            print("ok", function.__name__, flush=True)
        except AssertionError as problem:
            failed += 1
            print("NOT OK", function.__name__, problem, flush=True)
    print(f"{len(tests) - failed} passed, {failed} failed, {len(TESTS) - len(tests)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
