# SPDX-License-Identifier: Apache-2.0
"""SGLang's RadixCache on the requests of `statecache-bench radix`, for comparison.

    pip download --no-deps sglang && unzip -d DIR sglang-*.whl
    statecache-bench radix --workload w1 --export | python3 bench/radix_sglang.py DIR

Its own code runs: `sglang/srt/mem_cache/radix_cache.py` from the wheel, with stubs for what it
imports (torch, pools, metrics). Tensors are views of arrays here, which cost less than torch's.
Keys are made beforehand. Only W1 and W2 as exported; nothing of the wheel is kept.
"""
import argparse
import importlib.abc
import importlib.machinery
import json
import struct
import sys
import time
import types
from array import array

REAL = {"radix_cache", "base_prefix_cache", "evict_policy", "cache_init_params"}
BUCKETS = (("1k", 700, 1500), ("4k", 3000, 6000), ("9k", 7500, 11000), ("24-30k", 24000, 30100))
EVICT = 8192


class Tensor:
    """As much of a tensor as the tree uses."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return Tensor(self.data[index])

    def clone(self):
        return Tensor(memoryview(array("q", self.data)))


class Stub(types.ModuleType):
    """A module in which every name is a class that accepts anything."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        methods = {"__init__": lambda self, *a, **k: None,
                   "__getattr__": lambda self, n: (lambda *a, **k: None),
                   "__class_getitem__": classmethod(lambda cls, item: cls)}
        value = type(name, (), methods)
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stubs for torch and for what of sglang is not needed."""

    def find_spec(self, fullname, path=None, target=None):
        top, _, last = fullname.partition(".")[0], "", fullname.rpartition(".")[2]
        if top not in ("torch", "sglang", "numpy", "msgspec", "zmq") or (
                fullname.startswith("sglang.srt.mem_cache.") and last in REAL):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        module.__path__ = [f"{self.folder}/{module.__name__.replace('.', '/')}"]


def load(folder):
    finder = Finder()
    finder.folder = folder
    sys.meta_path.insert(0, finder)
    import torch
    torch.empty = lambda *a, **k: Tensor(memoryview(array("q")))
    import sglang.srt.mem_cache.utils as utils

    class Lru:
        def get_priority(self, node):
            return node.last_access_time

    utils.get_eviction_strategy = lambda *a, **k: Lru()
    utils.split_node_hash_value = lambda value, at, page: (None, None)
    import sglang.srt.mem_cache.radix_cache as tree
    return tree


class Allocator:
    """Takes the ids that come back, as a list would."""

    device = "cpu"

    def __init__(self):
        self.count = 0

    def free_segment(self, value, start_pos=0):
        self.count += len(bytes(value.data)) // 8


def requests(stream):
    while True:
        head = stream.read(8)
        if len(head) < 8:
            return
        prompt, full = struct.unpack("<II", head)
        tokens = array("i")
        tokens.frombytes(stream.read(4 * full))
        yield prompt, array("q", tokens)


def row(metric, unit, values):
    if not values:
        return
    values.sort()
    last = len(values) - 1
    print(json.dumps({"v": 1, "bench": "radix", "params": {"workload": "", "tree": "SGLang"},
                      "metric": metric, "unit": unit, "n": len(values),
                      "p50": values[round(last * 0.5)], "p99": values[round(last * 0.99)]}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="where the wheel was unpacked")
    tree = load(parser.parse_args().folder)
    allocator = Allocator()
    cache = tree.RadixCache.create_simulated(mock_allocator=allocator)
    ids = memoryview(array("q", range(1 << 15)))
    match_ns, insert_ns, matched = [], [], []
    for prompt, tokens in requests(sys.stdin.buffer):
        key = tree.RadixKey(tokens[:prompt], None)
        begin = time.perf_counter_ns()
        result = cache.match_prefix(tree.MatchPrefixParams(key=key))
        match_ns.append(time.perf_counter_ns() - begin)
        matched.append(result.device_prefix_len)
        key = tree.RadixKey(tokens, None)
        value = Tensor(ids[:len(tokens)])
        begin = time.perf_counter_ns()
        cache.insert(tree.InsertParams(key=key, value=value))
        insert_ns.append(time.perf_counter_ns() - begin)
    cached = cache.evictable_size()
    row("tokens cached", "M", [cached / 1e6])
    row("match, all lengths", "ns", list(match_ns))
    for name, low, high in BUCKETS:
        row(f"match {name}", "ns", [t for t, m in zip(match_ns, matched) if low <= m < high])
    row("insert", "ns", insert_ns)
    took = []
    while cache.evictable_size() > cached / 10:
        begin = time.perf_counter_ns()
        cache.evict(tree.EvictParams(num_tokens=EVICT))
        took.append((time.perf_counter_ns() - begin) / 1000)
    row("evict 8k", "us", took)


if __name__ == "__main__":
    main()
