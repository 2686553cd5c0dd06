# SPDX-License-Identifier: Apache-2.0
"""Public Triton kernels on the shapes of `statecache-bench gpu`: flash-linear-attention and SGLang.

Needs a GPU machine with torch and triton, and on its path the wheels flash-linear-attention,
fla-core and sglang (installed without their dependencies: of sglang only kernel files are loaded).
Outputs and states are checked against float64 first. Times are medians of 9 replays of a CUDA graph
over rotating random slots, behind 0.2 s of them, as in the benchmark beside it; "limit" is a device
copy of 2 GiB.

    python3 rivals.py [gemm] [decode] [conv] [prefill]
"""
import importlib
import importlib.util
import pathlib
import statistics
import sys
import time
import types

import torch

H, HV, D, CONV = 16, 32, 128, 8192
DEV = "cuda"


def sglang(name):
    """A kernel module of sglang, without what its packages import."""
    if "sglang" in sys.modules:
        return importlib.import_module("sglang.srt.layers.attention." + name)
    root = pathlib.Path(importlib.util.find_spec("sglang").submodule_search_locations[0])
    for part in ("", "srt", "srt/layers", "srt/layers/attention", "srt/layers/attention/fla",
                 "srt/layers/attention/mamba", "srt/utils"):
        full = ".".join(["sglang", *[p for p in part.split("/") if p]])
        sys.modules[full] = types.ModuleType(full)
        sys.modules[full].__path__ = [str(root / part)]
    common = types.ModuleType("sglang.srt.utils.common")
    common.torch_release = tuple(int(x) for x in torch.__version__.split("+")[0].split(".")[:3])
    sys.modules["sglang.srt.utils.common"] = common
    return importlib.import_module("sglang.srt.layers.attention." + name)


def graph_us(calls, call, replays=9):
    for i in range(min(calls, 3)):
        call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    begin = time.monotonic()
    while time.monotonic() - begin < 0.2:  # the device is slow for a while after a pause
        graph.replay()
        torch.cuda.synchronize()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


def copy_limit():
    a = torch.randn(1 << 29, device=DEV)
    b = torch.empty_like(a)
    times = []
    for i in range(-2, 9):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        b.copy_(a)
        end.record()
        end.synchronize()
        if i >= 0:
            times.append(start.elapsed_time(end) * 1e3)
    return 2 * a.numel() * 4 / statistics.median(times)


def show(name, us, value, unit):
    print(f"  {name:<46} {us:11.2f} us {value:9.3f} {unit}", flush=True)


def error(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


def decode_reference(qkv, a, b, a_log, dt_bias, state):
    """GDN, one token a row, float64: outputs and states [v][k]."""
    n = qkv.shape[0]
    q = qkv[:, :H * D].double().view(n, H, D)
    k = qkv[:, H * D:2 * H * D].double().view(n, H, D)
    v = qkv[:, 2 * H * D:].double().view(n, HV, D)
    q, k = (x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(HV // H, 1) for x in (q * D ** -0.5, k))
    g = -a_log.double().exp() * torch.nn.functional.softplus(a.double() + dt_bias.double())
    s = state.double() * g.exp()[..., None, None]
    u = torch.sigmoid(b.double())[..., None] * (v - torch.einsum("nhvk,nhk->nhv", s, k))
    s = s + u[..., None] * k[..., None, :]
    return torch.einsum("nhvk,nhk->nhv", s, q), s


def gemm(_limit):
    print("GEMM of torch, bf16")
    for n in (4096, 8192):
        a, b = (torch.randn(n, n, device=DEV, dtype=torch.bfloat16) for _ in range(2))
        c = torch.empty_like(a)
        us = graph_us(8, lambda _i: torch.mm(a, b, out=c))
        show(f"{n} x {n} x {n}", us, 2 * n ** 3 / us / 1e6, "TFLOP/s")


def decode(limit):
    print("packed decode, GDN, SGLang fused_recurrent_gated_delta_rule_packed_decode")
    run = sglang("fla.fused_recurrent").fused_recurrent_gated_delta_rule_packed_decode
    for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
        slots = 2000 if dtype == torch.float32 else 4000
        pool = 0.1 * torch.randn(slots, HV, D, D, device=DEV, dtype=dtype)
        a_log = 0.5 * torch.randn(HV, device=DEV)
        dt_bias = 0.5 * torch.randn(HV, device=DEV) - 2
        for n in (256, 128, 64, 16, 4, 1):
            qkv = torch.randn(n, 2 * H * D + HV * D, device=DEV, dtype=torch.bfloat16)
            a, b = (torch.randn(n, HV, device=DEV, dtype=torch.bfloat16) for _ in range(2))
            out = torch.empty(n, 1, HV, D, device=DEV, dtype=torch.bfloat16)
            batches = (slots - 1) // n
            order = (torch.randperm(slots - 1, device=DEV) + 1).to(torch.int32)

            def call(i):
                at = i % batches * n
                run(qkv, a, b, a_log, dt_bias, D ** -0.5, pool, out, order[at:at + n],
                    use_qk_l2norm_in_kernel=True)
            if n == 4:
                rows = order[:n].long()
                want, state = decode_reference(qkv, a, b, a_log, dt_bias, pool[rows])
                call(0)
                print(f"    errors: output {error(out.view(n, HV, D), want):.1e}, "
                      f"state {error(pool[rows], state):.1e}")
            us = graph_us(64, call)
            size = n * (2 * HV * D * D * pool.element_size()
                        + 2 * (2 * H * D + HV * D + 2 * HV + HV * D))
            show(f"GDN {name} B={n}", us, 100 * size / limit / us, "% of limit")
        del pool


def conv(limit):
    print("causal conv update, 8192 channels, width 4, bf16, SGLang causal_conv1d_update")
    run = sglang("mamba.causal_conv1d_triton").causal_conv1d_update
    windows = torch.randn(4096, 3, CONV, device=DEV, dtype=torch.bfloat16).transpose(1, 2)
    weight = torch.randn(CONV, 4, device=DEV, dtype=torch.bfloat16)
    for n in (256, 64, 16, 1):
        calls = min(48, 4095 // n)
        order = (torch.randperm(4095, device=DEV)[:calls * n] + 1).to(torch.int32)
        x = torch.randn(calls, n, CONV, device=DEV, dtype=torch.bfloat16)
        if n == 16:
            rows = order[:n].long()
            taps = torch.cat([windows[rows], x[0][..., None]], -1).double()
            want = torch.nn.functional.silu((taps * weight.double()).sum(-1))
            got = run(x[0].clone(), windows, weight, None, "silu", conv_state_indices=order[:n])
            print(f"    error {error(got, want):.1e}")
        us = graph_us(calls, lambda i: run(x[i], windows, weight, None, "silu",
                                           conv_state_indices=order[i * n:(i + 1) * n]))
        show(f"update, B={n}", us, 100 * 2 * n * CONV * 8 / limit / us, "% of limit")


def prefill(_limit):
    print("chunk prefill, fp32 states, flash-linear-attention")
    gdn = importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    kda = importlib.import_module("fla.ops.kda").chunk_kda
    for kind, run in (("GDN", gdn), ("KDA", kda)):
        heads = H if kind == "GDN" else HV
        for rows, length in ((1, 4096), (1, 16384), (1, 65536), (16, 4096)):
            t = rows * length
            q, k = (torch.randn(1, t, heads, D, device=DEV, dtype=torch.bfloat16)
                    for _ in range(2))
            v = torch.randn(1, t, HV, D, device=DEV, dtype=torch.bfloat16)
            shape = (1, t, HV) if kind == "GDN" else (1, t, HV, D)
            g = -0.05 + 0.01 * torch.randn(*shape, device=DEV)
            beta = 0.5 + 0.1 * torch.randn(1, t, HV, device=DEV)
            beta = beta.to(torch.bfloat16)
            state = torch.zeros(rows, HV, D, D, device=DEV)
            bounds = torch.arange(0, t + 1, length, device=DEV, dtype=torch.int64)

            def call(_i):
                with torch.no_grad():
                    run(q, k, v, g, beta, initial_state=state, output_final_state=True,
                        use_qk_l2norm_in_kernel=True, cu_seqlens=bounds)
            try:
                us = graph_us(1, call, 5)
                how = ""
            except Exception as failure:  # capture is refused: one call after the other
                torch.cuda.synchronize()
                how = f" (eager: {type(failure).__name__})"
                times = []
                for _ in range(7):
                    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    start.record()
                    call(0)
                    end.record()
                    end.synchronize()
                    times.append(start.elapsed_time(end) * 1e3)
                us = statistics.median(times)
            show(f"{kind} {rows} x {length} tokens{how}", us, 180224.0 * t * HV / us / 1e6,
                 "TFLOP/s of the chunk form")
            del q, k, v, g, beta


def main():
    wanted = sys.argv[1:] or ["gemm", "decode", "conv", "prefill"]
    limit = copy_limit()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n"
          f"  device copy, 2 GiB, read + write {limit / 1e3:.0f} GB/s")
    failed = 0
    for name, run in (("gemm", gemm), ("decode", decode), ("conv", conv), ("prefill", prefill)):
        if name not in wanted:
            continue
        try:
            run(limit)
        except Exception as failure:  # one rival less, said so; the others still run
            print(f"  {name}: {type(failure).__name__}: {failure}")
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
