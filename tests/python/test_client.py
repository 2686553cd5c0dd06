# SPDX-License-Identifier: Apache-2.0
"""sc.Client, with a statecached that these tests start."""
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import statecache as sc

SERVICE = pathlib.Path(__file__).resolve().parents[1] / "service"
PROGRAM = os.environ.get("STATECACHE_TEST_SERVICE", "")
sys.path.insert(0, str(SERVICE))
from wire import TINY, Service  # noqa: E402 (needs the path)

pytestmark = pytest.mark.skipif(not os.access(PROGRAM, os.X_OK),
                                reason="statecached is not built")
PROMPT = np.arange(100, 140, dtype=np.int32)
MORE = """listen = 127.0.0.1:0
token_file = @/token
tenant_leases = 8
[tenant shop]
token_file = @/shop
"""


@pytest.fixture(scope="module")
def service():
    made = Service(PROGRAM, TINY + MORE, files={"token": "the service's own token\n",
                                                "shop": "the shop's own token\n"})
    yield made
    assert made.stop() == 0, made.text()


@pytest.fixture
def client(service):
    """A client of a service in which nothing is held, or left, when the test ends."""
    with sc.Client(f"unix:{service.path}") as made:
        yield made
        made.evict(1000)
    with sc.Client(f"unix:{service.path}") as auditor:
        for _ in range(500):
            open_leases = auditor.call("status")["service"]["leases_open"]
            if open_leases == 0:
                break
            time.sleep(0.01)
        assert auditor.call("verify") == {"leases": 0}


def values(client, seed):
    """An array for each part, bf16 as uint16."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 1 << 15, part.dims, dtype=np.uint16) if part.dtype == "bf16" else
            rng.standard_normal(part.dims, dtype=np.float32) for part in client.parts]


def same(state, client, seed):
    for part, value in zip(client.parts, values(client, seed)):
        np.testing.assert_array_equal(np.asarray(state.view(*part.key)), value)


def test_info__is_what_the_service_said(client):
    info = client.info
    assert info.model == "tiny" and info.files and info.state_bytes == 2432
    assert info.file_bytes == 4096 and len(info.fingerprint) == 16 and info.keys == 128
    assert client.parts == [
        sc.StatePart(0, "conv", 0, "bf16", (3, 64), 0, 384),
        sc.StatePart(0, "recurrent", 0, "f32", (2, 16, 16), 512, 2048)]


def test_hit__a_state_written_by_one_is_read_by_another(client, service):
    assert client.store(PROMPT[:30], values(client, 1))
    assert not client.store(PROMPT[:30], values(client, 2))  # it is there already
    with sc.Client(f"unix:{service.path}", fingerprint=client.info.fingerprint) as other:
        answer = other.lookup(PROMPT)[0]
        assert answer["state_len"][0] == 30 and answer["reason"] == sc.Reason.NO_PREFIX
        with other.acquire_one(PROMPT) as state:
            assert state.len == 30 and state.held
            same(state, other, 1)
        assert not state.held
    miss = client.acquire_one(PROMPT[5:])
    assert miss.len == 0 and not miss.held and miss.reason == sc.Reason.NO_PREFIX
    with pytest.raises(sc.NotFound):
        miss.view(0)


def test_batch__one_round_trip(client):
    for at in range(3):
        client.store(PROMPT[at:20], values(client, at))
    batch = sc.Ragged.pack([PROMPT[at:] for at in range(4)])
    answers = client.lookup(batch)
    assert answers["state_len"][:, 0].tolist() == [20, 19, 18, 0]
    states, status = client.acquire(batch)
    sc.raise_for_status(status)
    assert [state.len for state in states] == [20, 19, 18, 0]
    for seed, state in enumerate(states[:3]):
        same(state, client, seed)
    client.release(states)
    client.release(states)  # nothing is held any more
    limited = client.lookup(batch, len_max=[20, 10, 0, 0])
    assert limited["state_len"][:, 0].tolist() == [20, 0, 18, 0]


def test_again__a_preempted_request_counts_apart(client):
    client.store(PROMPT[:30], values(client, 1))
    names = ("tokens_asked", "tokens_hit", "states_again", "tokens_again", "tokens_again_hit")
    before = client.call("status")["hits"]
    client.acquire_one(PROMPT, again=True).release()
    batch = sc.Ragged.pack([PROMPT, PROMPT[:35], PROMPT[:32]])
    client.release(client.acquire(batch, again=np.array([True, False, False]))[0])
    client.acquire_one(PROMPT).release()
    after = client.call("status")["hits"]
    assert [after[name] - before[name] for name in names] == [107, 90, 2, 80, 60]
    for bad in (1, "yes", [1, 0, 0], [True, False]):
        with pytest.raises(sc.Invalid, match="again"):
            client.acquire(batch, again=bad)


def test_memory__is_the_services_own_and_read_only(client):
    client.store(PROMPT[:8], values(client, 3))
    one, other = client.acquire_one(PROMPT), client.acquire_one(PROMPT)
    view = one.view(0)
    assert not view.flags.writeable and not view.flags.owndata
    with pytest.raises(ValueError):
        view[0] = 1
    with pytest.raises(ValueError):
        one.data[0] = 1
    assert "r--s" in mapping(view) and "memfd:statecache" in mapping(view)
    assert other.view(0).ctypes.data != view.ctypes.data
    one.release()
    other.release()


def mapping(array):
    """The line of /proc/self/maps that has this array."""
    address = array.ctypes.data
    for line in pathlib.Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        begin, end = (int(word, 16) for word in line.split()[0].split("-"))
        if begin <= address < end:
            return line
    raise AssertionError("not mapped")


def test_memory__arrays_stay_valid_after_release_and_eviction(client):
    client.store(PROMPT[:8], values(client, 4))
    state = client.acquire_one(PROMPT)
    view, tail = state.view(0), state.view(0, "conv")[1:]
    state.release()
    assert client.evict(10) == 1
    client.store(PROMPT[:9], values(client, 5))
    np.testing.assert_array_equal(view, values(client, 4)[1])
    del state, view
    np.testing.assert_array_equal(np.asarray(tail), values(client, 4)[0][1:])


def test_memory__goes_with_the_last_array(client):
    client.store(PROMPT[:8], values(client, 4))
    state = client.acquire_one(PROMPT)
    view = state.view(0)
    line = mapping(view).split()[0]
    state.release()
    del state
    maps = pathlib.Path("/proc/self/maps")
    assert line in maps.read_text(encoding="ascii")
    del view
    assert line not in maps.read_text(encoding="ascii")


def test_dlpack__a_tensor_over_the_mapping(client):
    client.store(PROMPT[:8], values(client, 6))
    with client.acquire_one(PROMPT) as state:
        tensor = state.tensor(0)
        assert tensor.shape == (2, 16, 16) and tensor.__dlpack_device__() == (1, 0)
        if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
            array = np.from_dlpack(tensor)
            assert not array.flags.writeable
            assert array.ctypes.data == state.view(0).ctypes.data


def test_torch__bf16_both_ways(client):
    torch = pytest.importorskip("torch")
    with client.write(PROMPT[:7]) as write:
        tensor = torch.from_dlpack(write.tensor(0, "conv"))
        assert tensor.dtype == torch.bfloat16
        tensor.copy_(torch.arange(192).reshape(3, 64))
        del tensor
        write.view(0)[...] = 2
    with client.acquire_one(PROMPT) as state:
        got = torch.from_dlpack(state.tensor(0, "conv"))
        assert torch.equal(got.float(), torch.arange(192.0).bfloat16().float().reshape(3, 64))


def test_write__into_the_staging_file(client):
    with client.write(PROMPT[:12]) as write:
        assert not write.exists
        state = write.view(0)
        assert state.flags.writeable and not state.any() and "rw-s" in mapping(state)
        state[...] = 7
        write.view(0, "conv")[...] = np.uint16(3)
        with pytest.raises(sc.Busy, match="alive"):
            write.commit()
        del state
    assert write.stored is True
    with pytest.raises(sc.Stale):
        write.view(0)
    with pytest.raises(sc.Stale):
        write.commit()
    again = client.write(PROMPT[:12])
    assert again.exists and again.commit() is False
    with pytest.raises(sc.NotFound):
        again.view(0)
    with client.acquire_one(PROMPT) as got:
        assert (got.view(0) == 7).all() and (got.view(0, "conv") == 3).all()


def test_write__an_exception_aborts_it(client):
    with pytest.raises(RuntimeError):
        with client.write(PROMPT[:12]) as write:
            write.view(0)[...] = 7
            raise RuntimeError
    assert client.lookup(PROMPT)["state_len"][0][0] == 0
    write.abort()
    write = client.write(PROMPT[:12])
    del write  # nobody refers to it: aborted with the next call
    assert client.call("status")["service"]["writes_open"] == 0


def test_write__of_nothing_is_refused(client):
    held = client.call("status")["service"]["writes_open"]
    with pytest.raises(sc.WrongState, match="nothing was filled: fill every part"):
        with client.write(PROMPT[:12]):
            pass
    write = client.write(PROMPT[:12])
    with pytest.raises(sc.WrongState):
        write.commit()
    with pytest.raises(sc.NotFound):
        write.view(9)
    with pytest.raises(sc.WrongState):
        write.commit()
    with pytest.raises(sc.Mismatch):  # the first part would fit
        write.fill(values(client, 1)[:1] + [np.zeros(3, np.float32)] * (len(client.parts) - 1))
    with pytest.raises(sc.WrongState):
        write.commit()
    assert write.stored is None and client.lookup(PROMPT)["state_len"][0][0] == 0
    write.fill(values(client, 1))  # it goes on
    assert write.commit() and client.lookup(PROMPT)["state_len"][0][0] == 12
    with client.write(PROMPT[:12]) as write:  # it is there: nothing to fill
        assert write.exists
    with client.write(PROMPT[:11]) as write:
        write.abort()
    assert client.call("status")["service"]["writes_open"] == held


def test_with__what_a_block_raises_is_what_comes_out(service):
    with pytest.warns(ResourceWarning, match="a client was left open"):
        with pytest.raises(KeyError, match="mine"):
            with sc.Client(f"unix:{service.path}") as client:
                write = client.write(PROMPT[:3])
                view = write.view(0)
                raise KeyError("mine")
    del view
    client.close()
    remote = sc.Remote(f"unix:{service.path}")
    tiers = sc.Tiers(remote=sc.TierConfig(1 << 24), service=remote)
    with pytest.warns(ResourceWarning, match="a remote was left open"):
        with pytest.raises(KeyError, match="mine"):
            with remote:
                raise KeyError("mine")
    tiers.close()
    remote.close()


def test_empty__a_prompt_of_no_tokens_evicts_nothing(client):
    client.store(PROMPT[:12], values(client, 1))
    for empty in ([], np.empty(0, np.int32)):
        with pytest.raises(sc.Invalid, match="tokens: the prompt is empty"):
            client.evict_prefix(empty)
        with pytest.raises(sc.Invalid, match="tokens: the prompt is empty"):
            client.acquire_one(empty)
    assert client.lookup(PROMPT)["state_len"][0][0] == 12


def test_write__while_an_array_is_alive_the_client_stays_open(service):
    client = sc.Client(f"unix:{service.path}")
    write = client.write(PROMPT[:3])
    view = write.view(0)
    with pytest.raises(sc.Busy):
        client.close()
    with pytest.raises(sc.Busy):
        write.abort()
    view[...] = 1
    del view
    client.close()
    client.close()
    with pytest.raises(sc.Stale):
        write.view(0)
    with pytest.raises(sc.Invalid, match="closed"):
        client.lookup(PROMPT)


def test_fill__refuses_what_does_not_fit(client):
    good = values(client, 1)
    bad = [good[:1], good + good, [good[1], good[0]], [good[0], good[1].astype(np.float64)],
           [good[0], good[1][:1]], [good[0], good[1].tolist()], {(0, "conv", 0): good[0]}]
    for case in bad:
        with pytest.raises((sc.Mismatch, sc.Invalid)):
            client.store(PROMPT[:5], case)
    assert client.call("status")["service"]["writes_open"] == 0
    by_name = {part.key: value for part, value in zip(client.parts, good)}
    assert client.store(PROMPT[:5], by_name)


def test_tenants__are_isolated(client, service):
    client.store(PROMPT[:20], values(client, 1), tenant="shop")
    client.store(PROMPT[:20], values(client, 2), tenant="bank")
    assert client.lookup(PROMPT)["state_len"][0][0] == 0
    for tenant, seed in (("shop", 1), ("bank", 2)):
        with sc.Client(f"unix:{service.path}", tenant=tenant) as own:
            with own.acquire_one(PROMPT) as state:
                assert state.len == 20
                same(state, own, seed)
            assert own.quota().bytes == own.info.file_bytes
    with sc.Client(f"unix:{service.path}", token="the shop's own token") as bound:
        with bound.acquire_one(PROMPT) as state:
            same(state, bound, 1)
        for call in (lambda: bound.acquire_one(PROMPT, tenant="bank"), lambda: bound.evict(1),
                     lambda: bound.quota("bank"), lambda: bound.common(PROMPT[:4])):
            with pytest.raises(sc.Denied):
                call()
    client.quota("shop", bytes_max=client.info.file_bytes)
    with pytest.raises(sc.LimitReached, match="shop"):
        client.write(PROMPT[:21], tenant="shop")
    assert client.quota("shop") == (client.info.file_bytes, client.info.file_bytes, 1)
    client.quota("shop", bytes_max=0)


def test_common__a_prompt_that_all_tenants_share(client):
    client.common(PROMPT[:10])
    client.store(PROMPT[:10], values(client, 3))
    for tenant in ("shop", "bank"):
        assert client.lookup(PROMPT, tenant=tenant)["state_len"][0][0] == 10
    client.common(PROMPT[:10], drop=True)
    with pytest.raises(sc.NotFound):
        client.common(PROMPT[:10], drop=True)


def test_pin__keeps_a_state_from_eviction(client):
    client.store(PROMPT[:20], values(client, 1))
    pin = client.pin(PROMPT)
    assert pin.len == 20 and pin.held and client.evict(10) == 0
    with pytest.raises(sc.NotFound, match="acquire"):
        pin.view(0)
    pin.release()
    assert client.evict(10) == 1
    assert client.pin(PROMPT).len == 0
    with pytest.raises(sc.Invalid):
        client.pin(PROMPT, keep=True)


def test_explain__says_what_stands_against_a_prompt(client):
    client.store(PROMPT[:20], values(client, 1), tenant="shop")
    why = client.explain(PROMPT, tenant="bank")
    assert why.differs == "mark" and why.tenant_there == "shop" and why.common_len == 0
    client.store(PROMPT[:10], values(client, 2))
    why = client.explain(PROMPT)
    assert (why.reason, why.state_len[0], why.match_len, why.differs) == (
        sc.Reason.NO_PREFIX, 10, 10, "end")
    other = PROMPT.copy()
    other[7] = 5
    why = client.explain(other)
    assert (why.match_len, why.differs, why.token_here, why.token_there) == (7, "token", 5, 107)
    assert client.explain(PROMPT[:10]).beyond_len == 10
    with pytest.raises(sc.Invalid):
        client.explain(np.empty(0, np.int32))


def test_evict_prefix__a_prompt_a_tenant_all(client):
    for tenant in (None, "shop"):
        for at in (10, 20):
            client.store(PROMPT[:at], values(client, at), tenant=tenant)
    assert client.evict_prefix(PROMPT[:11]) == (1, 0, 0)
    assert client.lookup(PROMPT)["state_len"][0][0] == 10
    assert client.evict_prefix(tenant="shop") == (2, 0, 0)
    with client.acquire_one(PROMPT):
        assert client.evict_prefix() == (0, 0, 1)
    assert client.evict_prefix() == sc.Evicted(1, 0, 0)


def test_state__that_nothing_refers_to_is_given_back(client):
    client.store(PROMPT[:20], values(client, 1))
    state = client.acquire_one(PROMPT)
    assert client.call("status")["service"]["leases_open"] == 1
    del state
    assert client.call("status")["service"]["leases_open"] == 0


def test_tcp__the_same_by_bytes(client, service):
    host, port = service.tcp()
    address = f"tcp:{host}:{port}"
    with pytest.raises(sc.Denied):
        sc.Client(address)
    with pytest.raises(sc.Denied):
        sc.Client(address, token="another token, which is wrong")
    with sc.Client(address, token="the service's own token") as remote:
        assert not remote.info.files
        assert remote.store(PROMPT[:20], values(remote, 5))
        with remote.acquire_one(PROMPT) as state:
            same(state, remote, 5)
            view = state.view(0)
        assert not view.flags.writeable
        np.testing.assert_array_equal(view, values(remote, 5)[1])
    with client.acquire_one(PROMPT) as state:
        same(state, client, 5)


def test_refused__arguments(client, service):
    with pytest.raises(sc.NotFound):
        sc.Client("unix:/nowhere/at/all")
    for address in ("nowhere", "http//x", 7):
        with pytest.raises((sc.Invalid, sc.NotFound)):
            sc.Client(address)
    with pytest.raises(sc.Mismatch):
        sc.Client(f"unix:{service.path}", fingerprint=bytes(16))
    for words in ({"fingerprint": b"1"}, {"timeout_ms": -1}, {"tenant": "a" * 64},
                  {"token": 7}, {"tenant": "a\0b"}):
        with pytest.raises(sc.Invalid):
            sc.Client(f"unix:{service.path}", **words)
    for call in (lambda: client.lookup(PROMPT.astype(np.int64)),
                 lambda: client.lookup(np.empty(0, np.int32)),
                 lambda: client.lookup(PROMPT, tenant=3), lambda: client.lookup(PROMPT, adapter=1),
                 lambda: client.lookup(PROMPT, adapter=(-1, 0)),
                 lambda: client.acquire_one([PROMPT, PROMPT]),
                 lambda: client.acquire(PROMPT, deadline_ms=-1), lambda: client.evict(-1),
                 lambda: client.release([7]), lambda: client.pin(PROMPT, seconds=-1),
                 lambda: client.quota("a", -1), lambda: client.quota()):
        with pytest.raises(sc.Invalid):
            call()
    with pytest.raises(sc.LimitReached):
        client.lookup(sc.Ragged.pack([PROMPT] * 129))
    with pytest.raises(sc.NotFound):
        client.call("nothing")
    with pytest.raises(sc.Unsupported):
        client.call("acquire")
    state = client.acquire_one(PROMPT)
    with sc.Client(f"unix:{service.path}") as other, pytest.raises(sc.Invalid):
        other.release([state])
    client.store(PROMPT[:5], values(client, 1))
    with client.acquire_one(PROMPT) as state:
        for bad in ((1,), (0, "extra"), (0, "conv", 1)):
            with pytest.raises(sc.NotFound):
                state.view(*bad)
        with pytest.raises(sc.Invalid):
            state.view(0, "matrix")


def test_not_now__when_every_slot_is_held(client):
    for at in range(1, 6):
        client.store(PROMPT[:at], values(client, at))
    writes = []
    with pytest.raises((sc.NotNow, sc.NoSlot)):
        for at in range(10, 40):
            writes.append(client.write(PROMPT[:at]))
    for write in writes:
        write.abort()


KILLED = """
import sys
import numpy as np
import statecache as sc
client = sc.Client(sys.argv[1])
write = client.write(np.arange(int(sys.argv[2]), dtype=np.int32))
write.data[:1000] = 7
print("filling", flush=True)
sys.stdin.read()
"""


def test_killed__while_it_writes_nothing_leaks_and_nobody_sees_it(client, service):
    prompt = np.arange(50, dtype=np.int32)
    for at in range(4):
        child = subprocess.Popen([sys.executable, "-c", KILLED, f"unix:{service.path}",
                                  str(30 + at)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"filling\n"
        child.send_signal(signal.SIGKILL)
        child.communicate()
    for _ in range(500):
        status = client.call("status")["service"]
        if status["writes_open"] == 0:
            break
        time.sleep(0.01)
    assert status["writes_open"] == 0 and status["leases_open"] == 0
    assert client.lookup(prompt)["state_len"][0][0] == 0
    assert client.store(prompt[:30], values(client, 9))  # the same key can be written
    with client.acquire_one(prompt) as state:
        same(state, client, 9)


def test_threads__share_one_client(client):
    client.store(PROMPT[:20], values(client, 1))
    problems = []

    def work(seed):
        try:
            for at in range(25):
                with client.acquire_one(PROMPT) as state:
                    same(state, client, 1)
                client.store(np.full(5, 1000 * seed + at, np.int32), values(client, seed))
        except Exception as problem:  # whatever it is, it is the test's
            problems.append(problem)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not [problem for problem in problems if not isinstance(problem, sc.NoSlot)], problems


def test_restart__calls_say_closed_until_reconnect():
    service = Service(PROGRAM, TINY)
    client = sc.Client(f"unix:{service.path}")
    client.store(PROMPT[:20], values(client, 1))
    state = client.acquire_one(PROMPT)
    view = state.view(0)
    assert service.stop() == 0
    for _ in range(2):
        with pytest.raises(sc.ConnectionClosed):
            client.lookup(PROMPT)
    with pytest.raises(sc.NotFound):
        client.reconnect()
    service.start()
    with pytest.raises(sc.ConnectionClosed):
        client.lookup(PROMPT)
    assert client.reconnect() == 1
    np.testing.assert_array_equal(view, values(client, 1)[1])
    with pytest.raises(sc.Stale):
        state.release()
    assert client.acquire_one(PROMPT).len == 0
    client.close()
    service.stop()
