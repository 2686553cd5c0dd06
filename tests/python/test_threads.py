# SPDX-License-Identifier: Apache-2.0
"""Threads: look-ups beside a scheduler, calls without the interpreter's lock, close against use."""
import threading
import time

import numpy as np
import pytest

import statecache as sc
from conftest import PAGE, Engine, make_schema


def in_threads(count, work):
    """Runs work(number) in threads; raises what one of them raised."""
    problems = []

    def run(number):
        try:
            work(number)
        except BaseException as problem:  # handed to the test
            problems.append(problem)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if problems:
        raise problems[0]


def test_lookups__go_on_while_a_scheduler_serves(cache, engine, ns):
    texts = [np.arange(100 * n, 100 * n + 48, dtype=np.int32) for n in range(3)]
    longer = np.concatenate([texts[0], np.arange(7, 20, dtype=np.int32)])
    done = threading.Event()

    def work(number):
        if number == 0:
            for turn in range(60):
                engine.serve(ns, [texts[turn % 3]])
                cache.evict(slots=1 if turn % 5 == 0 else 0)
                cache.drain()
            done.set()
            return
        while not done.is_set():
            answer = cache.lookup(ns, longer)[0]
            assert answer["state_len"][0] in (0, 16, 32, 48) and answer["status"] == 0
            cache.room(), cache.stats()
    in_threads(3, work)


def test_calls__do_not_hold_the_interpreters_lock(ns, cache):
    """A callback of the library waits for another Python thread: with the lock held in the call,
    that thread could not run."""
    ran = threading.Event()
    waiting = threading.Event()

    def other():
        waiting.wait(30)
        ran.set()
    thread = threading.Thread(target=other)
    thread.start()
    cache.acquire_one(ns, list(range(40))).release()
    seen = []

    def work(_, line):
        waiting.set()
        seen.append(ran.wait(30))
    write = sc.ffi.callback("void(void *, const char *)", work)
    with cache._handle as pointer:
        space = sc.ffi.new("sc_namespace *", tuple(ns))[0]
        assert sc.lib.sc_cache_dump(pointer, space, write, sc.ffi.NULL) == 0
    thread.join()
    assert seen and all(seen)


def test_calls__long_ones_run_beside_python():
    """While one thread is in look-ups of a million tokens, another one gets its turns."""
    with sc.Pool(make_schema(), 4) as pool, sc.Cache(pool, PAGE, lease_token_max=1 << 20) as cache:
        engine, ns = Engine(cache), cache.namespace()
        tokens = np.arange((1 << 20) - 2, dtype=np.int32)
        engine.serve(ns, [tokens])
        stop, turns = threading.Event(), []

        def work(number):
            if number == 0:
                for _ in range(50):
                    cache.lookup(ns, tokens)
                stop.set()
            while not stop.is_set():
                turns.append(1)
                time.sleep(0.001)
        in_threads(2, work)
        assert turns


def test_close__is_refused_while_another_thread_is_in_a_call(schema):
    pool = sc.Pool(schema, 4)
    cache = sc.Cache(pool, PAGE)
    ns = cache.namespace()
    cache.acquire_one(ns, list(range(40))).release()
    inside, leave = threading.Event(), threading.Event()

    def hold(_, line):
        inside.set()
        leave.wait(30)
    write = sc.ffi.callback("void(void *, const char *)", hold)

    def work(_):
        with cache._handle as pointer:
            space = sc.ffi.new("sc_namespace *", tuple(ns))[0]
            sc.lib.sc_cache_dump(pointer, space, write, sc.ffi.NULL)
    thread = threading.Thread(target=work, args=(0,))
    thread.start()
    assert inside.wait(30)
    with pytest.raises(sc.Busy, match="another thread"):
        cache.close()
    leave.set()
    thread.join()
    cache.close()
    pool.close()


def test_errors__are_the_threads_own(cache, ns):
    def work(number):
        for _ in range(300):
            with pytest.raises(sc.Error) as caught:
                if number % 2:
                    cache.namespace(bytes(16))
                else:
                    cache.pool.view(4321)
            assert ("4321" in caught.value.text) == (number % 2 == 0), caught.value
    in_threads(4, work)
