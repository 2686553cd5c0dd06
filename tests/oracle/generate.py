#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the fixtures of the kernel tests, after checking that independent routes agree.

    generate.py [DIR]             check and write (default: fixtures/ beside this file)
    generate.py --check [DIR]     check, and compare with what is there; writes nothing
    generate.py --compare DUMP    recompute another implementation's dump, <kind>_<array>.npy
                                  (q, k, v, g, beta, S0, o, S, h64, h128) with these formulas

Inputs are bf16 numbers, so that one fixture serves fp32 and bf16 kernels. Same file every time.
"""
import os
import struct
import sys

import numpy as np

import reference as ref

TYPES = {"f32": 1, "bf16": 2, "i32": 4}


def same(name, got, want, tolerance=1e-10):
    error = np.abs(got - want).max() / max(1.0, np.abs(want).max())
    if not error <= tolerance:
        sys.exit(f"{name}: routes differ by {error:.2e}")


class Fixture:
    """SCFIX1: per array name[16], type, dim count, four dims (u32), data padded to 4 bytes."""

    def __init__(self):
        self.bytes = b"SCFIX1\n\0"

    def add(self, name, array, kind="f32"):
        array = np.ascontiguousarray(array)
        dims = list(array.shape) + [1] * (4 - array.ndim)
        data = {"f32": lambda: array.astype("<f4"),
                "bf16": lambda: ref.to_bf16(array).astype("<u2"),
                "i32": lambda: array.astype("<i4")}[kind]().tobytes()
        self.bytes += struct.pack("<16s6I", name.encode(), TYPES[kind], array.ndim, *dims)
        self.bytes += data + b"\0" * (-len(data) % 4)


def normal(rng, *shape):
    return ref.round_bf16(rng.standard_normal(shape))


def f32(x):
    return np.asarray(x, np.float32).astype(np.float64)


def gates_for(rng, kind, tokens, v_heads, k_dim, doubled=False):
    a_log = f32(np.log(rng.uniform(0.05, 4, v_heads)))
    b = normal(rng, tokens, v_heads)
    if kind == "gdn":
        a, dt_bias = normal(rng, tokens, v_heads), f32(rng.uniform(-4, 1, v_heads))
        g = ref.gate_gdn(a, a_log, dt_bias)
    else:
        a, dt_bias = normal(rng, tokens, v_heads, k_dim), f32(rng.uniform(-4, 1, (v_heads, k_dim)))
        a_log = f32(a_log - 2) if kind == "kda" else a_log
        g = ref.gate_kda(a, a_log, dt_bias, -5.0 if kind == "kda_bounded" else None)
    beta = ref.sigmoid(b) * (2 if doubled else 1)
    return a, b, a_log, dt_bias, g, beta


def delta(seed, kind, heads, v_heads, k_dim, v_dim, tokens, position, from_state=True, norm=True,
          scale=None, doubled=False):
    rng = np.random.default_rng(seed)
    q, k = normal(rng, tokens, heads, k_dim), normal(rng, tokens, heads, k_dim)
    if not norm:
        k = ref.round_bf16(ref.l2norm(k))
    v = normal(rng, tokens, v_heads, v_dim)
    g, beta = (f32(x) for x in gates_for(rng, kind, tokens, v_heads, k_dim, doubled)[4:])
    s0 = normal(rng, v_heads, v_dim, k_dim) if from_state else np.zeros((v_heads, v_dim, k_dim))
    o, states = ref.recurrent(q, k, v, g, beta, s0, scale, norm)
    o2, s2 = ref.by_transition(q, k, v, g, beta, s0, scale, norm)
    same(kind, o2, o), same(kind, s2, states[-1])
    for chunk in (16, 32, 64):
        o3, s3 = ref.by_chunks(q, k, v, g, beta, s0, chunk, position, scale, norm)
        same(kind, o3, o), same(kind, s3, states[-1])
    out = Fixture()
    last = position + tokens
    grid = [p for p in range(64, last + 1, 64) if p > position]
    saves = grid + ([last] if last not in grid else [])
    out.add("shape", np.array([heads, v_heads, k_dim, v_dim, tokens, position, kind != "gdn",
                               norm]), "i32")
    out.add("scale", np.array([scale or 0.0]))
    for name, array in (("q", q), ("k", k), ("v", v)) + ((("s0", s0),) if from_state else ()):
        out.add(name, array, "bf16")
    out.add("g", g), out.add("beta", beta), out.add("o", o)
    out.add("save_pos", np.array(saves), "i32")
    out.add("states", np.stack([states[p - position - 1] for p in saves]).reshape(
        len(saves), v_heads, v_dim, k_dim))
    return out.bytes


def decode(seed, kind, rows, heads, v_heads, k_dim, v_dim):
    rng = np.random.default_rng(seed)
    a, b, a_log, dt_bias, g, beta = gates_for(rng, kind, rows, v_heads, k_dim)
    qkv = normal(rng, rows, 2 * heads * k_dim + v_heads * v_dim)
    s0 = normal(rng, rows, v_heads, v_dim, k_dim)
    o, s = np.zeros((rows, v_heads, v_dim)), np.zeros_like(s0)
    for r in range(rows):
        q, k, v = np.split(qkv[r], [heads * k_dim, 2 * heads * k_dim])
        args = (q.reshape(1, heads, k_dim), k.reshape(1, heads, k_dim),
                v.reshape(1, v_heads, v_dim), g[r:r + 1], beta[r:r + 1], s0[r])
        o_row, states = ref.recurrent(*args)
        o2, s2 = ref.by_transition(*args)
        same("decode", o2, o_row), same("decode", s2, states[0])
        o[r], s[r] = o_row[0], states[0]
    out = Fixture()
    out.add("shape", np.array([heads, v_heads, k_dim, v_dim, rows]), "i32")
    for name, array in (("qkv", qkv), ("a", a), ("b", b), ("s0", s0)):
        out.add(name, array, "bf16")
    out.add("a_log", a_log), out.add("dt_bias", dt_bias), out.add("o", o)
    out.add("states", s)
    return out.bytes


def conv(seed, width, use_bias, act, channels=133, tokens=9):
    rng = np.random.default_rng(seed)
    x, window = normal(rng, tokens, channels), normal(rng, width - 1, channels)
    weight = normal(rng, channels, width)
    bias = normal(rng, channels) if use_bias else None
    y, windows = ref.conv(x, weight, bias, window, act)
    same("conv", ref.conv_by_numpy(x, weight, bias, window, act), y)
    out = Fixture()
    out.add("shape", np.array([channels, width, tokens, act == "silu"]), "i32")
    for name, array in (("x", x), ("weight", weight), ("window", window), ("windows", windows)):
        out.add(name, array, "bf16")
    if use_bias:
        out.add("bias", bias, "bf16")
    out.add("y", y)
    return out.bytes


def gates(seed):
    rng = np.random.default_rng(seed)
    tokens, v_heads, k_dim = 12, 3, 20
    out = Fixture()
    out.add("shape", np.array([tokens, v_heads, k_dim]), "i32")
    for kind in ("gdn", "kda", "kda_bounded"):
        a, b, a_log, dt_bias, _, _ = gates_for(rng, kind, tokens, v_heads, k_dim)
        flat = a.reshape(tokens, -1)                       # extremes in every head
        flat[0], flat[1], flat[2], flat[3] = 30, -30, 90, -90
        flat[4], flat[5] = ref.round_bf16(20 - dt_bias.ravel()), ref.round_bf16(-dt_bias.ravel())
        b[0], b[1], b[2], b[3] = 30, -30, 88, -88
        if kind == "gdn":
            g = ref.gate_gdn(a, a_log, dt_bias)
        else:
            g = ref.gate_kda(a, a_log, dt_bias, -5.0 if kind == "kda_bounded" else None)
            g = g.reshape(tokens, -1)
        short = {"gdn": "gdn", "kda": "kda", "kda_bounded": "kdb"}[kind]
        out.add(short + "_a", flat, "bf16"), out.add(short + "_b", b, "bf16")
        out.add(short + "_a_log", a_log), out.add(short + "_dt_bias", dt_bias.ravel())
        out.add(short + "_g", g), out.add(short + "_beta", ref.sigmoid(b))
    return out.bytes


def norms(seed):
    rng = np.random.default_rng(seed)
    tokens, heads, dim = 5, 2, 300                         # more than one tile, and a tail
    x, z = normal(rng, tokens, heads, dim), normal(rng, tokens, heads, dim)
    x[1] *= 2 ** -12                                       # eps decides
    weight = normal(rng, heads, dim)
    out = Fixture()
    out.add("shape", np.array([tokens, heads, dim]), "i32")
    for name, array in (("x", x), ("z", z), ("weight", weight)):
        out.add(name, array, "bf16")
    out.add("l2", ref.l2norm(x))
    for act in ("silu", "sigmoid"):
        for first in (False, True):
            name = f"{act}_{'gate' if first else 'norm'}"
            out.add(name, ref.gated_rmsnorm(x, z, weight[0], 1e-5, act, first))
    out.add("per_head", ref.gated_rmsnorm(x, z, weight, 1e-6, "silu", True))
    return out.bytes


FILES = {
    "delta_gdn": lambda: delta(1, "gdn", 2, 4, 32, 16, 110, 23),
    "delta_kda": lambda: delta(2, "kda", 2, 4, 24, 16, 110, 23),
    "delta_kda_bounded": lambda: delta(3, "kda_bounded", 1, 2, 32, 16, 140, 7),
    "delta_gdn_128": lambda: delta(4, "gdn", 1, 1, 128, 32, 70, 0, from_state=False),
    "delta_kda_128": lambda: delta(5, "kda_bounded", 1, 1, 128, 128, 66, 64, from_state=False),
    "delta_gdn_odd": lambda: delta(6, "gdn", 1, 3, 40, 21, 37, 11, norm=False, scale=0.25),
    "delta_kda_odd": lambda: delta(7, "kda", 1, 3, 19, 37, 45, 50, doubled=True),
    "decode_gdn": lambda: decode(8, "gdn", 3, 2, 4, 32, 16),
    "decode_kda": lambda: decode(9, "kda", 2, 2, 4, 32, 16),
    "decode_kda_bounded": lambda: decode(10, "kda_bounded", 2, 1, 2, 40, 24),
    "conv_w2": lambda: conv(11, 2, True, "identity"),
    "conv_w3": lambda: conv(12, 3, True, "silu"),
    "conv_w4": lambda: conv(13, 4, False, "silu"),
    "gates": lambda: gates(14),
    "norms": lambda: norms(15),
}


def compare(folder):
    for kind in sorted({name.rsplit("_", 1)[0] for name in os.listdir(folder)}):
        x = {n: np.load(os.path.join(folder, f"{kind}_{n}.npy")).astype(np.float64)
             for n in ("q", "k", "v", "g", "beta", "S0", "o", "S", "h64", "h128")}
        args = (x["q"], x["k"], x["v"], x["g"], x["beta"], x["S0"])
        o, states = ref.recurrent(*args)
        o2, s2 = ref.by_chunks(*args, 64)
        # the dump stores g and beta in fp32, so agreement ends there
        for got, want in ((o, x["o"]), (states[-1], x["S"]), (states[63], x["h64"]),
                          (states[127], x["h128"]), (o2, x["o"]), (s2, x["S"])):
            same(kind, got, want, 1e-6)
        print(f"{kind}: equal within 1e-6")


def main(arguments):
    if arguments[:1] == ["--compare"]:
        return compare(arguments[1])
    check = arguments[:1] == ["--check"]
    rest = arguments[1:] if check else arguments
    here = os.path.dirname(os.path.abspath(__file__))
    folder = rest[0] if rest else os.path.join(here, "fixtures")
    total = 0
    for name, make in FILES.items():
        path, data = os.path.join(folder, name + ".scfix"), make()
        total += len(data)
        if check:
            with open(path, "rb") as file:
                if file.read() != data:
                    sys.exit(f"{path} is not what this script makes")
        else:
            with open(path, "wb") as file:
                file.write(data)
    if total > 1 << 20:
        sys.exit(f"{total} bytes of fixtures: the limit is 1 MiB")
    print(f"{len(FILES)} fixtures, {total} bytes, routes agree")


if __name__ == "__main__":
    main(sys.argv[1:])
