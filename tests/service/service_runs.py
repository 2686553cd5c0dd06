# SPDX-License-Identifier: Apache-2.0
"""service_runs.py PROGRAM [GROUP...]: statecached as a process, used well and badly.

Each test is a function named behaviour__what; a group is what stands before the two underscores.
Ends in a line of counts.
"""
import atexit
import fcntl
import hashlib
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

from wire import TINY, Client, Refused, Service, tokens

PROGRAM = sys.argv[1]
SCALE = int(os.environ.get("SC_TEST_SCALE", "100"))
TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


def refused(name, function, *args, **words):
    """The service answers with this error; its text."""
    try:
        result = function(*args, **words)
    except Refused as error:
        assert error.name == name, f"{name} expected: {error}"
        return error.text
    raise AssertionError(f"{name} expected, got {result}")


def is_closed(client):
    """The service closes this connection; what it said before."""
    said = []
    try:
        while True:
            said.append(client.receive())
    except (ConnectionError, BrokenPipeError):
        return said


def key(*values, **words):
    return {"tokens": tokens(values), **words}


def state(client, seed):
    count = client.info["file_bytes"]
    return bytes((seed + at) % 251 for at in range(256)) * (count // 256)


def same_parts(client, one, other):
    """Equal parts; what lies between them are zeros in what came back from a tier."""
    parts = client.call("schema")["parts"]
    zeros = bytearray(one[:])
    for part in parts:
        begin, end = part["offset"], part["offset"] + part["bytes"]
        assert one[begin:end] == other[begin:end], part
        zeros[begin:end] = bytes(end - begin)
    assert not any(zeros)


def patient_write(client, where, data):
    """Writes a state; "not now" while the slots wait for a disk is no failure, and no loss."""
    for _ in range(4000):
        try:
            assert client.write(where, data) is True
            return
        except Refused as error:
            assert error.name == "SC_ERR_NO_SLOT", error
            time.sleep(0.005)
    raise TimeoutError


def audit(client):
    """Nothing is held, and every account is in order; waits for what is on its way."""
    for _ in range(4000):
        status = client.call("status")
        if (status["service"]["leases_open"] == 0 and status["service"]["workers_busy"] == 0
                and status["cache"]["transfers_alive"] == 0):
            break
        time.sleep(0.005)
    assert client.call("verify") == {"leases": 0}, status
    assert status["slots"]["held"] == 0 and status["cache"]["leases_alive"] == 0, status
    return status


# ---- lifecycle

@test
def lifecycle__starts_serves_and_stops():
    service = Service(PROGRAM)
    client = Client(service.path)
    assert client.info["model"] == "tiny" and client.info["files"], client.info
    assert client.call("echo", data=b"abc") == {"data": b"abc"}
    assert os.stat(service.path).st_mode & 0o777 == 0o600
    assert service.stop() == 0, service.text()
    assert not os.path.exists(service.path), "the socket's file is gone"
    assert is_closed(client) == []


@test
def lifecycle__a_socket_left_behind_is_taken_over_and_one_in_use_is_not():
    service = Service(PROGRAM)
    second = subprocess.run([PROGRAM, "--config", str(service.file)], stderr=subprocess.PIPE,
                            timeout=20)
    assert second.returncode == 1 and b"somebody listens" in second.stderr, second
    plain = subprocess.run([PROGRAM, "--config", str(service.file), "--set",
                            f"socket={service.file}"], stderr=subprocess.PIPE, timeout=20)
    assert plain.returncode == 1 and b"it is no socket" in plain.stderr, plain
    Client(service.path).close()
    service.stop(signal.SIGKILL)
    assert os.path.exists(service.path)
    service.start()
    Client(service.path).close()
    assert service.stop() == 0
    service.file.with_name("socket").write_text("mine")
    service.start()
    assert service.process.wait(20) == 1 and service.file.with_name("socket").exists()


@test
def lifecycle__a_service_manager_is_told():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0sc-notify-%d" % os.getpid())
        manager.settimeout(20)
        service = Service(PROGRAM, env={**os.environ, "NOTIFY_SOCKET":
                                        "@sc-notify-%d" % os.getpid()})
        assert manager.recv(4096).startswith(b"READY=1\n")
        service.process.send_signal(signal.SIGHUP)
        assert manager.recv(4096) == b"RELOADING=1"
        assert manager.recv(4096) == b"READY=1"
        assert service.stop() == 0
        assert manager.recv(4096) == b"STOPPING=1"


@test
def lifecycle__what_was_written_is_there_after_a_restart():
    config = TINY + "disk_folder = @/store\ndisk_bytes = 64MiB\ndisk_file_bytes = 4MiB\n"
    service = Service(PROGRAM, config)
    client = Client(service.path)
    for seed in range(8):
        assert client.write(key(seed, *range(30)), state(client, seed)) is True
    assert service.stop() == 0, service.text()
    service.start()
    client = Client(service.path)
    answers = client.call("lookup", keys=[key(seed, *range(31)) for seed in range(8)])
    assert [answer[1] for answer in answers] == [[0, 0, 31, 0]] * 8, answers
    for seed in range(8):
        (status, lease, length, _, _), = client.call("acquire", keys=[key(seed, *range(31))])
        assert (status, length) == (0, 31) and lease
        same_parts(client, client.file(), state(client, seed))
        assert client.call("read", lease=lease, offset=384, count=128) == {"data": bytes(128)}
        client.call("release", leases=[lease])
    client.close()
    client = Client(service.path)
    status = audit(client)
    assert status["cache"]["restored"] == 8 and status["service"]["files_made"] == 8, status
    assert service.stop() == 0


@test
def lifecycle__who_goes_while_a_tier_restores_leaves_nothing():
    config = TINY + "disk_folder = @/store\ndisk_bytes = 64MiB\ndisk_file_bytes = 4MiB\n"
    service = Service(PROGRAM, config)
    client = Client(service.path)
    for seed in range(60):
        patient_write(client, key(seed, *range(30)), state(client, seed))
    for _ in range(20):
        goes = Client(service.path)
        goes.send("acquire", keys=[key(seed, *range(31)) for seed in range(10)])
        goes.send("acquire", keys=[key(seed, *range(31)) for seed in range(10, 20)])
        goes.close()
    audit(client)
    goes = Client(service.path)
    goes.send("acquire", keys=[key(seed, *range(31)) for seed in range(60)])
    assert service.stop() == 0, service.text()


@test
def lifecycle__a_call_under_way_is_answered_before_the_end():
    service = Service(PROGRAM)
    client = Client(service.path)
    begun = client.call("write_begin", key=key(1, 2, 3))
    client.file().close()
    service.process.send_signal(signal.SIGTERM)
    sent = client.send("write_commit", write=begun["write"])
    try:
        assert client.receive()[0] == sent
    except ConnectionError:
        pass  # it was told to stop first
    assert service.process.wait(20) == 0, service.text()


# ---- configuration

def config_errors(text, *words):
    handle, path = tempfile.mkstemp(prefix="sc-config-")
    with open(handle, "w", encoding="utf-8") as out:
        out.write(text)
    done = subprocess.run([PROGRAM, "--check", "--config", path, *words], stderr=subprocess.PIPE,
                          stdout=subprocess.PIPE, timeout=20)
    os.unlink(path)
    return done.returncode, done.stderr.decode().replace(path, "FILE")


@test
def config__errors_name_their_line():
    for text, said in (
            ("nonsense = 1\n", "FILE:5: there is no 'nonsense'"),
            ("slots = 16\n\nslots = 17\n", "FILE:7: slots: it is in line 5 already"),
            ("slots = many\n", "FILE:5: slots: 'many' is no number from 4 to"),
            ("slots = 3\n", "FILE:5: slots: '3' is no number from 4 to"),
            ("disk_bytes = 1 GB\n", "FILE:5: disk_bytes: '1 GB' is no size"),
            ("policy = best\n", "FILE:5: policy: 'best' is none of gittins"),
            ("disk_folder = /x\n", "FILE:5: disk_folder and disk_bytes go together"),
            ("listen = 127.0.0.1:0\n", "FILE:5: listen: TCP needs a token_file"),
            ("token_file = /nowhere/x\n", "FILE:5: token_file: /nowhere/x: No such file"),
            ("tp_rank = 1\n", "FILE:5: tp_rank is not below tp_size"),
            ("part = 0 matrix f32 1x1x1\n", "FILE:5: part: '0 matrix f32 1x1x1'"),
            ("part = 0 conv f32 3x4 other\n", "FILE:5: part: the group must be in a line above"),
            ("just words\n", "FILE:5: name = value is expected"),
            ("[tenant a\n", "FILE:5: a section ends in ]"),
            ("[group a]\n", "FILE:5: there is no section 'group a'"),
            ("[tenant a]\nsize = 1\n", "FILE:6: a tenant has no 'size'"),
            ("[tenant a]\n[tenant a]\n", "FILE:6: tenant 'a' is there already"),
            ("allow_uid = nobody\n", "FILE:5: allow_uid: 'nobody' is no user id"),
            ("x" * 2000 + "\n", "FILE:5: the line is longer"),
    ):
        head = "# a comment\nmodel = tiny\ngroup = gdn 16\npart = 0 recurrent f32 1x4x4 gdn\n"
        code, errors = config_errors(head + text)
        assert code == 3 and said in errors, (text, code, errors)


@test
def config__all_errors_are_told_at_once_and_a_good_file_is_silent():
    code, errors = config_errors("a = 1\nb = 2\nmodel = tiny\n")
    assert code == 3 and "FILE:1:" in errors and "FILE:2:" in errors, errors
    assert config_errors(TINY) == (0, "")
    assert config_errors(TINY, "--set", "slots=9") == (0, "")
    code, errors = config_errors(TINY, "--set", "slots=x")
    assert code == 3 and errors.startswith("--set: slots"), errors
    code, errors = config_errors("model = no-such-model\n")
    assert code == 3 and "FILE:1: model:" in errors, errors


@test
def config__what_is_printed_is_a_configuration():
    done = subprocess.run([PROGRAM, "--print-config", "--set", "model=qwen3-next-80b-a3b"],
                          stdout=subprocess.PIPE, timeout=20, check=True)
    assert config_errors(done.stdout.decode()) == (0, "")


@test
def config__words_that_are_wrong():
    for words in (["--nothing"], ["--config"], ["word"]):
        done = subprocess.run([PROGRAM, *words], stderr=subprocess.PIPE, timeout=20)
        assert done.returncode == 2 and b"--help" in done.stderr, (words, done)
    for words in (["--help"], ["--version"]):
        subprocess.run([PROGRAM, *words], stdout=subprocess.DEVNULL, timeout=20, check=True)


@test
def config__a_reload_changes_what_can_change():
    service = Service(PROGRAM)
    client = Client(service.path)
    text = service.file.read_text()
    service.file.write_text(text + "client_writes = 0\nallow_uid = 12345\n"
                            "[tenant a]\nbytes = 12288\n")
    service.process.send_signal(signal.SIGHUP)
    service.wait_for("config.reloaded")
    refused("SC_ERR_AGAIN", client.call, "write_begin", key=key(1))
    assert client.call("quota", tenant="a")["bytes_max"] == 12288
    assert os.stat(service.path).st_mode & 0o777 == 0o666
    service.file.write_text(text.replace("slots = 16", "slots = 17"))
    service.process.send_signal(signal.SIGHUP)
    service.wait_for("this needs a restart: slots")
    service.file.write_text(text + "nonsense\n")
    service.process.send_signal(signal.SIGHUP)
    service.wait_for("there are errors")
    refused("SC_ERR_AGAIN", client.call, "write_begin", key=key(1))
    assert service.stop() == 0


# ---- states

@test
def states__two_clients_share_a_state_bit_for_bit():
    service = Service(PROGRAM)
    writer, reader = Client(service.path), Client(service.path)
    data = os.urandom(writer.info["file_bytes"])
    assert writer.write(key(*range(40)), data) is True
    assert writer.write(key(*range(40)), data) is None, "it is there already"
    (status, lease, length, reason, _), = reader.call("acquire", keys=[key(*range(50))])
    assert (status, length, reason) == (0, 40, 1) and lease
    assert reader.file()[:] == data
    writer.close()
    assert reader.call("read", lease=lease, offset=100, count=50) == {"data": data[100:150]}
    assert reader.call("release", leases=[lease, lease]) == [0, -4]
    audit(reader)
    assert service.stop() == 0


@test
def states__a_file_that_was_given_out_cannot_be_changed():
    service = Service(PROGRAM)
    client = Client(service.path)
    data = state(client, 3)
    client.write(key(1, 2), data)
    client.call("acquire", keys=[key(1, 2, 3)])
    fd = client.files[0]
    for change in (lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 0),
                   lambda: os.ftruncate(fd, 1 << 20),
                   lambda: mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE),
                   lambda: fcntl.fcntl(fd, 1033, 1)):  # F_ADD_SEALS
        try:
            change()
        except PermissionError:
            continue
        raise AssertionError("it could be changed")
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    try:
        os.pwrite(again, b"x", 0)
        raise AssertionError("it could be changed")
    except PermissionError:
        os.close(again)
    assert client.file()[:] == data
    assert service.stop() == 0


@test
def states__a_writer_that_keeps_its_mapping_cannot_commit():
    service = Service(PROGRAM)
    client = Client(service.path)
    begun = client.call("write_begin", key=key(1, 2))
    memory = client.file()
    memory[:] = state(client, 1)
    refused("SC_ERR_BUSY", client.call, "write_commit", write=begun["write"])
    memory.close()
    assert client.call("write_commit", write=begun["write"]) == {"stored": True}
    refused("SC_ERR_STALE", client.call, "write_commit", write=begun["write"])
    audit(client)
    assert service.stop() == 0


@test
def states__a_wrong_hash_is_no_state():
    service = Service(PROGRAM)
    client = Client(service.path)
    begun = client.call("write_begin", key=key(1, 2))
    client.file().close()
    refused("SC_ERR_CORRUPT", client.call, "write_commit", write=begun["write"], hash=b"x" * 16)
    assert client.call("lookup", keys=[key(1, 2, 3)])[0][1] == [0, 0, 0, 0]
    audit(client)
    assert service.stop() == 0


@test
def states__memory_of_a_write_that_was_given_up_goes():
    """Also where its client keeps the file open."""
    service = Service(PROGRAM)
    client = Client(service.path)
    begun = client.call("write_begin", key=key(1, 2))
    fd = client.files[0]
    os.pwrite(fd, state(client, 1), 0)
    assert os.fstat(fd).st_blocks > 0
    client.call("write_abort", write=begun["write"])
    for _ in range(400):
        if os.fstat(fd).st_blocks == 0:
            break
        time.sleep(0.005)
    assert os.fstat(fd).st_blocks == 0
    audit(client)
    assert service.stop() == 0


@test
def states__evicted_ones_go_and_their_readers_keep_what_they_mapped():
    service = Service(PROGRAM)
    client = Client(service.path)
    maps = []
    for seed in range(40):
        assert client.write(key(seed, 1), state(client, seed)) is True
        (_, lease, length, _, _), = client.call("acquire", keys=[key(seed, 1, 2)])
        assert length == 2
        maps.append(client.file())
        client.call("release", leases=[lease])
    for seed, memory in enumerate(maps):
        assert memory[:] == state(client, seed), seed
    status = audit(client)
    assert status["slots"]["files"] <= 16 and sum(status["cache"]["evicted"]) >= 24, status
    assert client.call("evict", states=100)["states"] > 0
    assert audit(client)["slots"]["files"] == 0
    assert service.stop() == 0


@test
def states__no_room_is_an_answer():
    service = Service(PROGRAM, TINY + "client_leases = 100\nclient_writes = 100\n")
    client = Client(service.path)
    writes = []
    for seed in range(15):  # one is kept free, for the moment of a commit
        writes.append(client.call("write_begin", key=key(seed))["write"])
    refused("SC_ERR_NO_SLOT", client.call, "write_begin", key=key(100))
    for write in writes:
        client.call("write_abort", write=write)
    audit(client)
    assert client.call("write_begin", key=key(100))["write"]
    assert service.stop() == 0


@test
def states__limits_of_a_client_are_not_now():
    service = Service(PROGRAM, TINY + "client_leases = 3\npins = 1\n")
    client, other = Client(service.path), Client(service.path)
    client.write(key(1), state(client, 1))
    items = client.call("acquire", keys=[key(1, 2)] * 5)
    assert [item[0] for item in items] == [0, 0, 0, -16, -16], items
    assert "client_leases" in items[4][4] and len(client.files) == 3
    assert other.call("pin", key=key(1, 2))[0][0] == 0
    assert other.call("pin", key=key(1, 2))[0][0] == -16
    client.close()
    other.close()
    audit(Client(service.path))
    assert service.stop() == 0


@test
def states__pins_end_with_their_time_or_their_client():
    service = Service(PROGRAM)
    client, other = Client(service.path), Client(service.path)
    client.write(key(1), state(client, 1))
    kept = client.call("pin", key=key(1, 2), seconds=1000, keep=True)[0]
    client.call("pin", key=key(1, 2), seconds=1)
    client.call("pin", key=key(1, 2))
    client.close()
    for _ in range(400):  # its end is noticed in a moment
        pins = other.call("status")["service"]["pins_open"]
        if pins == 1:
            break
        time.sleep(0.005)
    assert pins == 1
    assert other.call("evict", states=10)["states"] == 0
    assert other.call("release", leases=[kept[1]]) == [0]
    short = other.call("pin", key=key(1, 2), seconds=1, keep=True)[0]
    time.sleep(1.6)
    assert other.call("release", leases=[short[1]]) == [-4]
    refused("SC_ERR_INVALID", other.call, "pin", key=key(1, 2), keep=True)
    audit(other)
    assert service.stop() == 0


@test
def states__over_tcp_they_go_as_bytes():
    service = tcp_service()
    client = Client(service.tcp(), token="correct horse battery")
    data = os.urandom(client.info["file_bytes"])
    assert not client.info["files"]
    assert client.write(key(1, 2, 3), data) is True
    refused("SC_ERR_UNSUPPORTED", client.call, "acquire", keys=[key(1, 2, 3, 4)], files=True)
    (_, lease, length, _, _), = client.call("acquire", keys=[key(1, 2, 3, 4)])
    assert length == 3
    assert client.call("read", lease=lease, offset=0, count=1 << 20) == {"data": data}
    refused("SC_ERR_STALE", client.call, "write_data", write=lease, offset=0, data=b"x")
    client.close()
    audit(Client(service.path))
    assert service.stop() == 0


def tcp_service(more=""):
    """With a token of the service, and one of tenant a."""
    folder = tempfile.mkdtemp(prefix="sc-tokens-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, token in (("all", "correct horse battery"), ("a", "the token of tenant a")):
        with open(f"{folder}/{name}", "w", encoding="utf-8") as out:
            out.write(token + "\n")
    return Service(PROGRAM, TINY + more + f"listen = 127.0.0.1:0\ntoken_file = {folder}/all\n"
                   f"[tenant a]\ntoken_file = {folder}/a\nbytes = 20480\n")


# ---- tenants

@test
def tenants__share_nothing_but_common_prompts():
    service = Service(PROGRAM)
    client = Client(service.path)
    prompt = range(20)
    client.write(key(*prompt, tenant="a"), state(client, 1))

    def found(*values, **words):
        return client.call("lookup", keys=[key(*values, **words)])[0][1][0]

    assert found(*prompt, 1, tenant="a") == 20
    assert found(*prompt, 1, tenant="b") == found(*prompt, 1) == 0
    assert client.call("common", key=key(*prompt)) == {"prompts": 1}
    assert found(*prompt, 1, tenant="a") == 0, "the mark stands elsewhere now"
    client.write(key(*prompt, tenant="a"), state(client, 2))
    client.write(key(*prompt, 7, 8, tenant="a"), state(client, 3))
    assert found(*prompt, 7, 8, 9, tenant="a") == 22
    assert found(*prompt, 7, 8, 9, tenant="b") == 20
    assert found(*prompt, 7, 8, 9) == 20
    assert client.call("common", key=key(*prompt), drop=True) == {"prompts": 0}
    refused("SC_ERR_NOT_FOUND", client.call, "common", key=key(*prompt), drop=True)
    assert found(*prompt, 7, 8, 9, tenant="b") == 0
    audit(client)
    assert service.stop() == 0


@test
def tenants__marks_of_a_key_lead_to_nobody_else():
    """A client that gives the very mark of another tenant does not get there."""
    service = tcp_service()
    engine = Client(service.path)
    bound = Client(service.tcp(), token="the token of tenant a")
    engine.write(key(1, 2, 3, tenant="b"), state(engine, 1))
    engine.write(key(1, 2, 3, tenant="a"), state(engine, 2))
    assert bound.info["tenant"] == "a"
    assert bound.call("lookup", keys=[key(1, 2, 3, 4)])[0][1][0] == 3
    name = b"b"
    mark = hashlib.sha256(b"statecache tenant\0" + bytes([len(name)]) + name + b"\0").digest()[:16]
    answer = bound.call("lookup", keys=[key(1, 2, 3, 4, marks=[[0, mark]])])[0]
    assert answer[1][0] == 0, "the mark of b, given by a"
    assert engine.call("lookup", keys=[key(1, 2, 3, 4, marks=[[0, mark]])])[0][1][0] == 3, \
        "it is b's, for who speaks for all"
    assert service.stop() == 0


@test
def tenants__a_bound_client_stays_in_its_bounds():
    service = tcp_service()
    engine = Client(service.path)
    bound = Client(service.tcp(), token="the token of tenant a")
    refused("SC_ERR_DENIED", bound.call, "write_begin", key=key(1, tenant="b"))
    assert bound.call("lookup", keys=[key(1, tenant="b")])[0][0] == -17
    assert bound.call("acquire", keys=[key(1, tenant="b")])[0][0] == -17
    for method, words in (("status", {}), ("evict", {"states": 1}), ("verify", {}),
                          ("common", {"key": key(1)}),
                          ("namespace_drop", {"id": 0, "generation": 0}),
                          ("quota", {"tenant": "b"}), ("quota", {"bytes": 0}),
                          ("pin", {"key": key(1), "keep": True, "seconds": 1})):
        refused("SC_ERR_DENIED", bound.call, method, **words)
    engine.call("common", key=key(*range(9)))
    refused("SC_ERR_DENIED", bound.call, "write_begin", key=key(*range(9)))
    assert bound.call("write_begin", key=key(*range(10)))["write"]
    refused("SC_ERR_DENIED", Client, service.tcp(), token="the token of tenant a", tenant="b")
    assert service.stop() == 0


@test
def tenants__have_a_quota():
    service = tcp_service("client_writes = 64\n")
    client = Client(service.path)
    for seed in range(5):
        assert client.write(key(seed, tenant="a"), state(client, seed)) is True
    said = refused("SC_ERR_LIMIT", client.call, "write_begin", key=key(9, tenant="a"))
    assert "20480" in said
    assert client.write(key(9, tenant="b"), state(client, 9)) is True
    quota = client.call("quota", tenant="a")
    assert quota == {"tenant": "a", "bytes": 20480, "bytes_max": 20480, "refused": 1}, quota
    assert client.call("quota", tenant="a", bytes=24576)["bytes_max"] == 24576
    begun = client.call("write_begin", key=key(9, tenant="a"))
    assert client.call("quota", tenant="a")["bytes"] == 24576
    client.call("write_abort", write=begun["write"])
    assert client.call("quota", tenant="a")["bytes"] == 20480
    client.call("evict", states=100)
    assert client.call("quota", tenant="a")["bytes"] == 0
    audit(client)
    assert service.stop() == 0


@test
def tenants__one_cannot_take_every_slot():
    service = tcp_service("tenant_leases = 3\n")
    engine = Client(service.path)
    clients = [Client(service.tcp(), token="the token of tenant a") for _ in range(3)]
    engine.write(key(1, tenant="a"), state(engine, 1))
    assert clients[0].call("acquire", keys=[key(1, 2)])[0][0] == 0
    assert clients[1].call("write_begin", key=key(5))["write"]
    assert clients[2].call("pin", key=key(1, 2))[0][0] == 0
    item, = clients[2].call("acquire", keys=[key(1, 2)])
    assert item[0] == -16 and "tenant_leases" in item[4], item
    refused("SC_ERR_AGAIN", clients[2].call, "write_begin", key=key(6))
    assert engine.call("acquire", keys=[key(1, 2, tenant="b")])[0][0] == 0
    for client in clients[1:]:
        client.close()
    client = Client(service.tcp(), token="the token of tenant a")
    assert client.call("acquire", keys=[key(1, 2)] * 2)[1][0] == 0
    client.close()
    clients[0].close()
    audit(engine)
    assert service.stop() == 0


@test
def tenants__adapters_are_apart_and_can_be_dropped():
    service = Service(PROGRAM, TINY + "namespaces = 2\n")
    client = Client(service.path)
    client.write(key(1, adapter=[5, 1]), state(client, 1))
    answers = client.call("lookup", keys=[key(1, 2, adapter=[5, 1]), key(1, 2, adapter=[5, 2]),
                                          key(1, 2)])
    assert [answer[1][0] for answer in answers] == [1, 0, 0]
    assert [answer[0] for answer in answers] == [0, 0, -16], "a third namespace is too many"
    assert client.call("namespace_drop", id=5, generation=1) == {"namespaces": 1}
    refused("SC_ERR_NOT_FOUND", client.call, "namespace_drop", id=5, generation=1)
    assert audit(client)["cache"]["snapshots_alive"] == 0
    assert service.stop() == 0


def main():
    groups, failed = sys.argv[2:], 0
    run = 0
    for name, function in TESTS.items():
        if groups and name.split("__")[0] not in groups:
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
    return 1 if failed or not run else 0


if __name__ == "__main__":
    sys.exit(main())
