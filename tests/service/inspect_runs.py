# SPDX-License-Identifier: Apache-2.0
"""inspect_runs.py PROGRAM CTL: what an operator asks a service and tells it, by the protocol and by
statecachectl: tree, explain, evict, pins, quotas. Ends in a line of counts."""
import json
import pathlib
import subprocess
import sys
import traceback

from wire import TINY, Client, Refused, Service, tokens

PROGRAM, CTL = sys.argv[1:3]
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def refused(name, function, *args, **words):
    try:
        result = function(*args, **words)
    except Refused as error:
        assert error.name == name, f"{name} expected: {error}"
        return error.text
    raise AssertionError(f"{name} expected, got {result}")


def key(*values, **words):
    return {"tokens": tokens(values), **words}


def write(client, *values, **words):
    data = bytes(client.info["file_bytes"])
    assert client.write(key(*values, **words), data) is True


def ctl(service, *words, code=0, text=False, stdin=None):
    """Runs statecachectl; the objects that it printed, or with `text` the text."""
    form = [] if text else ["--json"]
    done = subprocess.run([CTL, words[0], "--socket", service.path, *form,
                           *map(str, words[1:])], input=stdin, capture_output=True, timeout=60)
    assert done.returncode == code, (words, done)
    if text or code in (2, 3, 4):
        return (done.stdout + done.stderr).decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def lens(client, *values, **words):
    (answer,) = client.call("lookup", keys=[key(*values, **words)])
    return answer[1]


def numbers(first, count):
    return list(range(first, first + count))


@test
def tree__says_what_is_held_in_bounds():
    service = Service(PROGRAM)
    client = Client(service.path)
    assert client.call("tree") == {"more": False, "rows": []}
    prompt = numbers(1, 20)
    write(client, *prompt[:10])
    write(client, *prompt)
    write(client, *prompt[:10], *numbers(500, 5))
    got = client.call("tree")
    rows = got["rows"]
    assert not got["more"] and [row[:4] for row in rows[:1]] == [[0, 0, 10, 2]], rows
    assert sorted(row[1:3] for row in rows) == [[0, 10], [10, 15], [10, 20]], rows
    assert all(row[5] == 1 and row[4] == 0 and row[7] == [] for row in rows), rows
    assert rows[0][6] == tokens(prompt[:8])
    got = client.call("tree", key=key(*prompt[:11]), tokens=2)
    assert [row[1:3] for row in got["rows"]] == [[10, 20]] and got["rows"][0][6] == tokens([11, 12])
    assert client.call("tree", rows=1)["more"] and client.call("tree", depth=1)["more"]
    assert len(client.call("tree", rows=2)["rows"]) == 2
    assert client.call("tree", rows=0) == {"more": True, "rows": []}
    printed = ctl(service, "tree")
    assert len(printed) == 4 and printed[-1] == {"type": "end", "more": False}, printed
    assert printed[0]["tokens"] == prompt[:8] and printed[0]["state"], printed
    text = ctl(service, "tree", "--rows", 1, text=True)
    assert "0-10  state" in text and "... (10)" in text and "there is more" in text, text
    assert len(ctl(service, "tree", "--tokens", "1,2,3")) == 4
    (status, lease, *_), = client.call("acquire", keys=[key(*prompt, 7)], files=False)
    assert status == 0 and any(row["locked"] for row in ctl(service, "tree")[:-1])
    client.call("evict", states=10)
    client.call("release", leases=[lease])
    assert service.stop() == 0


@test
def tree__marks_separate_tenants():
    service = Service(PROGRAM)
    client = Client(service.path)
    prompt = numbers(1, 12)
    for tenant in ("shop", "bank"):
        write(client, *prompt, tenant=tenant)
    client.call("common", key=key(*prompt[:6]))
    write(client, *prompt, tenant="shop")
    rows = client.call("tree")["rows"]
    assert sorted((row[1], row[2], len(row[7])) for row in rows) == [
        (0, 6, 0), (0, 12, 1), (0, 12, 1), (6, 12, 1)], rows
    shop = client.call("tree", tenant="shop")["rows"]
    assert sorted(row[1:3] for row in shop) == [[0, 12], [6, 12]], shop
    assert client.call("tree", tenant="nobody")["rows"] == []
    assert len(ctl(service, "tree", "--tenant", "bank")) == 2
    assert service.stop() == 0


@test
def explain__names_the_difference_and_what_would_help():
    config = TINY + "[tenant shop]\nbytes = 1MiB\n"
    service = Service(PROGRAM, config)
    client = Client(service.path)
    prompt = numbers(1, 20)
    why = client.call("explain", key=key(*prompt))
    assert (why["reason"], why["match_len"], why["differs"]) == (1, 0, 1), why
    write(client, *prompt[:10])
    why = client.call("explain", key=key(*prompt))
    assert why["state_len"][0] == 10 and (why["match_len"], why["differs"]) == (10, 1), why
    other = prompt[:7] + [99] + prompt[8:]
    why = client.call("explain", key=key(*other))
    assert (why["differs"], why["match_len"]) == (2, 7), why
    assert (why["token_here"], why["token_there"]) == (99, 8), why
    text = ctl(service, "explain", "--tokens", ",".join(map(str, other)), text=True)
    assert "resumes      0 of 20" in text and "has 99, what is stored has 8" in text, text
    assert "to hit more" in text
    (printed,) = ctl(service, "explain", "--tokens-from", "-", stdin=json.dumps(other).encode())
    assert printed["differs"] == "token" and printed["token_there"] == 8, printed
    # what a tenant has written is no other's
    write(client, *numbers(300, 10), tenant="shop")
    why = client.call("explain", key=key(*numbers(300, 12), tenant="bank"))
    assert why["differs"] == 3 and why["tenant_there"] == "shop" and why["mark_here"], why
    text = ctl(service, "explain", "--tokens", "300,301,302,303", "--tenant", "bank", text=True)
    assert "that of tenant shop" in text and "stands at token 0" in text, text
    # beyond what may be resumed; evicted
    why = client.call("explain", key=key(*prompt[:10]))
    assert why["reason"] == 6 and why["beyond_len"] == 10, why
    write(client, *prompt[:10], *numbers(700, 5))
    client.call("evict", key=key(*prompt[:10], 700))
    client.call("evict", states=100)
    text = ctl(service, "explain", "--tokens", ",".join(map(str, prompt)), text=True)
    assert "resumes      0 of 20" in text, text
    assert service.stop() == 0


@test
def evict__a_prompt_a_tenant_or_all_from_every_tier():
    config = TINY + "disk_folder = @/store\ndisk_bytes = 64MiB\ndisk_file_bytes = 4MiB\n"
    service = Service(PROGRAM, config)
    client = Client(service.path)
    prompt = numbers(1, 20)
    write(client, *prompt[:10])
    write(client, *prompt)
    write(client, *numbers(600, 6))
    write(client, *prompt, tenant="shop")
    client.call("common", key=key(*prompt[:5]))
    write(client, *prompt, tenant="shop")
    for _ in range(2000):
        if client.call("status")["cache"]["transfers_alive"] == 0:
            break
    got = client.call("evict", key=key(*prompt[:11]))
    assert got["states"] == 1 and got["copies"] == 1 and got["held"] == 0, got
    assert lens(client, *prompt, 5)[0] == 10
    got = client.call("evict", tenant="shop")
    assert got["states"] == 2 and got["copies"] == 2, got
    assert lens(client, *prompt, 5, tenant="shop") == [0, 0, 0, 0]
    (status, lease, *_), = client.call("acquire", keys=[key(*prompt)], files=False)
    got = client.call("evict", all=True)
    assert got["states"] == 1 and got["copies"] >= 1 and got["held"] >= 1, got
    client.call("release", leases=[lease])
    assert ctl(service, "evict", "--all")[0]["states"] == 1
    status = client.call("status")
    assert status["cache"]["tier_records"] == 0 and status["cache"]["snapshots_alive"] == 0, status
    assert client.call("verify") == {"leases": 0}
    assert service.stop() == 0
    service.start()
    client = Client(service.path)
    assert lens(client, *prompt, 5) == [0, 0, 0, 0]
    assert service.stop() == 0


@test
def evict__by_the_command():
    service = Service(PROGRAM)
    client = Client(service.path)
    for at in range(4):
        write(client, *numbers(100 * at + 1, 5))
    write(client, *numbers(1, 5), tenant="shop")
    assert ctl(service, "evict", "--tokens", "1,2")[0]["states"] == 1
    assert ctl(service, "evict", "--tenant", "shop")[0]["states"] == 1
    assert ctl(service, "evict", "--states", 1)[0]["states"] == 1
    assert "2 states evicted" in ctl(service, "evict", "--all", text=True)
    assert service.stop() == 0


@test
def pins__are_made_listed_and_ended():
    service = Service(PROGRAM)
    client = Client(service.path)
    write(client, *numbers(1, 5))
    (pin,) = ctl(service, "pin", "--tokens", "1,2,3,4,5,6", "--seconds", 100)
    assert pin["len"] == 5 and pin["lease"]
    assert client.call("pins") == [[pin["lease"], 5, 100, "", True]]
    assert client.call("evict", all=True)["held"] == 1
    listed = ctl(service, "pins")
    assert listed[0]["lease"] == pin["lease"] and listed[0]["kept"], listed
    assert "100 s left" in ctl(service, "pins", text=True)
    assert ctl(service, "unpin", pin["lease"]) == [{"type": "unpinned"}]
    assert client.call("pins") == [] and ctl(service, "pins") == []
    assert "SC_ERR_STALE" in ctl(service, "unpin", pin["lease"], code=4)
    assert ctl(service, "pin", "--tokens", "9,9", "--seconds", 1, code=1)[0]["lease"] == 0
    client.call("pin", key=key(*numbers(1, 6)))
    assert "until its client goes" in ctl(service, "pins", text=True)
    assert service.stop() == 0


@test
def quota__is_shown_and_set():
    service = Service(PROGRAM)
    client = Client(service.path)
    write(client, *numbers(1, 5), tenant="shop")
    assert ctl(service, "quota", "shop")[0]["bytes_max"] == 0
    (now,) = ctl(service, "quota", "shop", "--bytes", "4KiB")
    assert now == {"type": "quota", "tenant": "shop", "bytes": 4096, "bytes_max": 4096,
                   "refused": 0}
    refused("SC_ERR_LIMIT", client.call, "write_begin", key=key(5, 6, tenant="shop"))
    assert ctl(service, "quota")[0]["refused"] == 1
    assert "4096 bytes of 4096, 1 writes refused" in ctl(service, "quota", "shop", text=True)
    assert service.stop() == 0


@test
def refused__what_is_wrong_and_who_may_not():
    config = TINY + "[tenant shop]\ntoken_file = @/shop\n"
    service = Service(PROGRAM, config, files={"shop": "the shop's own token\n"})
    client = Client(service.path)
    for words in ({}, {"states": 1, "all": True}, {"tenant": "a", "all": True}, {"tenant": ""},
                  {"tenant": "a" * 64}, {"key": key(1), "tenant": "a"}, {"what": 1},
                  {"key": {"tokens": b""}}, {"key": 3}, {"states": -1}):
        refused("SC_ERR_INVALID", client.call, "evict", **words)
    for words in ({"rows": 5000}, {"tokens": 65}, {"depth": "a"}, {"tenant": 3}, {"what": 1}):
        refused("SC_ERR_INVALID", client.call, "tree", **words)
    refused("SC_ERR_INVALID", client.call, "explain")
    refused("SC_ERR_INVALID", client.call, "explain", key=key(1), what=1)
    refused("SC_ERR_INVALID", client.call, "pins", what=1)
    bound = Client(service.path, token="the shop's own token")
    for method in ("tree", "explain", "pins", "evict"):
        refused("SC_ERR_DENIED", bound.call, method)
    assert client.call("evict", all=False, states=0) == {"states": 0, "copies": 0, "held": 0}
    for words in (("explain",), ("explain", "--tokens"), ("explain", "--tokens", "1,x"),
                  ("explain", "--tokens", ""), ("explain", "--tokens", "-1"), ("evict",),
                  ("evict", "--all", "--states", "1"), ("evict", "--tokens", "1", "--all"),
                  ("tree", "--rows", "5000"), ("tree", "--mark", "1:00", "--tokens", "1"),
                  ("tree", "--mark", "0:" + "0" * 32), ("tree", "word"), ("pin", "--tokens", "1"),
                  ("unpin",), ("unpin", "x"), ("quota", "--bytes", "5"), ("quota", "a", "b"),
                  ("quota", "a", "--bytes", "5XB"), ("pins", "x"), ("evict", "--all", "--what")):
        assert ctl(service, *words, code=2), words
    assert ctl(service, "explain", "--tokens-from", "/nowhere", code=3)
    done = subprocess.run([CTL, "tree", "--socket", "/nowhere"], capture_output=True, timeout=60)
    assert done.returncode == 3, done
    assert len(ctl(service, "tree", "--tokens", "1", "--mark", "0:" + "0f" * 16, "--adapter",
                   "3:4")) == 1
    assert service.stop() == 0


@test
def page__shows_what_the_commands_print():
    page = pathlib.Path(__file__).resolve().parents[2] / "docs" / "reference" / "statecachectl.md"
    shown = page.read_text(encoding="utf-8")
    service = Service(PROGRAM)
    client = Client(service.path)
    prompt = numbers(1, 20)
    write(client, *prompt[:10])
    write(client, *prompt)
    write(client, *prompt[:10], *numbers(500, 5))
    tree = ctl(service, "tree", text=True)
    assert f"```\n{tree}```" in shown, tree
    other = ",".join(map(str, prompt[:17] + [99] + prompt[18:]))
    why = ctl(service, "explain", "--tokens", other, text=True)
    assert f"```\n{why}```" in shown, why
    assert service.stop() == 0


def main():
    failed = 0
    for function in TESTS:
        try:
            function()
        except Exception:  # whatever it is, the others run
            failed += 1
            print("NOT OK", function.__name__)
            traceback.print_exc(file=sys.stdout)
    print(f"{len(TESTS) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
