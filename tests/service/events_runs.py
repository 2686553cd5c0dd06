# SPDX-License-Identifier: Apache-2.0
"""events_runs.py PROGRAM CTL [TEST...]: what statecached publishes; consumers who miss some of it.

Ends in a line of counts; status 77 without pyzmq and msgpack.
"""
import os
import json
import random
import signal
import subprocess
import sys
import time
import traceback

try:
    import msgpack
    import zmq
    from subscriber import Consumer, state_hash, tenant_mark
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

from wire import TINY, Client, Refused, Service, tokens

PROGRAM, CTL = sys.argv[1], sys.argv[2]
TESTS = {}
EVENTS = """events_publish = ipc://@/publish
events_replay = ipc://@/replay
"""


def test(function):
    TESTS[function.__name__] = function
    return function


def start(more="", config=TINY, words=()):
    service = Service(PROGRAM, config + EVENTS + more, words)
    assert service.process.poll() is None, service.text()
    return service, Client(service.path)


def consumer(service, **words):
    return Consumer(f"ipc://{service.folder}/publish", f"ipc://{service.folder}/replay", **words)


def joined(service, **words):
    """A consumer that has all from the beginning."""
    new = consumer(service, **words)
    new.replay(0)
    return new


def key(values, **words):
    return {"tokens": tokens(values), **words}


def fill(client, seed):
    count = client.info["file_bytes"]
    return bytes((seed + at) % 251 for at in range(256)) * (count // 256)


def write(client, values, seed=1, **words):
    """True: it is there now."""
    for _ in range(4000):
        try:
            return client.write(key(values, **words), fill(client, seed)) is not False
        except Refused as error:
            assert error.name == "SC_ERR_NO_SLOT", error
            time.sleep(0.002)
    raise TimeoutError


def quiet(client):
    """Nothing is on its way to or from a tier."""
    for _ in range(4000):
        status = client.call("status")
        if status["cache"]["transfers_alive"] == 0 and status["service"]["workers_busy"] == 0:
            return status
        time.sleep(0.002)
    raise TimeoutError


class Known:
    """Every key that was written, its hash by our own account, and whether the service has it."""

    def __init__(self, client):
        self.client, self.keys = client, {}

    def write(self, values, marks=(), adapter=(0, 0), tenant=None, **words):
        values = tuple(values)
        words.update({"marks": [list(mark) for mark in marks]} if marks else {})
        words.update({"adapter": list(adapter)} if adapter != (0, 0) else {})
        words.update({"tenant": tenant} if tenant else {})
        all_marks = [(0, tenant_mark(tenant))] if tenant else []
        name = "%d/%d" % adapter if adapter != (0, 0) else ""
        state = state_hash(values, 16, all_marks + list(marks), name)
        self.keys[state] = key(values, len_max=len(values), **words)
        write(self.client, values, len(values), **words)
        return state

    def there(self, tier):
        """Hashes of what a look-up finds in the tier: of lower ones, what the device has not."""
        found, states = set(), list(self.keys)
        for at in range(0, len(states), 64):
            part = states[at:at + 64]
            answers = self.client.call("lookup", keys=[self.keys[state] for state in part])
            for state, answer in zip(part, answers):
                assert answer[0] == 0, answer
                if answer[1][tier] == len(self.keys[state]["tokens"]) // 4:
                    found.add(state)
        return found


def settle(client, consumers):
    """Nothing is on its way, and each consumer has all that was published."""
    for _ in range(200):
        before = quiet(client)["events"]
        time.sleep(0.01)                       # longer than changes are gathered
        now = quiet(client)["events"]
        if before != now:
            continue
        for one in consumers:
            one.until(lambda one: one.last >= now["batches"] - 1)
        if client.call("status")["events"]["batches"] == now["batches"]:
            return
    raise TimeoutError


def same(known, consumers):
    """Each consumer has exactly what there is."""
    settle(known.client, consumers)
    known_device = known.there(0)
    for one in consumers:
        one.until(lambda one: one.there("GPU") == known_device)
        for state in known_device:
            data = known.keys[state]["tokens"]
            assert tokens(one.tokens[state]) == data, state


# ---- form

@test
def form__a_state_is_told_as_published():
    for form, kind in (("map", dict), ("array", list)):
        service, client = start(f"events_block = 4\nevents_form = {form}\n",
                                words=["--set", "events_topic=kv@a@b"])
        one = joined(service)
        assert one.last == 0 and one.topics and one.events == [{"type": "AllBlocksCleared"}]
        raw = one.context.socket(zmq.SUB)
        raw.setsockopt_string(zmq.SUBSCRIBE, "kv@")
        raw.connect(f"ipc://{service.folder}/publish")
        time.sleep(0.2)
        assert write(client, [1, 2, 3, 4])
        one.until(lambda one: len(one.events) == 2)
        assert client.call("evict", states=1)
        one.until(lambda one: len(one.events) == 3)
        assert raw.poll(10000)
        frames = raw.recv_multipart()
        assert frames[:2] == [b"kv@a@b", b"\0\0\0\0\0\0\0\1"], frames
        batch = msgpack.unpackb(frames[2])
        assert abs(batch[0] - time.time()) < 60 and batch[2] == 0
        assert one.forms == {kind}, one.forms
        stored, removed = one.events[1:]
        assert stored["block_hashes"] == [9561501211280363793] == [state_hash([1, 2, 3, 4], 4)]
        assert stored["token_ids"] == [1, 2, 3, 4] and stored["block_size"] == 4
        assert stored["medium"] == "GPU" and stored["group_idx"] == 1
        assert removed == {"type": "BlockRemoved", "block_hashes": [9561501211280363793],
                           "medium": "GPU", "group_idx": 1}
        if form == "map":
            assert list(stored) == ["type", "block_hashes", "parent_block_hash", "token_ids",
                                    "block_size", "lora_id", "medium", "lora_name", "group_idx",
                                    "kv_cache_spec_kind"], stored
        else:
            assert len(batch[1][0]) == 12 and batch[1][0][11] is None, batch
        raw.close(0)
        one.close()
        assert service.stop() == 0, service.text()


@test
def form__names_and_numbers_are_configured():
    service, client = start("events_media = A B C\nevents_group = 3\nevents_rank = 2\n"
                            "events_replay_form = plain\n")
    assert write(client, range(20))
    one = consumer(service)
    replies = one.ask(0)
    while len(replies) < 2:
        replies = one.ask(0)
    assert not one.topics
    batch = msgpack.unpackb(replies[1][1])
    assert batch[2] == 2 and batch[1][0]["group_idx"] == 3 and batch[1][0]["medium"] == "A", batch
    assert service.stop() == 0


@test
def form__bad_configurations_are_refused():
    for more, text in (("events_media = A B\n", "events_media: three names"),
                       ("events_form = xml\n", "events_form: 'xml' is none of"),
                       ("events_block = 0\n", "events_block: '0' is no number")):
        service = Service(PROGRAM, TINY + EVENTS + more)
        assert service.process.wait(20) == 3 and text in service.text(), service.text()
    service = Service(PROGRAM, TINY + "events_replay = ipc://@/replay\n")
    assert service.process.wait(20) == 3 and "without events_publish" in service.text()
    for address in ("nonsense", "tcp://999.1.1.1:*", "ipc:///no/such/folder/x"):
        service = Service(PROGRAM, TINY + f"events_publish = {address}\n")
        assert service.process.wait(20) == 1 and "events.failed" in service.text(), service.text()


@test
def form__tcp_and_a_reload():
    service = Service(PROGRAM, TINY, ["--set", "events_publish=@tcp://127.0.0.1:*",
                                      "--set", "events_replay=tcp://127.0.0.1:*"])
    assert service.process.poll() is None, service.text()
    client = Client(service.path)
    addresses = [line.split("=")[1].split()[0] for line in service.text().splitlines()
                 if "events.open" in line]
    assert len(addresses) == 2 and all(text.startswith("tcp://127.0.0.1:") for text in addresses)
    one = Consumer(*addresses)
    one.replay(0)
    write(client, range(30))
    one.until(lambda one: len(one.there("GPU")) == 1)
    service.file.write_text(service.file.read_text() + "events_rank = 7\n")
    service.process.send_signal(1)
    service.wait_for("text=this needs a restart: events_rank")
    assert service.stop() == 0


# ---- consumers

def traffic(known, rng, count, talks):
    """Conversations that grow and branch; tenants, images, adapters; evictions."""
    for _ in range(count):
        what = rng.randrange(10)
        if what == 0:
            known.client.call("evict", states=rng.randrange(1, 4))
            continue
        words = talks[rng.randrange(len(talks))]
        base = words["values"]
        if rng.randrange(4) == 0:
            base = base[:rng.randrange(len(base) + 1)]
        values = base + [rng.randrange(-5, 150000) for _ in range(rng.randrange(1, 40))]
        known.write(values, words["marks"], words["adapter"], words["tenant"])
        if len(values) < 400:
            words["values"] = values


def new_talks():
    image = (3, bytes(range(16)))
    return [{"values": [7] * 20, "marks": (), "adapter": (0, 0), "tenant": None},
            {"values": [1, 2, 3], "marks": (), "adapter": (0, 0), "tenant": None},
            {"values": [1, 2, 3, 4], "marks": (image,), "adapter": (0, 0), "tenant": None},
            {"values": [1, 2, 3], "marks": (), "adapter": (7, 3), "tenant": None},
            {"values": [1, 2, 3], "marks": (), "adapter": (0, 0), "tenant": "a"},
            {"values": [1, 2, 3, 4], "marks": (image,), "adapter": (0, 0), "tenant": "b"}]


@test
def consumers__rebuild_what_is_there_whatever_they_missed():
    for form, seed in (("map", 1), ("array", 2)):
        service, client = start(f"events_form = {form}\nhost_bytes = 2MiB\nevents_buffer = 40\n"
                                "slots = 24\n", TINY.replace("slots = 16\n", ""))
        rng, known, talks = random.Random(seed), Known(client), new_talks()
        one, other = joined(service), joined(service)
        for turn in range(6):
            traffic(known, rng, 30, talks)
            if turn == 2:
                other.skip = 5         # a dropped range, still kept
            if turn == 4:
                other.poll()
                other.skip = 1000      # one that is longer than what is kept
                traffic(known, rng, 80, talks)
                other.poll(0.3)
                other.skip = 0
            quiet(client)
            write(client, [turn + 10 ** 6])  # so that a gap shows
            known.keys[state_hash([turn + 10 ** 6])] = key([turn + 10 ** 6], len_max=1)
            late = joined(service)
            same(known, [one, other, late])
            for each in (other, late):
                each.until(lambda each: each.copies == one.copies or one.poll(0) < 0)
            late.close()
        assert other.gaps >= 2 and one.gaps == 0, (one.gaps, other.gaps)
        assert one.there("CPU"), "something went down a tier"
        client.call("evict", states=1000)
        quiet(client)
        same(known, [one, other])
        one.until(lambda one: not one.there("GPU") and one.there("CPU") == known.there(1))
        client.call("namespace_drop", id=7, generation=3)
        same(known, [one, other])
        one.until(lambda one: one.there("CPU") == known.there(1))
        status = client.call("status")["events"]
        assert status["pictures"] >= 2 and status["copies"] == sum(one.copies.values()), status
        assert status["lost"] == 0 and client.call("verify") == {"leases": 0}
        for each in (one, other):
            each.close()
        assert service.stop() == 0, service.text()


@test
def consumers__who_joins_late_gets_the_whole():
    service, client = start("events_buffer = 3\n")
    known = Known(client)
    for count in range(1, 15):
        known.write(range(count * 10))
        time.sleep(0.003)
    client.call("evict", states=3)
    one = consumer(service)
    here = len(known.there(0))
    one.until(lambda one: client.call("status")["events"]["copies"] == here)
    newest = client.call("status")["events"]["batches"] - 1
    replies = one.ask(0)
    assert replies[-1][0] == newest and 1 <= len(replies) <= 3, replies
    one.replay(0)
    assert one.events[0] == {"type": "AllBlocksCleared"}, "what was known is over"
    assert one.there("GPU") == known.there(0)
    assert one.ask(newest + 1) == [] and one.ask(2 ** 63) == []
    same(known, [one])
    known.write(range(7))
    same(known, [one])
    one.close()
    assert service.stop() == 0


@test
def consumers__bad_requests_are_no_answer_and_no_harm():
    service, client = start()
    one = joined(service)
    with one.context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(one.replay_address)
        for frames in ([b""], [b"", b"1234567"], [b"", b"123456789"], [b"x", b"12345678"],
                       [b"", b"12345678", b""], [b"", b"x" * 900], [b"a"] * 20):
            socket.send_multipart(frames)
        assert not socket.poll(300), socket.recv_multipart()
    with one.context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(one.replay_address)
        socket.send(bytes(8))
        assert socket.poll(5000) and len(socket.recv_multipart()) == 3
    assert client.call("status")["events"]["refused"] >= 7
    known = Known(client)
    known.write(range(5))
    same(known, [one])
    assert service.stop() == 0


@test
def consumers__a_slow_one_harms_nobody():
    service, client = start("events_queue = 16\nevents_buffer_bytes = 1MiB\n")
    known = Known(client)
    one, slow = joined(service), consumer(service, queue=1)
    stalled = one.context.socket(zmq.DEALER)   # asks again and again and reads nothing
    stalled.setsockopt(zmq.RCVHWM, 1)
    stalled.connect(one.replay_address)
    time.sleep(0.2)
    begin = time.monotonic()
    for turn in range(120):
        known.write([turn] + list(range(3000)))
        stalled.send_multipart([b"", bytes(8)])
        one.poll(0.0)
    took = time.monotonic() - begin
    with open(f"/proc/{service.process.pid}/statm", encoding="ascii") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    same(known, [one])
    assert resident < 200 << 20, resident
    assert took < 30, took
    slow.replay(0)
    same(known, [slow])                        # it comes back all the same
    stalled.close(0)
    begin = time.monotonic()
    assert service.stop() == 0 and time.monotonic() - begin < 10


@test
def consumers__a_restart_begins_anew_with_what_is_on_disk():
    service, client = start("disk_folder = @/store\ndisk_bytes = 64MiB\ndisk_file_bytes = 4MiB\n")
    known = Known(client)
    one = joined(service)
    for turn in range(5):
        known.write(range(turn * 20 + 5), tenant="a" if turn & 1 else None)
    quiet(client)
    one.until(lambda one: len(one.there("STORAGE")) == 5)
    disk = one.there("STORAGE")
    assert disk == set(known.keys)
    assert service.stop() == 0, service.text()
    one.poll(0.2)
    assert one.events[-1] == {"type": "AllBlocksCleared"} and not one.copies
    service.start()
    client = Client(service.path)
    two = joined(service)
    two.until(lambda two: two.there("STORAGE") == disk)
    assert two.events[0] == {"type": "AllBlocksCleared"} and two.there("GPU") == set()
    known.client = client
    for state in disk:                         # and a restore is told
        (item,) = client.call("acquire", keys=[known.keys[state]], files=False)
        client.call("release", leases=[item[1]])
        two.until(lambda two: state in two.there("GPU"))
    same(known, [two])
    assert service.stop() == 0


@test
def consumers__a_queue_that_overflows_is_made_good():
    service, client = start("events_bytes = 4KiB\nkey_tokens = 512\nslots = 300\n",
                            TINY.replace("slots = 16\n", ""))
    known, one = Known(client), joined(service)
    for turn in range(250):
        known.write([turn, 5, 5])
    same(known, [one])
    client.call("evict", states=240)           # more changes at once than there is room for
    same(known, [one])
    assert client.call("status")["events"]["lost"] == 1
    assert {"type": "AllBlocksCleared"} in one.events[1:]
    assert service.stop() == 0


# ---- statecachectl events tail

def tail(service, *words):
    return subprocess.run([CTL, "events", "tail", f"ipc://{service.folder}/publish", *words],
                          capture_output=True, text=True, timeout=60)


@test
def tail__says_what_was_and_what_comes():
    for form in ("map", "array"):
        service, client = start(f"events_form = {form}\nevents_buffer = 2\n")
        known, ask = Known(client), ("--replay", f"ipc://{service.folder}/replay")
        for count in (10, 30, 50):
            known.write(range(count), adapter=(7, 3))
            settle(client, [])
        said = tail(service, *ask, "--count", "4")
        assert said.returncode == 0 and said.stderr == "", said
        lines = said.stdout.splitlines()
        assert len(lines) == 4 and "AllBlocksCleared" in lines[0], said.stdout
        first = "%016x" % min(known.keys, key=lambda state: len(known.keys[state]["tokens"]))
        assert f"BlockStored  GPU {first}  10 tokens" in lines[1], lines
        assert f"20 tokens behind {first}  adapter 7/3" in lines[2], lines
        rows = [json.loads(row) for row in tail(service, *ask, "--json", "--count", "4")
                .stdout.splitlines()]
        assert [row["type"] for row in rows] == ["AllBlocksCleared"] + 3 * ["BlockStored"]
        assert [row.get("tokens") for row in rows] == [None, 10, 20, 20], rows
        assert {row["hashes"][0] for row in rows[1:]} == {"%016x" % state for state in known.keys}
        later = subprocess.Popen([CTL, "events", "tail", f"ipc://{service.folder}/publish", *ask],
                                 stdout=subprocess.PIPE, text=True)
        for _ in range(4):
            later.stdout.readline()
        client.call("evict", states=1)
        assert "BlockRemoved  GPU" in later.stdout.readline()
        later.send_signal(signal.SIGINT)
        assert later.wait(20) == 0
        assert service.stop() == 0


@test
def tail__bad_words_and_publishers_of_nonsense():
    service, _ = start()
    for words in (("--from", "3"), ("--count",), ("--count", "x"), ("--what",), ("a", "b")):
        said = tail(service, *words)
        assert said.returncode == 2 and said.stderr, said
    assert subprocess.run([CTL, "events", "tail"], capture_output=True).returncode == 2
    assert subprocess.run([CTL, "events", "tail", "x://y"], capture_output=True).returncode == 3
    assert tail(service, "--seconds", "1").stdout == ""
    socket = zmq.Context.instance().socket(zmq.PUB)
    socket.bind(f"ipc://{service.folder}/nonsense")
    said = subprocess.Popen([CTL, "events", "tail", f"ipc://{service.folder}/nonsense", "--seconds",
                             "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(0.5)
    rng = random.Random(5)
    good = msgpack.packb([1.0, [{"type": "BlockStored\x1b[2J", "block_hashes": [b"ab", -1, None],
                                 "token_ids": 7, "medium": ["x"]}, ["BlockRemoved"], 5, []], 0])
    for number in range(300):
        data = bytearray(good)
        for _ in range(rng.randrange(6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        socket.send_multipart([b"", number.to_bytes(8, "big"), bytes(data)])
        socket.send_multipart([b"x"] * rng.randrange(1, 7))
    socket.send_multipart([b"", bytes(7) + b"\3", good])  # it began anew, and batches were missed
    out, errors = said.communicate(timeout=60)
    assert said.returncode == 0, errors
    assert "\x1b" not in out and "BlockStored?[2J" in out, out[:500]
    assert "is no batch of events" in errors and "began anew" in errors, errors[:500]
    socket.close(0)
    assert service.stop() == 0


# ---- reports of class O

@test
def report_132__equal_tokens_are_four_states():
    service, client = start("events_block = 16\n")
    one = joined(service)
    for pages in range(1, 5):
        assert write(client, [7] * (16 * pages))
    one.until(lambda one: len(one.there("GPU")) == 4)
    stored = [event for event in one.events if event["type"] == "BlockStored"]
    assert len(stored) == 4
    assert all(event["parent_block_hash"] not in event["block_hashes"] for event in stored)
    assert service.stop() == 0


@test
def report_133__salts_and_adapters_are_in_the_hash():
    service, client = start()
    one, values = joined(service), list(range(100, 150))
    write(client, values)
    write(client, values, tenant="a")
    write(client, values, tenant="b")
    write(client, values, adapter=[7, 1])
    write(client, values, marks=[[20, bytes(16)]])
    one.until(lambda one: len(one.there("GPU")) == 5)
    assert one.there("GPU") == {
        state_hash(values), state_hash(values, adapter="7/1"),
        state_hash(values, marks=[(0, tenant_mark("a"))]),
        state_hash(values, marks=[(0, tenant_mark("b"))]),
        state_hash(values, marks=[(20, bytes(16))])}
    stored = [event for event in one.events if event["type"] == "BlockStored"]
    assert [event.get("lora_name") for event in stored] == [None, None, None, "7/1", None]
    assert stored[1]["extra_keys"] == [[[tenant_mark("a").hex(), 0]]], stored[1]
    assert service.stop() == 0


@test
def report_134__one_removal_for_each_copy():
    service, client = start("host_bytes = 4MiB\n")
    one = joined(service)
    for turn in range(14):
        write(client, [turn] * 30)
    quiet(client)
    one.until(lambda one: one.there("CPU"))
    both = one.there("CPU") & one.there("GPU")
    client.call("evict", states=100)
    one.until(lambda one: not one.there("GPU"))
    assert both and both <= one.there("CPU"), "another copy is still there"
    assert service.stop() == 0


@test
def report_135__lost_events_are_seen_and_made_good():
    service, client = start()
    one, known = joined(service), Known(client)
    one.poll()
    one.skip = 10
    for turn in range(20):
        known.write(range(turn * 3 + 1))
        time.sleep(0.005)
    same(known, [one])
    assert one.gaps == 1
    assert service.stop() == 0


def main():
    wanted, failed, run = sys.argv[3:], 0, 0
    for name, function in TESTS.items():
        if wanted and name not in wanted and name.split("__")[0] not in wanted:
            continue
        run += 1
        begin = time.monotonic()
        try:
            function()
            print(f"ok {name} {time.monotonic() - begin:.2f} s", flush=True)
        except Exception:  # pylint: disable=broad-except
            failed += 1
            print("NOT OK", name)
            traceback.print_exc(file=sys.stdout)
    print(f"{run - failed} passed, {failed} failed, 0 skipped")
    sys.stdout.flush()
    os._exit(1 if failed or not run else 0)  # sockets of a test that failed are not waited for


if __name__ == "__main__":
    main()
