# SPDX-License-Identifier: Apache-2.0
"""Loads the installed libstatecache.so into a plain Python, as an engine would, and makes one hit.

A library linked with Debian's jemalloc cannot be loaded this way ("cannot allocate memory in static
TLS block"); this one must be. A first request computes a prompt of 32 tokens and keeps its end; a
second one that continues it must resume at token 32 and read the very bytes that the first wrote.

    dlopen_hit.py LIBRARY INCLUDE_FOLDER CC

The structures below are written by hand, so CC first tells from the installed headers where their
members lie: a mirror that is out of date fails by name, not by a crash.
"""
import ctypes
import pathlib
import subprocess
import sys
import tempfile
from ctypes import POINTER, Structure, byref, c_bool, c_char, c_char_p, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint8, c_uint32, c_uint64, c_void_p


class Group(Structure):
    _fields_ = [("name", c_char * 64), ("chunk", c_uint32)]


class Block(Structure):
    _fields_ = [("channels", c_uint32), ("unit", c_uint32), ("split", c_int)]


class Part(Structure):
    _fields_ = [("layer", c_uint32), ("group", c_uint32), ("kind", c_int), ("dtype", c_int),
                ("dim_count", c_uint32), ("dims", c_uint32 * 4), ("block_count", c_uint32),
                ("blocks", Block * 4), ("index", c_uint32)]


class SchemaOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("model", c_char_p), ("revision", c_char_p),
                ("conventions", c_char_p), ("groups", POINTER(Group)), ("group_count", c_uint32),
                ("parts", POINTER(Part)), ("part_count", c_uint32), ("layer_count", c_uint32),
                ("allocator", c_void_p)]


class PoolOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("schema", c_void_p), ("shard", c_uint32 * 6),
                ("layout", c_int), ("slot_count", c_uint32), ("backend", c_void_p),
                ("foreign", c_void_p), ("allocator", c_void_p)]


class LayerView(Structure):
    _fields_ = [("base", c_uint64), ("slot_stride", c_int64), ("dtype", c_int),
                ("dim_count", c_uint32), ("dims", c_uint32 * 4), ("bytes", c_uint64),
                ("alignment", c_uint32)]


class CacheOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("pool", c_void_p), ("extras", c_void_p),
                ("page_tokens", c_uint32), ("without_kv", c_bool), ("row_max", c_uint32),
                ("save_max", c_uint32), ("lease_max", c_uint32), ("lease_token_max", c_uint32),
                ("token_max", c_uint64), ("path_snapshots_max", c_uint32), ("save_flags", c_uint32),
                ("decode_interval", c_uint32), ("keep_cuts", c_bool), ("allocator", c_void_p)]


class Handle(Structure):
    _fields_ = [("id", c_uint32), ("generation", c_uint32)]


class Key(Structure):
    _fields_ = [("ns", Handle), ("tokens", POINTER(c_int32)), ("marks", c_void_p),
                ("token_count", c_uint32), ("mark_count", c_uint32), ("len_max", c_uint32)]


class Hints(Structure):
    _fields_ = [("breakpoints", c_void_p), ("breakpoint_count", c_uint32), ("flags", c_uint32),
                ("pin_until_ns", c_uint64), ("ttl_ns", c_uint64), ("priority", c_int32),
                ("class_id", c_uint32)]


class Request(Structure):
    _fields_ = [("key", Key), ("deadline_ns", c_uint64), ("flags", c_uint32), ("depth", c_uint32),
                ("hints", c_void_p), ("external_len", c_uint32), ("reserved32", c_uint32),
                ("reserved", c_uint64 * 6)]


class LeaseInfo(Structure):
    _fields_ = [("state", c_int), ("resume_len", c_uint32), ("resume_kind", c_int),
                ("resume_slot", c_uint32), ("prompt_len", c_uint32), ("len", c_uint32),
                ("token_count", c_uint32), ("branch_len", c_uint32), ("prompt_end_len", c_uint32),
                ("reason", c_int), ("working_slot", c_int32), ("source_slot", c_int32),
                ("extra_slot", c_int32), ("kv_page_count", c_uint32), ("issued_len", c_uint32),
                ("issued_len_max", c_uint32), ("steps_out", c_uint32), ("tail_kv", c_int32),
                ("flags", c_uint32), ("external_len", c_uint32), ("hints", Hints),
                ("resume_hints", Hints), ("restore_ticket", c_uint64), ("restore_len", c_uint32),
                ("records", c_uint32), ("records_slot", c_int32)]


class Row(Structure):
    _fields_ = [("lease", Handle), ("from", c_uint32), ("to", c_uint32),
                ("points", POINTER(c_uint32)), ("point_count", c_uint32), ("draft_count", c_uint32),
                ("parents", POINTER(c_int32))]


class Batch(Structure):
    _fields_ = [("block", POINTER(c_int32))] + [(name, c_uint32) for name in (
        "block_words", "row_max", "save_max", "row_count", "save_count", "token_count",
        "at_query_start_loc", "at_position", "at_end", "at_source", "at_dest", "at_extra",
        "at_decode", "at_freeze", "at_save_row", "at_save_position", "at_save_slot", "at_row_count",
        "at_save_count", "at_token_count", "at_accepted", "at_accepted_back", "at_draft_count",
        "at_parent", "at_copy_from", "at_copy_to", "draft_max", "at_flush", "at_extra_from")]


class Result(Structure):
    _fields_ = [("lease", Handle), ("len", c_uint32), ("kv_ids", POINTER(c_int32)),
                ("kv_count", c_uint32)]


# Members that this program does not need may be missing at the end of those with a struct_size.
MIRRORS = {"sc_group": Group, "sc_block": Block, "sc_part": Part,
           "sc_schema_options": SchemaOptions, "sc_pool_options": PoolOptions,
           "sc_layer_view": LayerView, "sc_cache_options": CacheOptions, "sc_lease": Handle,
           "sc_key": Key, "sc_request": Request, "sc_hints": Hints, "sc_lease_info": LeaseInfo,
           "sc_row": Row, "sc_batch": Batch, "sc_result": Result}


def check_mirrors(include, compiler):
    """Compares size and offsets of each structure with what the compiler makes of the headers."""
    lines = []
    for name, mirror in MIRRORS.items():
        if mirror._fields_[0][0] != "struct_size":
            lines.append((f"sizeof({name})", ctypes.sizeof(mirror)))
        lines += [(f"offsetof({name}, {member[0]})", getattr(mirror, member[0]).offset)
                  for member in mirror._fields_]
    source = "#include <statecache/statecache.h>\n#include <stddef.h>\n#include <stdio.h>\n"
    source += "int main(void) {\n"
    source += "".join(f'printf("%zu\\n", {expression});\n' for expression, _ in lines) + "}\n"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "layout.c")
        path.write_text(source, encoding="ascii")
        subprocess.run([compiler, "-std=c11", f"-I{include}", path, "-o", path.with_suffix("")],
                       check=True)
        said = subprocess.run([path.with_suffix("")], check=True, capture_output=True, text=True)
    wrong = [f"{expression} is {real}, the mirror has {ours}"
             for (expression, ours), real in zip(lines, said.stdout.split()) if ours != int(real)]
    if wrong:
        sys.exit("\n".join(wrong))


class Cache:
    """The few calls that one hit needs."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name in ("sc_version", "sc_status_name"):
            getattr(self.lib, name).restype = c_char_p
        self.pool, self.cache, self.ns = c_void_p(), c_void_p(), Handle()
        self.view = LayerView()
        self.step = 0

    def call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        if status != 0:
            sys.exit(f"{name}: {self.lib.sc_status_name(status).decode()}")

    def open(self):
        """One layer with a state of 2 x 16 x 16 floats, 8 slots, a KV id for each token."""
        group = Group(b"gdn", 16)
        part = Part(layer=0, group=0, kind=2, dtype=1, dim_count=3)
        part.dims[:3] = [2, 16, 16]
        schema = c_void_p()
        options = SchemaOptions(ctypes.sizeof(SchemaOptions), b"toy", b"1", None,
                                ctypes.pointer(group), 1, ctypes.pointer(part), 1, 1, None)
        self.call("sc_schema_create", byref(options), byref(schema))
        pool = PoolOptions(struct_size=ctypes.sizeof(PoolOptions), schema=schema, layout=1,
                           slot_count=8)
        self.call("sc_pool_create", byref(pool), byref(self.pool))
        self.lib.sc_schema_release(schema)
        self.call("sc_pool_part_view", self.pool, 0, byref(self.view), None)
        cache = CacheOptions(ctypes.sizeof(CacheOptions), self.pool, None, 1, False, 4, 16, 4, 4096,
                             0, 0, 15, 0, False, None)
        self.call("sc_cache_create", byref(cache), byref(self.cache))
        self.call("sc_namespace_open", self.cache, None, c_uint64(0), c_uint64(0), byref(self.ns))

    def slot(self, number):
        """The bytes of a slot's state, in place."""
        address = self.view.base + number * self.view.slot_stride
        return (c_uint8 * self.view.bytes).from_address(address)

    def acquire(self, tokens):
        array = (c_int32 * len(tokens))(*tokens)
        request = Request(key=Key(self.ns, array, None, len(tokens), 0, 0))
        lease, each = Handle(), c_int(1)
        self.call("sc_cache_acquire", self.cache, byref(request), 1, c_uint64(0), byref(lease),
                  byref(each))
        assert each.value == 0, each.value
        info = LeaseInfo()
        self.call("sc_lease_info_get", self.cache, lease, byref(info))
        return lease, info

    def forward(self, lease, start, end, fill):
        """Plans a row, lets the "kernel" fill the state that it writes, commits."""
        self.step += 1
        row, batch, each = Row(lease, start, end), Batch(), c_int(1)
        self.call("sc_step_plan", self.cache, c_uint64(self.step), byref(row), 1, c_uint64(0),
                  byref(batch), byref(each))
        assert each.value == 0, each.value
        word = batch.block
        read, end = bytes(self.slot(word[batch.at_source])), word[batch.at_end]
        saves = [word[batch.at_save_slot + save] for save in range(batch.save_count)]
        targets = [word[batch.at_dest]] + saves
        for target in targets:
            ctypes.memset(self.slot(target), fill, self.view.bytes)
        ids = (c_int32 * (end - start))(*range(1000 + start, 1000 + end))
        result = Result(lease, end, ids, end - start)
        self.call("sc_step_commit", self.cache, c_uint64(self.step), byref(result), 1, None)
        return read, end

    def close(self):
        self.call("sc_cache_verify", self.cache)
        self.call("sc_cache_destroy", self.cache)
        self.call("sc_pool_destroy", self.pool)


def main():
    library, include, compiler = sys.argv[1:]
    check_mirrors(include, compiler)
    cache = Cache(library)
    version = cache.lib.sc_version().decode()
    assert version.count(".") == 2, version
    cache.open()
    prompt = list(range(100, 132))

    lease, info = cache.acquire(prompt)
    assert info.resume_len == 0, info.resume_len
    read, end = cache.forward(lease, 0, 32, 0x5A)
    assert end == 32 and not any(read), "a cold start reads zeros"
    cache.call("sc_lease_release", cache.cache, lease, 0, 1)

    lease, info = cache.acquire(prompt + [7, 8, 9])
    assert info.resume_len == 32, f"no hit: {info.resume_len}, reason {info.reason}"
    read, end = cache.forward(lease, 32, 35, 0x33)
    assert read == b"\x5a" * cache.view.bytes, "the hit does not read what was saved"
    cache.call("sc_lease_release", cache.cache, lease, 0, 0)
    cache.close()
    print(f"statecache {version}: one hit of 32 tokens from Python")


if __name__ == "__main__":
    main()
