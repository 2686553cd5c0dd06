# SPDX-License-Identifier: Apache-2.0
"""store_runs.py PROGRAM GOLDEN: runs `statecachectl store` on copies of the golden store."""
import fcntl
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
GOLDEN = pathlib.Path(sys.argv[2]) / "tier-1"
counts = {True: 0, False: 0}


def expect(good, what, shown=""):
    counts[bool(good)] += 1
    if not good:
        print("NOT OK", what)
        print("   ", shown)


def run(*words, code=0, stdin=None):
    """Runs it; the exit status must be `code`. Returns its standard output."""
    done = subprocess.run([PROGRAM, *map(str, words)], input=stdin, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=60)
    expect(done.returncode == code, f"{words}: exit {done.returncode}, {code} expected",
           (done.stdout + done.stderr)[-600:])
    if code:
        expect(done.stderr or code == 1, f"{words}: says what is wrong", done.stderr)
    return done.stdout


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def copy(folder, name):
    target = folder / name
    shutil.copytree(GOLDEN / "store", target)
    return target


def words_that_are_wrong(folder):
    store = copy(folder, "words")
    run(code=2)
    run("store", code=2)
    run("stor", "ls", store, code=2)
    run("store", "list", store, code=2)
    run("store", "ls", code=2)
    run("store", "ls", store, "more", code=2)
    run("store", "ls", store, "--quick", code=2)
    run("store", "dump", store, code=2)
    run("store", "dump", store, "x", code=2)
    run("store", "export", store, code=2)
    run("store", "export", store, "-", "--id", code=2)
    run("store", "import", store, "-", "--bytes-max", "12", code=2)
    run("store", "ls", folder / "nothing", code=3)
    expect(not (folder / "nothing").exists(), "ls makes no store")
    expect(b"usage:" in run("--help") and b"export" in run("store", "--help"), "--help")
    expect(run("--version").startswith(b"statecachectl 0."), "--version")


def what_it_shows(folder):
    store = copy(folder, "shows")
    rows = lines(run("store", "ls", store, "--json"))
    records = {row["id"]: row for row in rows if row["type"] == "record"}
    edges = [row for row in rows if row["type"] == "edge"]
    totals = rows[-1]
    expect(len(records) == 4 and len(edges) == 1, "four records and an edge", rows)
    expect(totals["type"] == "totals" and totals["record_count"] == 4, "totals", totals)
    place = {row["id"]: number for number, row in enumerate(rows[:-1])}
    for row in rows[:-1]:
        expect(row["parent"] is None or place[row["parent"]] < place[row["id"]],
               "parents come first", row)
    text = run("store", "ls", store).decode()
    expect(len(text.splitlines()) == 7 and "only an edge" in text, "ls for people", text)
    for ident, row in records.items():
        record = lines(run("store", "dump", store, ident, "--json", "--tokens"))[0]
        expect(len(record["tokens"]) == row["token_count"], "the whole key", record)
        expect(sum(shard["state_bytes"] + shard["kv_bytes"] for shard in record["shards"])
               == row["payload_bytes"], "bytes of shards", record)
        shown = run("store", "dump", store, ident).decode()
        expect(record["hash"] in shown, "dump for people", shown)
    sharded = [row for row in records.values() if row["shard_count"] == 2]
    expect(len(sharded) == 1 and sharded[0]["adapter_id"] == 9, "two shards", records)
    run("store", "dump", store, 77, code=4)


def whole_and_damaged(folder):
    store = copy(folder, "damaged")
    whole = lines(run("store", "verify", store, "--json"))[-1]
    expect(whole["fault_count"] == 0 and whole["record_count"] == 4, "a whole store", whole)
    expect(b"0 faults" in run("store", "verify", store), "verify for people")
    extents = store / "extent-00000.dat"
    data = bytearray(extents.read_bytes())
    data[100] ^= 1
    extents.write_bytes(data)
    rows = lines(run("store", "verify", store, "--json", code=1))
    expect(rows[0]["type"] == "fault" and "check" in rows[0]["text"], "the fault", rows)
    expect(rows[-1]["fault_count"] == 1, "one fault", rows)
    run("store", "verify", store, "--quick")
    # the damaged one is the parent of one with KV: that can never be used, either
    gone = lines(run("store", "gc", store, "--json"))[0]
    expect(gone["dropped_count"] == 2 and gone["freed_bytes"] > 0, "gc", gone)
    after = lines(run("store", "verify", store, "--json"))[-1]
    expect(after["record_count"] == 2 and after["fault_count"] == 0, "whole again", after)
    extents.write_bytes(extents.read_bytes()[:8192])
    run("store", "verify", store, code=1)
    data = (store / "data.mdb").read_bytes()
    (store / "data.mdb").write_bytes(data[:len(data) // 2])
    run("store", "ls", store, code=3)


def busy(folder):
    store = copy(folder, "busy")
    with open(store / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run("store", "ls", store, code=3)
    run("store", "ls", store)


def out_and_in(folder):
    store, golden = copy(folder, "out"), GOLDEN / "records.scex"
    run("store", "export", store, folder / "all.scex")
    expect((folder / "all.scex").read_bytes() == golden.read_bytes(),
           "an export is byte for byte that of version 1")
    expect(run("store", "export", store, "-") == golden.read_bytes(), "to standard output")
    said = lines(run("store", "import", folder / "new", golden, "--json"))[0]
    expect(said["record_count"] == 4 and said["left_out_count"] == 0, "import", said)
    totals = lines(run("store", "verify", folder / "new", "--json"))[-1]
    expect(totals["record_count"] == 4 and totals["fault_count"] == 0, "what came in", totals)
    run("store", "import", folder / "new", golden)  # once more changes nothing
    expect(lines(run("store", "ls", folder / "new", "--json"))[-1]["record_count"] == 4, "again")
    run("store", "import", folder / "piped", "-", stdin=golden.read_bytes())
    rows = lines(run("store", "ls", store, "--json"))
    child = next(row for row in rows if row["type"] == "record" and row["parent"] is not None
                 and row["token_count"] == 40)
    run("store", "export", store, folder / "one.scex", "--id", child["id"])
    said = lines(run("store", "import", folder / "one", folder / "one.scex", "--json"))[0]
    expect(said["record_count"] == 2, "one record with the one before it", said)
    run("store", "export", store, "-", "--id", 99, code=4)
    run("store", "export", store, folder / "no" / "such", code=4)


def bad_files(folder):
    data = (GOLDEN / "records.scex").read_bytes()
    for cut in range(0, len(data), 3989):
        (folder / "cut.scex").write_bytes(data[:cut])
        run("store", "import", folder / f"cut{cut}", folder / "cut.scex", code=4)
    for at in range(0, len(data) - 16, 4999):
        flipped = bytearray(data)
        flipped[at] ^= 0x40
        (folder / "flip.scex").write_bytes(flipped)
        run("store", "import", folder / f"flip{at}", folder / "flip.scex", code=4)
        if at > 8:
            run("store", "verify", folder / f"flip{at}")
    run("store", "import", folder / "none", folder / "none.scex", code=4)
    said = lines(run("store", "import", folder / "tiny", GOLDEN / "records.scex", "--json",
                     "--bytes-max", 8192, code=1))
    expect(said[0]["left_out_count"] > 0, "too small a budget", said)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for test in (words_that_are_wrong, what_it_shows, whole_and_damaged, busy, out_and_in,
                     bad_files):
            test(folder)
    print(f"{counts[True]} passed, {counts[False]} failed, 0 skipped")
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
