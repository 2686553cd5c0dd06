#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares reference.py with what others wrote: label `oracle` of the tests, `./dev oracle`.

    crosscheck.py [torch|formulas]

formulas   the float64 formulas of another file, whose path is in SC_ORACLE_REF; in float64
torch      GDN, conv, Mamba-2 and gated norms: the PyTorch functions of `transformers`;
           KDA: the naive functions of `flash-linear-attention`; both compute in fp32

Prints for each comparison the largest RMSE(error) / RMS(reference) over its shapes. What cannot be
compared here is skipped with its reason: exit status 77 when nothing was left.
"""
import importlib.util
import inspect
import os
import sys
import warnings

import numpy as np

import reference as ref

FP64, FP32 = 1e-12, 2e-6
largest = {}


def same(name, got, want, bound):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape:
        sys.exit(f"{name}: shapes {got.shape} and {want.shape}")
    error = np.sqrt(np.mean((got - want) ** 2)) / max(np.sqrt(np.mean(want ** 2)), 1e-30)
    if not error <= bound:
        sys.exit(f"{name}: differs by {error:.2e}, allowed are {bound:.0e}")
    largest[name] = max(largest.get(name, 0.0), error)


def f32(x):
    return np.asarray(x, np.float32).astype(np.float64)


class Case:
    """One random sequence of the delta rule; all numbers fit fp32."""

    def __init__(self, rng, kind, tokens, heads, v_heads, k_dim, v_dim, start=True):
        normal = lambda *shape: f32(rng.standard_normal(shape))
        self.q, self.k = normal(tokens, heads, k_dim), normal(tokens, heads, k_dim)
        self.v, self.b = normal(tokens, v_heads, v_dim), normal(tokens, v_heads)
        wide = (v_heads,) if kind == "gdn" else (v_heads, k_dim)
        self.a, self.dt_bias = normal(tokens, *wide), f32(rng.uniform(-4, 1, wide))
        self.a_log = f32(np.log(rng.uniform(0.05, 4, v_heads)))
        if kind == "gdn":
            g = ref.gate_gdn(self.a, self.a_log, self.dt_bias)
        else:
            self.bound = -5.0 if kind == "kda bounded" else None
            g = ref.gate_kda(self.a, self.a_log, self.dt_bias, self.bound)
        self.g, self.beta = f32(g), f32(ref.sigmoid(self.b))
        self.s0 = normal(v_heads, v_dim, k_dim) * start
        self.args = (self.q, self.k, self.v, self.g, self.beta)


def cases(kind):
    shapes = [(1, 1, 1, 16, 16), (5, 2, 4, 32, 16), (63, 1, 2, 24, 40), (64, 2, 2, 128, 128),
              (65, 2, 6, 64, 96), (130, 1, 4, 128, 64), (300, 1, 2, 128, 128)]
    for seed, shape in enumerate(shapes):
        for start in (False, True):
            yield Case(np.random.default_rng(1000 + seed), kind, *shape, start)


def conv_cases():
    for width in (2, 3, 4):
        for tokens in (1, 2, 3, 9, 300):
            rng = np.random.default_rng(100 * width + tokens)
            x, window, weight, bias = (f32(rng.standard_normal(s)) for s in (
                (tokens, 37), (width - 1, 37), (37, width), (37,)))
            for use_bias in (False, True):
                for act in ("silu", "identity"):
                    yield x, window, weight, bias if use_bias else None, act


def ssd_cases():
    for seed, (tokens, heads, groups, p, n) in enumerate(
            [(1, 2, 1, 8, 16), (63, 4, 2, 16, 32), (64, 4, 1, 64, 128), (257, 4, 2, 64, 128)]):
        rng = np.random.default_rng(500 + seed)
        x, b, c, s0, raw, z = (f32(rng.standard_normal(s)) for s in (
            (tokens, heads, p), (tokens, groups, n), (tokens, groups, n), (heads, p, n),
            (tokens, heads), (tokens, heads, p)))
        bias, d = f32(rng.uniform(-4, 0, heads)), f32(rng.standard_normal(heads))
        yield x, raw, bias, f32(-rng.uniform(0.5, 8, heads)), b, c, s0, d, z


# ------------------------------------------------------------------------------------- formulas

def formulas():
    path = os.environ.get("SC_ORACLE_REF", "")
    if not os.path.isfile(path):
        print("formulas: skipped, SC_ORACLE_REF names no file")
        return False
    spec = importlib.util.spec_from_file_location("other", path)
    other = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(other)
    for kind in ("gdn", "kda", "kda bounded"):
        for case in cases(kind):
            formulas_delta(other, kind, case)
    for x, window, weight, bias, act in conv_cases():
        y, windows = ref.conv(x, weight, bias, window, act)
        y2, last = other.conv_seq(x, weight, bias, window, act == "silu")
        same("formulas: conv", y2, y, FP64), same("formulas: conv window", last, windows[-1], FP64)
    for x, raw, bias, a, b, c, s0, d, z in ssd_cases():
        dt = ref.softplus(raw + bias)
        y, states = ref.ssd(x, dt, a, b, c, s0, d)
        y2, s2 = ref.ssd_by_sum(x, dt, a, b, c, s0, d)
        same("own routes: Mamba-2", y2, y, FP64), same("own routes: Mamba-2", s2, states[-1], FP64)
        for y2, s2 in (other.ssd_recurrent(x, dt, a, b, c, s0, d),
                       other.ssd_chunk(x, dt, a, b, c, s0, d)[:2]):
            same("formulas: Mamba-2", y2, y, FP64)
            same("formulas: Mamba-2 state", s2, states[-1], FP64)
        y2 = other.gated_rmsnorm(x, z, d[0] + x[0, 0], 1e-5, "sigmoid")
        same("formulas: gated norm", y2, ref.gated_rmsnorm(x, z, d[0] + x[0, 0], 1e-5, "sigmoid",
                                                          False), FP64)
    return True


def formulas_delta(other, kind, case):
    name = f"formulas: {kind}"
    if kind == "gdn":
        g, beta = other.gdn_gate(case.a, case.b, case.a_log, case.dt_bias)
        same(name + " gates", beta, ref.sigmoid(case.b), FP64)
        same(name + " gates", g, ref.gate_gdn(case.a, case.a_log, case.dt_bias), FP64)
    else:
        g = other.kda_gate(case.a, case.a_log, case.dt_bias, case.bound)
        same(name + " gates", g, ref.gate_kda(case.a, case.a_log, case.dt_bias, case.bound), FP64)
    o, states = ref.recurrent(*case.args, case.s0)
    o2, s2 = other.recurrent(*case.args, case.s0)[:2]
    same(name + " recurrent", o2, o, FP64)
    same(name + " state", s2, states[-1], FP64)
    # an unbounded gate leaves the range of that file's anchored exponents
    if kind != "kda":
        pool = case.s0[None].copy()
        o3, before = other.chunk(*case.args, pool, [0], [0, len(case.q)])
        same(name + " chunk", o3, o, 1e-10)
        same(name + " chunk state", pool[0], states[-1], 1e-10)
        for c in range(1, len(before)):
            same(name + " state at a grid point", before[c], states[64 * c - 1], 1e-10)


# ---------------------------------------------------------------------------------------- torch

def with_torch():
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")
    try:
        import torch
        from fla.ops.kda import gate, naive
        from transformers.models.mamba2 import modeling_mamba2 as mamba2
        from transformers.models.qwen3_next import modeling_qwen3_next as qwen
    except ImportError as missing:
        print(f"torch: skipped, {missing}")
        return False
    torch.set_grad_enabled(False)
    tensor = lambda *arrays: [torch.from_numpy(np.ascontiguousarray(x, np.float32))[None]
                              for x in arrays]
    for case in cases("gdn"):
        torch_gdn(qwen, tensor, case)
    for kind in ("kda", "kda bounded"):
        for case in cases(kind):
            torch_kda(naive, gate, torch, tensor, kind, case)
    torch_conv(qwen, tensor)
    torch_mamba2(mamba2, torch, tensor)
    return True


def plain(module, name):
    """The PyTorch function itself: the wrapper about it prefers kernels for GPUs."""
    return inspect.unwrap(getattr(module, name))


def torch_gdn(qwen, tensor, case):
    o, states = ref.recurrent(*case.args, case.s0)
    arguments = tensor(*case.args)
    start = tensor(case.s0.transpose(0, 2, 1))[0]
    for name in ("recurrent", "chunk"):
        got, last = plain(qwen, f"torch_{name}_gated_delta_rule")(
            *arguments, initial_state=start.clone(), output_final_state=True,
            use_qk_l2norm_in_kernel=True)
        same(f"transformers: gdn {name}", got[0].numpy(), o, FP32)
        same(f"transformers: gdn {name} state", last[0].numpy().transpose(0, 2, 1), states[-1],
             FP32)
    q = qwen.l2norm(arguments[0])
    same("transformers: l2norm", q[0].numpy(), ref.l2norm(case.q), FP32)


def torch_kda(naive, gate, torch, tensor, kind, case):
    o, states = ref.recurrent(*case.args, case.s0)
    q, k = ref.l2norm(case.q), ref.l2norm(case.k)
    start = tensor(case.s0.transpose(0, 2, 1))[0]
    name = f"flash-linear-attention: {kind}"
    a, = tensor(case.a)
    a_log, bias = (torch.from_numpy(x.astype(np.float32)) for x in (case.a_log, case.dt_bias))
    if case.bound is None:
        g = gate.naive_kda_gate(a, a_log, bias)
    else:
        g = gate.naive_kda_lowerbound_gate(a, a_log, bias, case.bound)
    same(name + " gate", g[0].numpy(), case.g, FP32)
    for form in ("recurrent", "chunk"):
        tokens = len(q) if form == "recurrent" else len(q) // 64 * 64  # whole chunks only
        if tokens == 0:
            continue
        arguments = [x[:, :tokens] for x in tensor(q, k, *case.args[2:])]
        got, last = getattr(naive, f"naive_{form}_kda")(
            *arguments, initial_state=start.clone(), output_final_state=True)
        same(f"{name} {form}", got[0].numpy(), o[:tokens], FP32)
        same(f"{name} {form} state", last[0].numpy().transpose(0, 2, 1), states[tokens - 1], FP32)


def torch_conv(qwen, tensor):
    for x, window, weight, bias, act in conv_cases():
        y, windows = ref.conv(x, weight, bias, window, act)
        first, _ = ref.conv(x, weight, bias, 0 * window, act)
        rows, past, w = tensor(x.T, window.T, weight)
        b = None if bias is None else tensor(bias)[0][0]
        name = None if act == "identity" else act
        got = plain(qwen, "causal_conv1d_fn")(rows, w[0], b, name)
        same("transformers: conv of a prompt", got[0].numpy().T, first, FP32)
        got = plain(qwen, "causal_conv1d_update")(rows, past, w[0], b, name)
        same("transformers: conv from a window", got[0].numpy().T, y, FP32)
        same("transformers: conv window", past[0].numpy().T, windows[-1], 0.0)


def torch_mamba2(mamba2, torch, tensor):
    for x, raw, bias, a, b, c, s0, d, z in ssd_cases():
        y, states = ref.ssd(x, ref.softplus(raw + bias), a, b, c, s0, d)
        tx, traw, tb, tc, ts, tz = tensor(x, raw, b, c, s0, z)
        ta, td, tbias = (torch.from_numpy(v.astype(np.float32)) for v in (a, d, bias))
        got, last = plain(mamba2, "mamba2_chunk_scan")(
            tx, traw, ta, tb, tc, chunk_size=64, D=td, dt_bias=tbias, initial_states=ts,
            dt_softplus=True, return_final_states=True)
        same("transformers: Mamba-2 chunk scan", got[0].numpy(), y, FP32)
        same("transformers: Mamba-2 chunk scan state", last[0].numpy(), states[-1], FP32)
        step, heads = ts.clone(), x.shape[1]
        wide = lambda v: v[:, None, None].expand(heads, x.shape[2], 1)
        got = plain(mamba2, "mamba2_selective_state_update")(
            step, tx[:, 0], traw[:, 0][..., None].expand(1, heads, x.shape[2]),
            wide(ta).expand(heads, x.shape[2], b.shape[2]), tb[:, 0], tc[:, 0],
            wide(td)[..., 0], dt_bias=wide(tbias)[..., 0], dt_softplus=True)
        same("transformers: Mamba-2 step", got[0].numpy(), y[0], FP32)
        same("transformers: Mamba-2 step state", step[0].numpy(), states[0], FP32)
        norm = mamba2.MambaRMSNormGated(x.shape[2], x.shape[2], eps=1e-5)
        same("transformers: Mamba-2 gated norm", norm(tx, tz)[0].numpy(),
             ref.gated_rmsnorm(x, z, np.ones(x.shape[2]), 1e-5, "silu", True), FP32)


def main(arguments):
    what = {"torch": with_torch, "formulas": formulas}
    if any(word not in what for word in arguments):
        sys.exit(__doc__)
    ran = [what[word]() for word in arguments or what]
    for name, error in largest.items():
        print(f"{error:9.2e}  {name}")
    if not any(ran):
        sys.exit(77)
    print(f"{len(largest)} passed, 0 failed, {len(ran) - sum(ran)} skipped")


if __name__ == "__main__":
    main(sys.argv[1:])
