# SPDX-License-Identifier: Apache-2.0
"""A statecached as the tier of caches in several processes: sc.Remote, Cache.find, Cache.learn.

    test_remote.py store|check|leave ADDRESS TENANT FIRST COUNT   an engine process of these tests
"""
import contextlib
import gc
import hashlib
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

import statecache as sc
from statecache import client

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "service"))
from wire import TINY, Service  # noqa: E402 (needs the path)

PROGRAM = os.environ.get("STATECACHE_TEST_SERVICE", "")
pytestmark = pytest.mark.skipif(not os.access(PROGRAM, os.X_OK),
                                reason="statecached is not built")
LEN = 32
PARTS = [sc.Part(0, "conv", "bf16", (3, 64)), sc.Part(0, "recurrent", "f32", (2, 16, 16))]


def schema(revision="preset"):
    """What TINY says to the service."""
    return sc.Schema("tiny", revision, [sc.Group("gdn", 16)], PARTS, 1)


class Engine:
    """An engine with a few slots of its own. The state of a prompt is random bits, by its seed."""

    def __init__(self, address, tenant=None, write="through", layout="page-major", **words):
        self.pool = sc.Pool(schema(), 6, layout)
        self.remote = sc.Remote(address, tenant=tenant, **words)
        self.tiers = sc.Tiers(remote=sc.TierConfig(1 << 30, write=write), service=self.remote)
        self.cache = sc.Cache(self.pool, 16, without_kv=True, tiers=self.tiers)
        self.ns = self.cache.namespace(adapter_id=5, adapter_generation=1)

    def close(self):
        self.cache.verify()
        self.cache.close()
        self.tiers.close()
        self.remote.close()
        gc.collect()
        self.pool.audit()
        self.pool.close()

    def settle(self):
        for _ in range(4000):
            self.cache.apply(self.cache.poll())
            if self.cache.stats()["transfers_alive"] == 0:
                return
            time.sleep(0.005)
        raise AssertionError("transfers did not end in 20 seconds")

    def bits(self, slot):
        return b"".join(self.pool.view(0, part.kind)[slot].tobytes() for part in PARTS)

    def learn(self, prompt):
        found = self.cache.find(self.ns, tokens(prompt, LEN + 1))
        self.cache.learn(found)
        return int(found.len[0]), int(found.status[0])

    def store(self, prompt, decoded=0):
        """Computes a prompt, and perhaps some tokens one by one, and keeps its end."""
        lease = self.cache.acquire_one(self.ns, tokens(prompt, LEN))
        assert lease.info.resume_len == 0
        for start, end in [(0, LEN)] + [(LEN + at, LEN + at + 1) for at in range(decoded)]:
            if end > LEN:
                lease.append(tokens(prompt, end)[start:])
            step = self.cache.plan(lease, start, end)
            sc.raise_for_status(step.status)
            for part, value in zip(PARTS, state_of(prompt + 1000 * (end - LEN))):
                self.pool.view(0, part.kind)[step.dest[0]] = value
            step.commit()
        lease.release()
        self.settle()

    def resume(self, prompt, count=LEN + 1):
        """(tokens resumed, its bits, why not more)"""
        lease = self.cache.acquire_one(self.ns, tokens(prompt, count))
        self.settle()
        info = lease.info
        assert info.state == sc.LeaseState.READY
        found = self.bits(info.source_slot) if info.resume_len else b""
        lease.release(keep=False)
        return info.resume_len, found, info.reason


def tokens(prompt, count):
    return np.arange(count, dtype=np.int32) + 1000 * prompt


def state_of(seed):
    rng = np.random.default_rng(seed)
    return (rng.integers(0, 1 << 16, PARTS[0].dims, dtype=np.uint16),
            rng.integers(0, 1 << 32, PARTS[1].dims, dtype=np.uint32).view(np.float32))


def bits_of(seed):
    return b"".join(value.tobytes() for value in state_of(seed))


@contextlib.contextmanager
def engine(service, *arguments, **words):
    made = Engine(f"unix:{service.path}", *arguments, **words)
    yield made
    made.close()


def elsewhere(what, service, tenant, first, count):
    """Another process does it; what it says, a line for each prompt."""
    done = subprocess.run(
        [sys.executable, __file__, what, f"unix:{service.path}", tenant, str(first), str(count)],
        capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def main(what, address, tenant, first, count):
    """The other process: stores prompts, or resumes them and prints what it got."""
    made = Engine(address, tenant or None, layout="contiguous")
    if what == "leave":
        leave(made)
    for prompt in range(int(first), int(first) + int(count)):
        if what == "store":
            made.store(prompt)
        else:
            made.learn(prompt)
            resumed, found, _ = made.resume(prompt)
            print(f"{resumed}:{hashlib.sha256(found).hexdigest()}")
    if what == "store":
        assert made.cache.stats()["tier_stored"][3] == int(count)
    made.close()


def leave(made):
    """Ends like an interpreter whose cache was left open: it unloads the libraries, while their
    threads still run. What is there then."""
    made.store(0)
    sc.ffi.dlclose(client._library)
    sc.ffi.dlclose(sc.lib)
    time.sleep(0.1)
    there = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8")
    print(*(f"libstatecache_{name}" in there for name in ("tiers", "client")), flush=True)
    os._exit(0)


@pytest.fixture
def service():
    made = Service(PROGRAM, TINY + "disk_folder = @/store\ndisk_bytes = 8MiB\n"
                   "disk_file_bytes = 4MiB\n")
    yield made
    if made.process.poll() is None:
        assert made.stop() == 0, made.text()


def test_remote__processes_share_states_bit_for_bit(service):
    """Five states that another process stored are resumed here, in another layout; five that are
    stored here are resumed there."""
    elsewhere("store", service, "", 0, 5)
    with engine(service) as made:
        assert made.resume(0)[0] == 0  # it knows of nothing
        for prompt in range(5):
            assert made.learn(prompt) == (LEN, 0)
            assert made.cache.lookup(made.ns, tokens(prompt, 40))["state_len"][0, 3] == LEN
            assert made.resume(prompt)[:2] == (LEN, bits_of(prompt))
        assert made.learn(99) == (0, 0)
        for prompt in range(5, 10):
            made.store(prompt)
        stats = made.tiers.stats()
        assert stats["stored"][3] == stats["restored"][3] == 5 and stats["failed"] == 0
    wanted = [f"{LEN}:{hashlib.sha256(bits_of(prompt)).hexdigest()}" for prompt in range(5, 10)]
    assert elsewhere("check", service, "", 5, 5) == wanted


def test_remote__tenants_are_apart(service):
    elsewhere("store", service, "a", 0, 1)
    with engine(service, "b") as made:
        assert made.learn(0) == (0, 0)
    with engine(service, "a") as made:
        assert made.learn(0) == (LEN, 0) and made.resume(0)[:2] == (LEN, bits_of(0))


def test_find__a_batch_and_histories(service):
    """A state whose end was decoded is found by who says so; others find the prompt's part."""
    with engine(service) as made:
        made.store(0, decoded=16)
        made.store(1)
        gone = made.cache.evict(slots=6)
        assert gone["slots_free"] >= 2
    with engine(service) as made:
        texts = [tokens(0, 60), tokens(1, 60), tokens(2, 60)]
        found = made.cache.find(made.ns, texts)
        assert found.len.tolist() == [LEN, LEN, 0] and found.status.tolist() == [0, 0, 0]
        history = np.zeros(2, sc.HISTORY)
        history["end"], history["form"] = [LEN, 60], [0, 1]
        decoded = made.cache.find(made.ns, texts[:1], history=[history])
        assert decoded.len.tolist() == [LEN + 16] and "48" in repr(decoded)
        assert made.cache.find(made.ns, texts, len_max=16).len.tolist() == [0, 0, 0]
        found.len[:] = np.minimum(found.len, [LEN, 0, 0])  # what another rank has not got
        made.cache.learn(found)
        assert made.resume(0)[:2] == (LEN, bits_of(0)) and made.resume(1)[0] == 0
        made.cache.learn(made.cache.find(made.ns, []))  # an empty batch is a batch


def test_remote__a_service_that_is_gone_is_a_miss_and_comes_back(service):
    elsewhere("store", service, "", 0, 3)
    with engine(service) as made:
        assert made.learn(0) == made.learn(1) == (LEN, 0)
        assert service.stop() == 0, service.text()
        resumed, _, reason = made.resume(0)
        assert (resumed, reason) == (0, sc.Reason.TIER_FAILED)
        assert made.learn(2) == (0, sc.Status.CLOSED)
        made.store(10)  # its store fails, it is on the device all the same
        assert made.resume(10)[:2] == (LEN, bits_of(10))
        service.start()
        time.sleep(1.1)  # so long it is not tried again
        assert made.resume(1)[:2] == (LEN, bits_of(1))
        assert made.learn(2) == (LEN, 0) and made.resume(2)[:2] == (LEN, bits_of(2))


def test_remote__the_libraries_stay_while_their_threads_run(service):
    assert elsewhere("leave", service, "", 0, 1) == ["True", "True"]


def test_remote__closing_waits_for_the_tiers(service):
    remote = sc.Remote(f"unix:{service.path}")
    tiers = sc.Tiers(remote=sc.TierConfig(1 << 20), service=remote)
    with pytest.raises(sc.Busy, match="tiers"):
        remote.close()
    tiers.close()
    remote.close()
    remote.close()
    with pytest.raises(sc.Invalid, match="closed"):
        sc.Tiers(remote=sc.TierConfig(1 << 20), service=remote)
    with sc.Remote(f"unix:{service.path}") as remote, sc.Tiers(
            remote=sc.TierConfig(1 << 20), service=remote):
        pass
    tiers = sc.Tiers(remote=sc.TierConfig(1 << 20), service=sc.Remote(f"unix:{service.path}"))
    gc.collect()
    tiers.close()  # it has kept its remote


def test_remote__what_does_not_fit_is_refused(service, tmp_path):
    address, config = f"unix:{service.path}", sc.TierConfig(1 << 20)
    for words in ({"address": 5}, {"address": "nowhere"}, {"fingerprint": b"short"},
                  {"timeout_ms": -1}, {"tenant": "a\0b"}, {"token": 7}):
        with pytest.raises(sc.Invalid):
            sc.Remote(**{"address": address, **words})
    with pytest.raises(sc.Mismatch):
        sc.Remote(address, fingerprint=bytes(16))
    with pytest.raises(sc.Error):
        sc.Remote(f"unix:{tmp_path}/nobody")
    with sc.Remote(address, fingerprint=schema().fingerprint) as remote:
        for words in ({"remote": config}, {"service": remote}, {"service": address},
                      {"remote": config, "service": remote, "host": config},
                      {"remote": sc.TierConfig(1 << 20, codec="bf16", lossy=True),
                       "service": remote}):
            with pytest.raises(sc.Invalid):
                sc.Tiers(**words)
        with sc.Tiers(remote=config, service=remote) as tiers:
            with sc.Pool(schema("other"), 4) as pool, pytest.raises(sc.Mismatch):
                sc.Cache(pool, without_kv=True, tiers=tiers)
            with sc.Pool(schema(), 4) as pool, sc.Cache(
                    pool, 16, without_kv=True, tiers=tiers) as cache:
                found = cache.find(cache.namespace(), tokens(0, 20))
                found.len[0] = 21
                with pytest.raises(sc.Invalid):
                    cache.learn(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
