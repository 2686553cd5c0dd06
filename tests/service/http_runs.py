# SPDX-License-Identifier: Apache-2.0
"""http_runs.py PROGRAM [GROUP...]: what statecached tells of itself.

Groups: metrics, status, health, http, prometheus. As service_runs.py, whose helpers it uses. Needs
--ctl PROGRAM (statecachectl), --page FILE (docs/reference/metrics.md) and --cache FOLDER, where
Debian's Prometheus is unpacked once.
"""
import fcntl
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request


def taken(word):
    """The value of an option, which is not for service_runs."""
    at = sys.argv.index(word)
    value = sys.argv[at + 1]
    del sys.argv[at:at + 2]
    return value


CTL, CACHE, PAGE = taken("--ctl"), pathlib.Path(taken("--cache")), taken("--page")

import service_runs as runs  # noqa: E402
from service_runs import audit, key, state, tcp_service  # noqa: E402
from wire import TINY, Client, Refused, Service, pack  # noqa: E402

PROGRAM = runs.PROGRAM
runs.TESTS.clear()
test = runs.test
HTTP = TINY + "metrics_listen = 127.0.0.1:0\n"


def where(service):
    return service.text().split(" metrics=")[1].split()[0]


def get(service, path="/metrics", timeout=20):
    """Status and text."""
    try:
        with urllib.request.urlopen(f"http://{where(service)}{path}", timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


SAMPLE = re.compile(r'(\w+)(?:\{(.*)\})? (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"(?:,|$)')


def parse(text):
    """{(name, ((label, value) ...)): number}; what is no Prometheus text is an error."""
    values, types = {}, {}
    for line in text.splitlines():
        if line.startswith("#"):
            _, kind, name, rest = line.split(" ", 3)
            assert kind in ("HELP", "TYPE") and rest, line
            if kind == "TYPE":
                types[name] = rest
            continue
        name, labels, number = SAMPLE.fullmatch(line).groups()
        pairs = LABEL.findall(labels or "")
        assert "".join(f'{k}="{v}",' for k, v in pairs) == (labels + "," if labels else ""), line
        at = (name, tuple(sorted(pairs)))
        assert at not in values, f"twice: {line}"
        values[at] = float(number)
    return values, types


def scrape(service):
    status, text = get(service)
    assert status == 200, (status, text)
    return parse(text)[0]


def value(values, name, **labels):
    return values["statecache_" + name, tuple(sorted(labels.items()))]


def hold_by_length(client, keys):
    leases = [item[1] for item in client.call("acquire", keys=keys)]
    for fd in client.files:
        os.close(fd)
    client.files.clear()
    return leases


# ---- metrics

@test
def metrics__equal_what_the_traffic_did():
    service = Service(PROGRAM, HTTP)
    client = Client(service.path)
    assert value(scrape(service), "states_asked_total") == 0
    for seed in range(4):
        assert client.write(key(seed, *range(9), tenant="a"), state(client, seed)) is True
    assert client.write(key(0, *range(9), tenant="a"), state(client, 0)) is None
    keys = [key(seed, *range(20), tenant="a") for seed in range(6)]  # 4 hits of 10, 2 misses
    leases = hold_by_length(client, keys)
    assert [bool(lease) for lease in leases] == [True] * 4 + [False] * 2
    client.call("lookup", keys=keys)
    runs.refused("SC_ERR_INVALID", client.call, "acquire", keys=[{}])
    runs.refused("SC_ERR_NOT_FOUND", client.call, "nothing")
    client.call("echo", data=b"x" * 1000)
    now = scrape(service)
    expected = {"tokens_asked_total": 6 * 21, "tokens_hit_total": 40, "states_asked_total": 6,
                "states_hit_total": 4, "connections": 1, "connections_total": 1,
                "writes_begun_total": 4, "writes_stored_total": 4, "writes_existing_total": 1,
                "lookup_keys_total": 6, "states_published_total": 4, "snapshots": 4,
                "state_files": 4, "slot_bytes": 4096, "tenants": 1, "tenants_bytes": 4 * 4096,
                "tenants_unnamed_bytes": 0, "stopping": 0, "disk_failed": 0, "transfers": 0}
    for name, number in expected.items():
        assert value(now, name) == number, (name, value(now, name), number)
    for name, labels, number in (
            ("states_missed_total", {"reason": "no_prefix"}, 2),
            ("states_short_total", {"reason": "no_prefix"}, 4),
            ("requests_total", {"method": "acquire", "status": "SC_OK"}, 1),
            ("requests_total", {"method": "acquire", "status": "SC_ERR_INVALID"}, 1),
            ("requests_total", {"method": "unknown", "status": "SC_ERR_NOT_FOUND"}, 1),
            ("requests_total", {"method": "write_begin", "status": "SC_OK"}, 5),
            ("requests_total", {"method": "hello", "status": "SC_OK"}, 1),
            ("tier_hits_total", {"tier": "device"}, 4),
            ("tier_hit_tokens_total", {"tier": "device"}, 40),
            ("slots", {"owner": "leased"}, 4), ("slots", {"owner": "snapshot"}, 0),
            ("slots", {"owner": "working"}, 4), ("slots", {"owner": "free"}, 8),
            ("tier_bytes", {"tier": "device", "owner": "leased"}, 4 * 4096),
            ("tier_capacity_bytes", {"tier": "device"}, 16 * 4096),
            ("leases", {"kind": "state"}, 4), ("tenant_bytes", {"tenant": "a"}, 4 * 4096),
            ("tenant_leases", {"tenant": "a"}, 4)):
        assert value(now, name, **labels) == number, (name, labels, value(now, name, **labels))
    client.call("release", leases=leases[:4])
    client.call("evict", states=3)
    now = scrape(service)
    assert value(now, "evictions_total", cause="asked") == 3
    assert value(now, "slots", owner="snapshot") == 1 and value(now, "slots", owner="free") == 15
    assert value(now, "tenant_bytes", tenant="a") == 4096
    assert value(now, "states_hit_total") == 4
    audit(client)
    assert service.stop() == 0


@test
def metrics__count_while_traffic_runs():
    """Counters never step back, and in the end they are what the clients counted."""
    service = Service(PROGRAM, HTTP)
    counts, stop = [], threading.Event()

    def traffic(number):
        client = Client(service.path)
        mine = {"asked": 0, "hit": 0, "states": 0, "echo": 0}
        turn = 0
        while not stop.is_set():
            turn += 1
            where_to = key(number, turn % 5, *range(6))
            try:
                client.write(where_to, state(client, turn))
            except Refused as error:
                assert error.name == "SC_ERR_NO_SLOT", error
            answers = client.call("acquire", keys=[key(number, turn % 5, *range(12))])
            mine["asked"] += 14
            mine["states"] += 1
            mine["hit"] += answers[0][2]
            if answers[0][1]:
                os.close(client.files.pop())
                client.call("release", leases=[answers[0][1]])
            client.call("echo", data=b"x")
            mine["echo"] += 1
        counts.append(mine)
        client.close()

    threads = [threading.Thread(target=traffic, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    before = scrape(service)
    try:
        for _ in range(25):
            now = scrape(service)
            for at, number in before.items():
                if at[0].endswith(("_total", "_count", "_bucket")):
                    assert now[at] >= number, (at, number, now[at])
            before = now
            time.sleep(0.02)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(counts) == 4
    now = scrape(service)
    total = {name: sum(mine[name] for mine in counts) for name in counts[0]}
    assert value(now, "tokens_asked_total") == total["asked"]
    assert value(now, "tokens_hit_total") == total["hit"] > 0
    assert value(now, "states_asked_total") == total["states"]
    missed = sum(v for (name, _), v in now.items() if name == "statecache_states_missed_total")
    failed = sum(v for (name, _), v in now.items() if name == "statecache_states_failed_total")
    assert value(now, "states_hit_total") + missed + failed == total["states"]
    assert value(now, "requests_total", method="echo", status="SC_OK") == total["echo"]
    assert value(now, "request_duration_seconds_count", method="echo") == total["echo"]
    slots = sum(v for (name, _), v in now.items() if name == "statecache_slots")
    assert slots == 16
    assert service.stop() == 0


@test
def metrics__of_tiers_tell_times_and_wear():
    began = time.time() // 86400  # the day: midnight may come between
    config = HTTP + "disk_folder = @/store\ndisk_bytes = 64MiB\ndisk_file_bytes = 4MiB\n"
    service = Service(PROGRAM, config + "disk_day_bytes = 1GiB\n")
    client = Client(service.path)
    for seed in range(6):
        client.write(key(seed, *range(9)), state(client, seed))
    audit(client)
    client.call("evict", states=16)
    leases = hold_by_length(client, [key(seed, *range(12)) for seed in range(6)])
    assert all(leases)
    client.call("release", leases=leases)
    audit(client)
    now = scrape(service)
    assert value(now, "tier_stores_total", tier="disk") == 6
    assert value(now, "store_duration_seconds_count", tier="disk") == 6
    assert value(now, "restore_duration_seconds_count", tier="disk") == 6
    assert value(now, "restore_duration_seconds_bucket", tier="disk", le="+Inf") == 6
    assert value(now, "restore_duration_seconds_sum", tier="disk") > 0
    assert value(now, "store_duration_seconds_count", tier="host") == 0
    assert value(now, "states_restored_total") == 6
    assert value(now, "state_files_made_total") == 6
    assert value(now, "tier_hits_total", tier="disk") == 6
    assert value(now, "tier_hits_total", tier="device") == 0
    assert value(now, "tier_hit_tokens_total", tier="disk") == 60
    assert value(now, "tier_bytes", tier="disk", owner="snapshot") > 0
    assert value(now, "tier_capacity_bytes", tier="disk") == 64 << 20
    wear, day = value(now, "disk_written_bytes_total"), time.time() // 86400
    today = value(now, "disk_written_today_bytes")
    assert wear >= 6 * 2432 and (today == wear or day != began), (wear, today)
    assert value(now, "disk_day_limit_bytes") == 1 << 30
    assert service.stop() == 0
    service.start()  # wear goes on, the rest begins anew
    now = scrape(service)
    assert value(now, "disk_written_bytes_total") == wear
    assert value(now, "disk_written_today_bytes") == wear or time.time() // 86400 != began
    assert value(now, "tier_stores_total", tier="disk") == 0
    assert value(now, "records") == 6
    assert service.stop() == 0


@test
def metrics__histograms_are_whole():
    service = Service(PROGRAM, HTTP)
    client = Client(service.path)
    for _ in range(50):
        client.call("echo", data=b"x")
    values, types = parse(get(service)[1])
    kinds = [name for name, kind in types.items() if kind == "histogram"]
    assert len(kinds) == 3, kinds
    for kind in kinds:
        series = {}
        for (name, labels), number in values.items():
            if name == kind + "_bucket":
                rest = tuple(pair for pair in labels if pair[0] != "le")
                series.setdefault(rest, []).append((dict(labels)["le"], number))
        for rest, buckets in series.items():
            bounds = [float(le) for le, _ in buckets]
            counts = [count for _, count in buckets]
            assert bounds == sorted(set(bounds)) and bounds[-1] == float("inf"), (kind, bounds)
            assert counts == sorted(counts), (kind, rest, counts)
            assert counts[-1] == values[kind + "_count", rest], (kind, rest)
            assert values[kind + "_sum", rest] >= 0
    assert value(values, "request_duration_seconds_count", method="echo") == 50
    assert service.stop() == 0


@test
def metrics__are_those_of_the_page():
    """Names and types of docs/reference/metrics.md are those of the output, and labels, too."""
    service = Service(PROGRAM, HTTP)
    client = Client(service.path)
    client.write(key(1, 2, 3, tenant="a"), state(client, 1))
    text = get(service)[1]
    values, types = parse(text)
    page = pathlib.Path(PAGE).read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(statecache_\w+)` \| (\w+) \| ([^|]*)\|", page, re.M)
    assert len(rows) == len({name for name, _, _ in rows}), "a name is there twice"
    assert {name: kind for name, kind, _ in rows} == types, \
        {name for name, _, _ in rows} ^ set(types)
    for name, kind, labels in rows:
        wanted = set(re.findall(r"`(\w+)`", labels))
        first = name + "_count" if kind == "histogram" else name
        found = [dict(pairs) for (metric, pairs), _ in values.items() if metric == first]
        assert found and all(set(pairs) == wanted for pairs in found), (name, wanted, found[:2])
    for name, kind in types.items():
        assert name.endswith("_total") == (kind == "counter"), name
        assert f"# HELP {name} " in text, name
    assert service.stop() == 0


@test
def metrics__of_tenants_are_bounded():
    """Odd names are no harm, and more tenants than metrics_tenants have no label, ever."""
    service = Service(PROGRAM, HTTP + "metrics_tenants = 5\n[tenant quota]\nbytes = 1MiB\n")
    client = Client(service.path)
    names = ["a\"b", "a\\nb", "line\nend", "plain", "fifth", "sixth"]
    for seed, name in enumerate(names):
        client.write(key(seed, 1, 2, tenant=name), state(client, seed))
    values = scrape(service)
    told = {dict(pairs)["tenant"] for (name, pairs) in values if name == "statecache_tenant_bytes"}
    assert told == {"quota", "a\\\"b", "a\\\\x5cnb", "line\\nend", "plain"}, told
    assert value(values, "tenants_unnamed_bytes") == 2 * 4096
    assert value(values, "tenants_bytes") == 6 * 4096 and value(values, "tenants") == 7
    assert value(values, "tenant_limit_bytes", tenant="quota") == 1 << 20
    client.call("evict", states=16)  # all go, and others come: the labels stay with their names
    client.call("status")
    client.write(key(9, 1, 2, tenant="tenth"), state(client, 9))
    client.write(key(9, 1, 2, tenant="plain"), state(client, 9))
    values = scrape(service)
    told = {dict(pairs)["tenant"]: number for (name, pairs), number in values.items()
            if name == "statecache_tenant_bytes"}
    assert told == {"quota": 0, "plain": 4096}, told
    status = json.loads(get(service, "/v1/status")[1])
    assert {tenant["tenant"] for tenant in status["tenants"]} == {"quota", "plain", "tenth"}
    assert service.stop() == 0


@test
def metrics__names_that_are_no_text_are_no_harm():
    service = Service(PROGRAM, HTTP)
    client = Client(service.path)
    whole = pack([0, 2, "write_begin", [{"key": key(1, 2, tenant="NAME")}]])
    client.socket.sendall(whole.replace(b"NAME", b"\xff\xfe\\A"))
    client.id = 2
    assert client.receive()[1] is None
    values = scrape(service)
    assert value(values, "tenant_bytes", tenant="\\\\xff\\\\xfe\\\\x5cA") == 4096
    assert json.loads(get(service, "/v1/status")[1])["tenants"][0]["tenant"] == "\\xff\\xfe\\x5cA"
    assert client.call("status")["tenants"][0]["tenant"] == "\\xff\\xfe\\x5cA"
    assert service.stop() == 0


# ---- status

def ctl(*words, code=0):
    done = subprocess.run([CTL, *map(str, words)], capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode == code, (words, done)
    assert code in (0, 1) or done.stderr, (words, "says what is wrong")
    return done.stdout


def shape(tree):
    """A tree without its values."""
    if isinstance(tree, dict):
        return {name: shape(item) for name, item in tree.items()}
    if isinstance(tree, list):
        return [shape(item) for item in tree]
    return type(tree).__name__


@test
def metrics__a_request_that_is_back_counts_apart():
    """Its states are among the others, its tokens are not; pins and look-ups count nothing."""
    service = Service(PROGRAM, HTTP)
    client = Client(service.path)
    client.write(key(*range(9)), state(client, 1))
    plain, back = key(*range(20)), key(*range(20), again=True)
    client.call("release", leases=hold_by_length(client, [plain, back, key(99, again=True)])[:2])
    client.call("lookup", keys=[back])
    client.call("pin", key=back)
    for name, number in (
            ("states_asked_total", 3), ("states_hit_total", 2), ("states_again_total", 2),
            ("tokens_asked_total", 20), ("tokens_hit_total", 9), ("tokens_again_total", 21),
            ("tokens_again_hit_total", 9)):
        assert value(scrape(service), name) == number, name
    hits, cache = client.call("status")["hits"], client.call("status")["cache"]
    assert (hits["states_again"], hits["tokens_again"], hits["tokens_again_hit"]) == (2, 21, 9)
    runs.refused("SC_ERR_INVALID", client.call, "acquire", keys=[key(1, again=1)])
    assert service.stop() == 0


@test
def status__says_the_same_by_all_ways():
    service = Service(PROGRAM, HTTP + "disk_folder = @/store\ndisk_bytes = 64MiB\n"
                      "disk_file_bytes = 4MiB\nhost_bytes = 1MiB\n")
    client = Client(service.path, tenant="a")
    for seed in range(3):
        client.write(key(seed, *range(9)), state(client, seed))
    leases = hold_by_length(client, [key(seed, *range(12)) for seed in range(4)])
    audit_free = client.call("status")
    while client.call("status")["cache"]["transfers_alive"] > 0:
        time.sleep(0.005)
    client.call("status", json=True)
    ways = [client.call("status"), json.loads(client.call("status", json=True)["json"]),
            json.loads(get(service, "/v1/status")[1])]
    assert audit_free["hits"]["states_asked"] == 4
    for status in ways:
        assert status["hits"] == {"states_asked": 4, "states_hit": 3, "tokens_asked": 52,
                                  "tokens_hit": 30, "states_again": 0, "tokens_again": 0,
                                  "tokens_again_hit": 0, "missed": {"no_prefix": 1},
                                  "short": {"no_prefix": 3}, "failed": {}}
        assert status["slots"]["leased"] == 3 and status["slots"]["working"] == 3
        assert status["service"]["leases_open"] == 3 and status["problems"] == []
        assert status["listen"]["metrics"] == where(service)
        assert [tier["tier"] for tier in status["tiers"]] == ["device", "host", "disk"]
        assert set(status["wear"]) == {"written_bytes", "today_bytes", "day_bytes_max"}
        assert status["tenants"][0] == {"tenant": "a", "bytes": 3 * 4096, "bytes_max": 0,
                                        "refused": 0, "leases": 3}
        assert status["connections"][0]["tenant"] == "a"
        assert status["connections"][0]["uid"] == os.getuid()
        assert status["shard"]["tp_size"] == 1 and status["requests"]["hello"]["count"] >= 1
        assert status["requests"]["acquire"]["count"] == 1
    assert shape(ways[0]) == shape(ways[1]) == shape(ways[2])
    client.call("release", leases=[lease for lease in leases if lease])
    runs.refused("SC_ERR_INVALID", client.call, "status", json=1)
    runs.refused("SC_ERR_INVALID", client.call, "status", text=True)
    assert service.stop() == 0


@test
def status__lists_are_bounded():
    service = Service(PROGRAM, HTTP, words=["--set", "slots=700"])
    clients = [Client(service.path) for _ in range(300)]
    for number in range(600):
        clients[0].write(key(number, tenant=f"tenant {number}"), state(clients[0], number))
    status = json.loads(get(service, "/v1/status")[1])
    assert len(status["connections"]) == 256 and status["connections_more"] == 44
    assert len(status["tenants"]) == 512 and status["tenants_more"] == 88
    assert len({tenant["tenant"] for tenant in status["tenants"]}) == 512
    assert status["tenants_bytes"] == 600 * 4096
    values = scrape(service)
    assert sum(name == "statecache_tenant_bytes" for name, _ in values) == 64
    assert value(values, "tenants_unnamed_bytes") == (600 - 64) * 4096
    page = ctl("status", "--socket", service.path)
    assert "and 45 more" in page and "and 88 more" in page, page
    for client in clients:
        client.close()
    assert service.stop() == 0


@test
def status__by_statecachectl():
    service = tcp_service("metrics_listen = 127.0.0.1:0\n")
    client = Client(service.path)
    client.write(key(1, 2, 3, tenant="x\x1b[2J"), state(client, 1))
    hold_by_length(client, [key(1, 2, 3, 4, tenant="x\x1b[2J"), key(7, 8)])
    page = ctl("status", "--socket", service.path)
    for what in ("tiny, rank 0 of 1", "hits        states 1 of 2 (50.0 %)", "no_prefix 1",
                 "slots       16 of 4.0 KiB", "acquire", "tenant x?[2J"):
        assert what in page, (what, page)
    assert "\x1b" not in page
    tree = json.loads(ctl("status", "--json", "--socket", service.path))
    assert tree["service"]["written"] == 1
    host, port = service.tcp()
    token = service.folder / "token"
    token.write_text("correct horse battery\n", encoding="utf-8")
    tree = json.loads(ctl("status", "--json", "--connect", f"{host}:{port}", "--token-file", token))
    assert tree["model"] == "tiny"
    ctl("status", "--connect", f"{host}:{port}", code=3)  # a token is needed
    token.write_text("the token of tenant a\n", encoding="utf-8")
    ctl("status", "--connect", f"{host}:{port}", "--token-file", token, code=4)  # bound
    ctl("status", "--socket", service.folder / "nothing", code=3)
    ctl("status", "--socket", service.path, "--connect", "127.0.0.1:1", code=2)
    ctl("status", "--token-file", service.folder / "nothing", code=3)
    for words in (["status", "--socket"], ["status", "--what"], ["status", "more"]):
        ctl(*words, code=2)
    assert "status" in ctl("--help")
    assert service.stop() == 0


# ---- health

@test
def health__is_ok_and_says_why_not_while_stopping():
    service = Service(PROGRAM, HTTP)
    assert get(service, "/healthz") == (200, "ok\n")
    client = Client(service.path)
    message = pack([0, 1, "echo", [{"data": b"x" * (1 << 20)}]])
    for _ in range(8):  # answers that it does not read: the service waits for it while it stops
        client.socket.sendall(message)
    service.process.send_signal(signal.SIGTERM)
    service.wait_for("service.stopping")
    assert get(service, "/healthz") == (503, "stopping\n")
    assert value(scrape(service), "stopping") == 1
    client.close()
    assert service.process.wait(20) == 0


@test
def health__tells_of_a_disk_that_fails():
    config = HTTP + "disk_folder = @/store\ndisk_bytes = 64MiB\ndisk_file_bytes = 1MiB\n"
    service = Service(PROGRAM, config)
    client = Client(service.path)
    for seed in range(6):
        client.write(key(seed, *range(9)), state(client, seed))
    audit(client)
    client.call("evict", states=16)
    for name in (service.folder / "store").iterdir():  # what a broken disk does to them
        if not name.name.endswith((".mdb", "lock")) and name.is_file():
            os.truncate(name, 0)
    for seed in range(6):
        assert not any(hold_by_length(client, [key(seed, *range(12))]))
        failed = value(scrape(service), "tier_io_errors_total", tier="disk")
        assert failed == seed + 1, failed
        status, text = get(service, "/healthz")
        assert status == (503 if failed >= 3 else 200), (seed, failed, text)
        assert failed < 3 or text.startswith("disk tier failed: "), text
    now = scrape(service)
    assert value(now, "disk_failed") == 1
    assert value(now, "states_missed_total", reason="tier_failed") == 6
    assert "problem     disk tier failed" in ctl("status", "--socket", service.path, code=1)
    client.write(key(50, *range(9)), state(client, 50))  # a store that succeeds
    audit(client)
    assert get(service, "/healthz") == (200, "ok\n")
    assert service.stop() == 0


# ---- http

def raw(service, data, timeout=20):
    """What is answered to these bytes until the connection ends."""
    host, port = where(service).rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=timeout) as client:
        try:
            client.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass
        said = b""
        try:
            while True:
                more = client.recv(65536)
                if not more:
                    return said
                said += more
        except ConnectionResetError:
            return said


@test
def http__listens_where_it_is_told():
    service = Service(PROGRAM)
    assert " metrics= " in service.text(), "not by default"
    assert service.stop() == 0
    service = Service(PROGRAM, TINY + "metrics_listen = [::1]:0\n")
    assert where(service).startswith("[::1]:") and get(service, "/healthz")[0] == 200
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for text in (f"127.0.0.1:{port}", "localhost:1", "127.0.0.1", "1.2.3.4:80:90", "x"):
            folder = pathlib.Path(tempfile.mkdtemp(prefix="sc-"))
            conf = folder / "conf"
            conf.write_text(f"socket = {folder}/s\n{TINY}metrics_listen = {text}\n",
                            encoding="utf-8")
            done = subprocess.run([PROGRAM, "--config", str(conf)], capture_output=True, text=True,
                                  timeout=20, check=False)
            assert done.returncode == 1 and "listen.failed" in done.stderr, (text, done)
            shutil.rmtree(folder)
    assert service.stop() == 0


@test
def http__answers_get_and_head_alone():
    service = Service(PROGRAM, HTTP)
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"):
        said = raw(service, f"{method} /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
                   .encode())
        assert said.startswith(b"HTTP/1.1 405 ") and b"Allow: GET, HEAD" in said, (method, said)
    head = raw(service, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and head.endswith(b"\r\n\r\n"), head
    assert get(service, "/")[0] == get(service, "/metrics/x")[0] == 404
    assert get(service, "/metrics?a=b")[0] == 200
    body = raw(service, b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
    assert body.startswith(b"HTTP/1.1 200 "), body
    two = raw(service, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
    assert two.count(b"HTTP/1.1 200") == 1, "one request a connection"
    now = scrape(service)
    assert value(now, "http_requests_total", code="4xx") == 8
    assert value(now, "http_requests_total", code="2xx") == 4
    assert service.stop() == 0


@test
def http__refuses_what_is_too_long_or_no_request():
    service = Service(PROGRAM, HTTP + "hello_ms = 500\n")
    for data in (b"GET /" + b"x" * 100000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
                 b"GET /metrics HTTP/1.1\r\n" + b"X: " + b"y" * 100000 + b"\r\n\r\n",
                 b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 50000 + b"\r\n",
                 b"\x00\xff\xfe" * 1000 + b"\r\n\r\n", b"\r\n" * 100 + b"nonsense\r\n\r\n",
                 b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
                 b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                 pack([0, 1, "hello", [{"version": 1}]]) + b"\r\n\r\n"):
        said = raw(service, data)
        assert not said or re.match(rb"HTTP/1\.[01] (4\d\d|505) ", said), (data[:40], said[:200])
        assert get(service, "/healthz") == (200, "ok\n")
    assert service.stop() == 0


def resident(service):
    with open(f"/proc/{service.process.pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def keeps_freed_memory(service):
    """AddressSanitizer does, for a while."""
    with open(f"/proc/{service.process.pid}/maps", encoding="ascii") as maps:
        return "libasan" in maps.read()


def median_echo(client, count):
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        client.call("echo", data=b"x" * 64)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


class Hostile:
    """200 connections: silent ones, some that send a byte now and then, some that do not read."""

    def __init__(self, service):
        host, port = where(service).rsplit(":", 1)
        self.address = (host, int(port))
        self.stop = threading.Event()
        self.ended = 0
        self.sockets = [self.connect(number) for number in range(200)]
        self.thread = threading.Thread(target=self.drip)
        self.thread.start()

    def connect(self, number):
        client = socket.create_connection(self.address, timeout=20)
        client.setblocking(False)
        begins = (b"", b"GET /metr", b"POST /metrics HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n",
                  b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
                  b"GET /metrics HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n")
        client.send(begins[number % len(begins)])
        return client

    def drip(self):
        """Those that have been closed come back."""
        while not self.stop.wait(0.05):
            for number, client in enumerate(self.sockets):
                try:
                    if number % 5 != 3:
                        client.send(b"x")
                except BlockingIOError:
                    pass
                except OSError:
                    client.close()
                    self.ended += 1
                    self.sockets[number] = self.connect(number)

    def end(self):
        self.stop.set()
        self.thread.join()
        for client in self.sockets:
            client.close()


@test
def http__hostile_clients_harm_nobody():
    service = Service(PROGRAM, HTTP + "hello_ms = 700\n")
    client = Client(service.path)
    median_echo(client, 200)
    before = resident(service)
    alone, beside = [], []
    for _ in range(3):
        alone.append(median_echo(client, 300))
        hostile = Hostile(service)
        try:
            for _ in range(4):
                beside.append(median_echo(client, 100))
                begin = time.monotonic()
                assert get(service, "/healthz", timeout=10) == (200, "ok\n")
                assert time.monotonic() - begin < 5
                time.sleep(0.1)
        finally:
            hostile.end()
    time.sleep(1)
    assert hostile.ended > 0, "connections that never complete a request are ended"
    if not keeps_freed_memory(service):
        assert resident(service) - before < 16 << 20, resident(service) - before
    files = len(os.listdir(f"/proc/{service.process.pid}/fd"))
    assert files < 40, files
    ratio = statistics.median(beside) / statistics.median(alone)
    print(f"a client beside hostile scrapers: {ratio:.2f} times its time alone")
    assert ratio < 4, ratio  # both share the test's own interpreter
    audit(client)
    assert value(scrape(service), "states_asked_total") == 0
    assert service.stop() == 0


FLOOD = r"""
import socket, sys, time
host, port = sys.argv[1].rsplit(":", 1)
end = time.monotonic() + 2
while time.monotonic() < end:
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        while client.recv(65536):
            pass
"""


@test
def http__a_flood_of_scrapes_leaves_the_loop_alone():
    service = Service(PROGRAM, HTTP)
    client = Client(service.path)
    alone = statistics.median(median_echo(client, 300) for _ in range(3))
    floods = [subprocess.Popen([sys.executable, "-c", FLOOD, where(service)]) for _ in range(2)]
    time.sleep(0.3)
    beside = statistics.median(median_echo(client, 300) for _ in range(3))
    for flood in floods:
        assert flood.wait(20) == 0
    answered = value(scrape(service), "http_requests_total", code="2xx")
    print(f"beside {answered:.0f} scrapes in 2 s a client takes {beside / alone:.2f} times as long")
    assert answered < 1200, "the loop is asked 500 times a second at most"
    assert service.stop() == 0


@test
def http__without_files_left_the_service_goes_on():
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    service = Service(PROGRAM, HTTP + "hello_ms = 700\n", preexec_fn=few)
    client = Client(service.path)
    host, port = where(service).rsplit(":", 1)
    others = [socket.create_connection((host, int(port)), timeout=20) for _ in range(100)]
    time.sleep(0.3)
    assert client.call("echo", data=b"x") == {"data": b"x"}
    for other in others:
        other.close()
    assert get(service, "/healthz") == (200, "ok\n")
    audit(client)
    assert service.stop() == 0


# ---- prometheus

def skip(why):
    """Nothing is proved: 77, unless CI is set, where the package can be had."""
    print(f"skipped: {why}")
    sys.exit(1 if os.environ.get("CI") else 77)


def prometheus_programs():
    """Debian's package, unpacked and not installed; downloaded once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        programs = [CACHE / "root/usr/bin" / name for name in ("prometheus", "promtool")]
        if all(program.exists() for program in programs):
            return programs
        if not shutil.which("apt-get") or not shutil.which("dpkg"):
            skip("this is no Debian system: there is no package 'prometheus'")
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            os.chmod(folder, 0o777)  # apt-get downloads as a user of its own
            got = subprocess.run(["apt-get", "-q", "download", "prometheus"], cwd=folder, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                                 timeout=240)
            packages = list(pathlib.Path(folder).glob("prometheus_*.deb"))
            if got.returncode or not packages:
                skip("Debian's prometheus cannot be downloaded: " + got.stdout.strip()[-200:])
            root = pathlib.Path(folder) / "root"
            subprocess.run(["dpkg", "-x", packages[0], root], check=True)
            shutil.rmtree(CACHE / "root", ignore_errors=True)
            os.rename(root, CACHE / "root")
        return programs


def busy_service():
    service = Service(PROGRAM, HTTP + "disk_folder = @/store\ndisk_bytes = 64MiB\n"
                      "disk_file_bytes = 4MiB\n")
    client = Client(service.path)
    for seed in range(5):
        client.write(key(seed, *range(9), tenant=f"t \"{seed}\\"), state(client, seed))
    hold_by_length(client, [key(seed, *range(20), tenant=f"t \"{seed}\\") for seed in range(7)])
    return service, client


@test
def prometheus__promtool_has_nothing_to_say():
    _, promtool = prometheus_programs()
    service, _ = busy_service()
    done = subprocess.run([promtool, "check", "metrics"], input=get(service)[1], text=True,
                          capture_output=True, timeout=60, check=False)
    assert done.returncode == 0 and not done.stdout and not done.stderr, done
    assert service.stop() == 0


@test
def prometheus__scrapes_the_service():
    program, _ = prometheus_programs()
    service, client = busy_service()
    config = service.folder / "prometheus.yml"
    config.write_text("global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
                      "scrape_configs:\n"
                      f"- {{job_name: sc, static_configs: [{{targets: ['{where(service)}']}}]}}\n",
                      encoding="utf-8")
    log = service.folder / "prometheus.log"
    with open(log, "wb") as out:
        server = subprocess.Popen([program, f"--config.file={config}",
                                   f"--storage.tsdb.path={service.folder}/tsdb",
                                   "--web.listen-address=127.0.0.1:0"], stdout=out, stderr=out)

    def query(text):
        port = re.search(r'msg="Listening on" address=\S*:(\d+)', log.read_text()).group(1)
        url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": text})
        with urllib.request.urlopen(url, timeout=20) as answer:
            tree = json.load(answer)
        assert tree["status"] == "success", tree
        return [float(row["value"][1]) for row in tree["data"]["result"]]

    def wait_for(text, wanted):
        end = time.monotonic() + 30
        found = None
        while time.monotonic() < end:
            assert server.poll() is None, log.read_text()[-2000:]
            try:
                found = query(text)
            except (AttributeError, urllib.error.URLError):
                pass  # it does not listen yet
            if found == wanted:
                return
            time.sleep(0.1)
        raise TimeoutError(f"{text}: {found}, not {wanted}\n{log.read_text()[-1000:]}")

    try:
        wait_for("up", [1])
        wait_for("statecache_states_hit_total", [5])
        wait_for("sum(statecache_states_missed_total)", [2])
        wait_for("sum(statecache_slots)", [16])
        wait_for("sum(statecache_tenant_bytes)", [5 * 4096])
        wait_for('statecache_requests_total{method="hello",status="SC_OK"}', [1])
        client.call("acquire", keys=[key(0, *range(20), tenant="t \"0\\")])
        wait_for("statecache_states_hit_total", [6])
        wait_for("histogram_quantile(0.5, sum by (le) "
                 "(statecache_request_duration_seconds_bucket)) < bool 10", [1])
    finally:
        server.terminate()
        server.wait(30)
    assert service.stop() == 0


if __name__ == "__main__":
    sys.exit(runs.main())
