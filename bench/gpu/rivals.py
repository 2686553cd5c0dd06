# SPDX-License-Identifier: Apache-2.0
"""Public Triton kernels on the shapes of `statecache-bench gpu`, beside its figures: one table.

Needs a GPU machine with torch and triton, and on its path the wheels flash-linear-attention,
fla-core and sglang (installed without their dependencies: of sglang only kernel files are loaded).
Outputs and states of decode and conv are checked against float64 first, and the part `errors` tells
those of the chunk forms. Times are medians of 9 replays of a CUDA graph (of the step 7, of prefill
5) over rotating random slots, behind 0.2 s of them, as in the benchmark beside it. A part that
cannot run is left out, and its error quoted below the table.

    statecache-bench gpu --json >ours.jsonl;  python3 rivals.py --ours ours.jsonl [PART...]
    python3 rivals.py --warm [PART...]    compiles what the parts need, each in a process of its own
    python3 rivals.py --bench bin/statecache-bench errors

Exit status: 1 if a part failed, 2 if the chunk form of ours has too large an error (part `errors`),
or after bad usage.
"""
import argparse
import collections
import importlib
import importlib.util
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import types

try:
    import torch
except ImportError as missing:  # ours alone is a table, too
    torch = missing

H, HV, D, CONV, LAYERS = 16, 32, 128, 8192, 36
DEV = "cuda"
CHUNK_FLOPS = 180224.0  # of a token and head, as the chunk form has them
DECODE = "packed decode on random slots, graph"
CAUSAL = "causal conv, 8192 channels, width 4, bf16"
STEP = "decode step, conv + decode of 36 layers, one graph (GDN)"
COPY = "slot copy, all layers, one launch"
PREFILL = "chunk prefill, fp32 states, C = 64"
ERRORS = "error of the chunk form against float64, ||x - y|| / ||y||"
WARM = False

found = collections.OrderedDict()  # (section, name) -> {who: what its column says}
figures = []                       # the same, as --json gives them
notes = []


class Worse(Exception):
    """Ours has the larger error."""


def note(text):
    notes.append(text)
    print("  " + text, file=sys.stderr, flush=True)


def show(section, name, who, us, value=""):
    """`value`: what the time means, where ours has no such row."""
    if WARM:
        return
    row = found.setdefault((section, name), {"value": value})
    row[who] = f"{us:.2f}"
    figures.append({"v": 1, "bench": "gpu_rivals", "params": {"section": section, "who": who},
                    "metric": name, "us": round(us, 3)})
    print(f"  {who}, {name}: {us:.2f} us", file=sys.stderr, flush=True)


def sglang(name):
    """A kernel module of sglang, without what its packages import."""
    if "sglang" not in sys.modules:
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


def time_once(call):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def steady(call):
    """The device is slow for a while after a pause."""
    begin = time.monotonic()
    while time.monotonic() - begin < 0.2:
        call()
        torch.cuda.synchronize()


def graph_us(calls, call, replays=9):
    for i in range(min(calls, 3)):
        call(i)
    torch.cuda.synchronize()
    if WARM:
        return 0.0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    steady(graph.replay)
    return statistics.median(time_once(graph.replay) for _ in range(replays)) / calls


def eager_us(call, repeats=7):
    call()
    torch.cuda.synchronize()
    if WARM:
        return 0.0
    steady(call)
    return statistics.median(time_once(call) for _ in range(repeats))


def error(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


def check(what, got, want, most):
    """A rival that computes something else is no rival."""
    found_error = error(got, want)
    if not found_error < most:
        raise ValueError(f"{what}: error {found_error:.1e}")


def dtype_name(dtype):
    return "fp32" if dtype == torch.float32 else "bf16"


def shuffled(slots):
    return (torch.randperm(slots - 1, device=DEV) + 1).to(torch.int32)


def limits():
    a = torch.randn(1 << 29, device=DEV)
    b = torch.empty_like(a)
    show("limits", "device copy, 2 GiB, read + write (the limit)", "torch",
         eager_us(lambda: b.copy_(a), 9))
    del a, b
    for n in (4096, 8192):
        a, b = (torch.randn(n, n, device=DEV, dtype=torch.bfloat16) for _ in range(2))
        c = torch.empty_like(a)
        us = graph_us(8, lambda _i: torch.mm(a, b, out=c))
        if not WARM:
            show("limits", f"GEMM of torch, bf16, {n} x {n} x {n}", "torch", us,
                 f"{2 * n ** 3 / us / 1e6:.0f} TFLOP/s")


def decode_reference(qkv, heads, g, beta, state):
    """One token a row, float64: outputs and states [v][k]; g: log decay of a head or of each k."""
    n = qkv.shape[0]
    q = qkv[:, :heads * D].double().view(n, heads, D)
    k = qkv[:, heads * D:2 * heads * D].double().view(n, heads, D)
    v = qkv[:, 2 * heads * D:].double().view(n, HV, D)
    q, k = (x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(HV // heads, 1) for x in (q * D ** -0.5, k))
    decay = g.exp()[..., None, None] if g.dim() == 2 else g.exp()[:, :, None, :]
    s = state.double() * decay
    u = beta[..., None] * (v - torch.einsum("nhvk,nhk->nhv", s, k))
    s = s + u[..., None] * k[..., None, :]
    return torch.einsum("nhvk,nhk->nhv", s, q), s


def decode_case(kind, dtype, pool, make):
    """`make(n)`: inputs, log decays, strengths and call(rows, inputs) -> outputs."""
    slots, heads = pool.shape[0], H if kind == "GDN" else HV
    for n in (4, 256, 128, 64, 16, 1):
        qkv = torch.randn(n, 2 * heads * D + HV * D, device=DEV, dtype=torch.bfloat16)
        g, beta, run = make(n, qkv)
        order, batches = shuffled(slots), (slots - 1) // n
        if n == 4:
            rows = order[:n].long()
            want, state = decode_reference(qkv, heads, g, beta, pool[rows])
            check(f"{kind} output", run(order[:n]).view(n, HV, D), want, 1e-2)
            check(f"{kind} state", pool[rows], state, 1e-2)
        us = graph_us(64, lambda i: run(order[i % batches * n:(i % batches + 1) * n]))
        show(DECODE, f"{kind} {dtype_name(dtype)} B={n}", "sglang", us)


def gate_weights(width):
    return 0.5 * torch.randn(HV, device=DEV), 0.5 * torch.randn(width, device=DEV) - 2


def decode():
    run = sglang("fla.fused_recurrent").fused_recurrent_gated_delta_rule_packed_decode
    for dtype in (torch.float32, torch.bfloat16):
        pool = 0.1 * torch.randn(2000 if dtype == torch.float32 else 4000, HV, D, D, device=DEV,
                                 dtype=dtype)
        a_log, dt_bias = gate_weights(HV)

        def make(n, qkv, pool=pool, a_log=a_log, dt_bias=dt_bias):
            a, b = (torch.randn(n, HV, device=DEV, dtype=torch.bfloat16) for _ in range(2))
            out = torch.empty(n, 1, HV, D, device=DEV, dtype=torch.bfloat16)

            def call(rows):
                run(qkv, a, b, a_log, dt_bias, D ** -0.5, pool, out, rows,
                    use_qk_l2norm_in_kernel=True)
                return out
            g = -a_log.double().exp() * torch.nn.functional.softplus(a.double() + dt_bias.double())
            return g, torch.sigmoid(b.double()), call
        decode_case("GDN", dtype, pool, make)
        del pool


def decode_kda():
    run = sglang(
        "fla.fused_sigmoid_gating_recurrent").fused_sigmoid_gating_delta_rule_update
    for dtype in (torch.float32, torch.bfloat16):
        pool = 0.1 * torch.randn(2000 if dtype == torch.float32 else 4000, HV, D, D, device=DEV,
                                 dtype=dtype)
        a_log, dt_bias = gate_weights(HV * D)

        def make(n, qkv, pool=pool, a_log=a_log, dt_bias=dt_bias):
            a = torch.randn(n, HV * D, device=DEV, dtype=torch.bfloat16)
            b = torch.randn(n, HV, device=DEV, dtype=torch.bfloat16)
            q, k, v = (x.reshape(1, n, HV, D).contiguous() for x in qkv.chunk(3, 1))
            bounds = torch.arange(n + 1, device=DEV, dtype=torch.int32)

            def call(rows):
                return run(A_log=a_log, a=a, dt_bias=dt_bias, softplus_beta=1.0,
                           softplus_threshold=20.0, q=q, k=k, v=v, b=b.view(1, n, HV),
                           initial_state_source=pool, initial_state_indices=rows,
                           use_qk_l2norm_in_kernel=True, cu_seqlens=bounds, is_kda=True)
            g = -a_log.double().exp()[:, None] * torch.nn.functional.softplus(
                a.double() + dt_bias.double()).view(n, HV, D)
            return g, torch.sigmoid(b.double()), call
        decode_case("KDA", dtype, pool, make)
        del pool


def conv():
    run = sglang("mamba.causal_conv1d_triton").causal_conv1d_update
    windows = torch.randn(4096, 3, CONV, device=DEV, dtype=torch.bfloat16).transpose(1, 2)
    weight = torch.randn(CONV, 4, device=DEV, dtype=torch.bfloat16)
    for n in (16, 256, 64, 1):
        calls = min(48, 4095 // n)
        order = shuffled(4096)[:calls * n]
        x = torch.randn(calls, n, CONV, device=DEV, dtype=torch.bfloat16)
        if n == 16:
            rows = order[:n].long()
            taps = torch.cat([windows[rows], x[0][..., None]], -1).double()
            want = torch.nn.functional.silu((taps * weight.double()).sum(-1))
            check("conv", run(x[0].clone(), windows, weight, None, "silu",
                              conv_state_indices=order[:n]), want, 1e-2)
        us = graph_us(calls, lambda i: run(x[i], windows, weight, None, "silu",
                                           conv_state_indices=order[i * n:(i + 1) * n]))
        show(CAUSAL, f"update, B={n}", "sglang", us)


def conv_prefill():
    ours = importlib.import_module("fla.modules.causal_conv1d").causal_conv1d
    theirs = sglang("mamba.causal_conv1d_triton").causal_conv1d_fn
    weight = torch.randn(CONV, 4, device=DEV, dtype=torch.bfloat16)
    windows = torch.randn(8, 3, CONV, device=DEV, dtype=torch.bfloat16).transpose(1, 2)
    slot = torch.tensor([1], device=DEV, dtype=torch.int32)
    for t in (1024, 4096, 16384, 65536):
        x = torch.randn(t, CONV, device=DEV, dtype=torch.bfloat16)
        bounds = torch.tensor([0, t], device=DEV, dtype=torch.int32)
        fresh = torch.zeros(1, device=DEV, dtype=torch.bool)

        def sgl(_i):
            return theirs(x.T, weight, None, windows, bounds, [t], cache_indices=slot,
                          has_initial_state=fresh, activation="silu")

        def fla(_i):
            with torch.no_grad():
                return ours(x[None], weight, activation="silu", output_final_state=True)[0]
        if t == 1024:
            taps = torch.nn.functional.pad(x.double(), (0, 0, 3, 0)).unfold(0, 4, 1)
            want = torch.nn.functional.silu((taps * weight.double()).sum(-1))
            check("conv of sglang", sgl(0).T, want, 1e-2)
            check("conv of fla", fla(0)[0], want, 1e-2)
        show(CAUSAL, f"prefill, {t} tokens", "sglang", graph_us(8, sgl))
        show(CAUSAL, f"prefill, {t} tokens", "fla", graph_us(8, fla))


def step():
    update = sglang("mamba.causal_conv1d_triton").causal_conv1d_update
    run = sglang("fla.fused_recurrent").fused_recurrent_gated_delta_rule_packed_decode
    slots = 512
    weight = torch.randn(CONV, 4, device=DEV, dtype=torch.bfloat16)
    windows = torch.randn(LAYERS, slots + 1, 3, CONV, device=DEV, dtype=torch.bfloat16)
    a_log, dt_bias = gate_weights(HV)
    for dtype in (torch.float32, torch.bfloat16):
        pool = torch.empty(LAYERS, slots + 1, HV, D, D, device=DEV, dtype=dtype).normal_(0, 0.1)
        for n in (256, 64, 16, 1):
            x = torch.randn(n, CONV, device=DEV, dtype=torch.bfloat16)
            a, b = (torch.randn(n, HV, device=DEV, dtype=torch.bfloat16) for _ in range(2))
            out = torch.empty(n, 1, HV, D, device=DEV, dtype=torch.bfloat16)
            order = shuffled(slots + 1)

            def call(i):
                rows = order[i % (slots // n) * n:(i % (slots // n) + 1) * n]
                for layer in range(LAYERS):
                    qkv = update(x, windows[layer].transpose(1, 2), weight, None, "silu",
                                 conv_state_indices=rows)
                    run(qkv, a, b, a_log, dt_bias, D ** -0.5, pool[layer], out, rows,
                        use_qk_l2norm_in_kernel=True)
            show(STEP, f"{dtype_name(dtype)} contiguous B={n}", "sglang",
                 graph_us(2 if n > 16 else 8, call, 7))
        del pool


def copy():
    """What a server does that has no kernel for it: an indexed copy of all layers' tensors."""
    slots = 160
    windows = torch.randn(LAYERS, slots, 3, CONV, device=DEV, dtype=torch.bfloat16)
    for dtype in (torch.float32, torch.bfloat16):
        pool = torch.empty(LAYERS, slots, HV, D, D, device=DEV, dtype=dtype).normal_(0, 0.1)
        for n in (1, 8, 64):
            order = torch.randperm(slots, device=DEV)
            src, dst = order[:n], order[slots // 2:slots // 2 + n]

            def call(_i):
                pool[:, dst] = pool[:, src]
                windows[:, dst] = windows[:, src]
            show(COPY, f"{dtype_name(dtype)} contiguous, {n} slots of {LAYERS} layers", "torch",
                 graph_us(2, call))
        del pool


def chunk_inputs(kind, rows, length, v_heads=HV, steep=None):
    """`steep`: decays of log sigmoid of noise, over it; else mild ones."""
    t, heads = rows * length, v_heads // 2 if kind == "GDN" else v_heads
    q, k = (torch.randn(1, t, heads, D, device=DEV, dtype=torch.bfloat16) for _ in range(2))
    v = torch.randn(1, t, v_heads, D, device=DEV, dtype=torch.bfloat16)
    shape = (1, t, v_heads) if kind == "GDN" else (1, t, v_heads, D)
    noise = torch.randn(*shape, device=DEV)
    g = -0.05 + 0.01 * noise if steep is None else torch.nn.functional.logsigmoid(noise) / steep
    beta = torch.randn(1, t, v_heads, device=DEV).sigmoid().to(torch.bfloat16)
    return q, k, v, g, beta


def fla_chunk(kind):
    if kind == "GDN":
        return importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    return importlib.import_module("fla.ops.kda").chunk_kda


def prefill(kind):
    run = fla_chunk(kind)
    for rows, length in ((1, 4096), (1, 16384), (1, 65536), (16, 4096)):
        tensors = chunk_inputs(kind, rows, length)
        state = torch.zeros(rows, HV, D, D, device=DEV)
        bounds = torch.arange(0, rows * length + 1, length, device=DEV, dtype=torch.int64)

        def call(_i=0):
            with torch.no_grad():
                run(*tensors, initial_state=state, output_final_state=True,
                    use_qk_l2norm_in_kernel=True, cu_seqlens=bounds)
        try:
            us = graph_us(1, call, 5)
        except RuntimeError as failure:  # capture is refused: one call after the other
            torch.cuda.synchronize()
            note(f"fla, {kind} {rows} x {length}: not in a graph ({type(failure).__name__})")
            us = eager_us(call)
        show(PREFILL, f"{kind} {rows} x {length} tokens", "fla", us)
        del tensors, state
        torch.cuda.empty_cache()


def chunk_reference(q, k, v, g, beta):
    """Token by token, float64: outputs [t, v_heads, v] and the state [v_heads, v, k]."""
    q, k, v, g, beta = (x[0].double() for x in (q, k, v, g, beta))
    q, k = (x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1)[..., None]
            for x in (q * D ** -0.5, k))
    decay = g.exp()[..., None, None] if g.dim() == 2 else g.exp()[:, :, None, :]
    s = torch.zeros(v.shape[1], D, D, device=DEV, dtype=torch.float64)
    o = torch.empty_like(v)
    for t in range(v.shape[0]):
        s = s * decay[t]
        u = beta[t][:, None, None] * (v[t][..., None] - torch.bmm(s, k[t]))
        s = torch.baddbmm(s, u, k[t].transpose(1, 2))
        o[t] = torch.bmm(s, q[t])[..., 0]
    return o, s


def ours_chunk(program, kind, tensors):
    """The same tensors through `statecache-bench gpu --chunk`: outputs and state."""
    t, v_heads = tensors[2].shape[1:3]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "shape").write_text(f"{1 if kind == 'GDN' else 2} {t} {tensors[0].shape[2]} "
                                    f"{v_heads} {D} 64\n")
        for name, x in zip(("q", "k", "v", "g", "beta"), tensors):
            raw = x.float() if name in ("g", "beta") else x.view(torch.int16)
            raw.cpu().numpy().tofile(path / name)
        subprocess.run([*shlex.split(program), "gpu", "--chunk", folder], check=True)
        o = torch.frombuffer(bytearray((path / "o").read_bytes()), dtype=torch.bfloat16)
        s = torch.frombuffer(bytearray((path / "state").read_bytes()), dtype=torch.float32)
    return o.view(t, v_heads, D).to(DEV), s.view(v_heads, D, D).to(DEV)


def errors(program):
    """Ours must be below 5e-3, or no worse than flash-linear-attention's on the same tensors."""
    worse = 0
    for kind, length, v_heads, steep in (
            ("GDN", 1000, HV, 1), ("GDN", 1024, HV, None), ("KDA", 1000, HV, 1),
            ("KDA", 1024, HV, None), ("KDA", 4096, 4, 10)):
        tensors = chunk_inputs(kind, 1, length, v_heads, steep)
        with torch.no_grad():
            o, s = fla_chunk(kind)(*tensors, output_final_state=True,
                                   use_qk_l2norm_in_kernel=True)
        if WARM:
            continue
        want = chunk_reference(*tensors)
        theirs = (o[0], s[0].transpose(1, 2))
        ours = ours_chunk(program, kind, tensors) if program else (None, None)
        what = "mild" if steep is None else f"log sigmoid / {steep}"
        for part, mine, other, right in zip(("outputs", "state"), ours, theirs, want):
            row = found.setdefault((ERRORS, f"{kind} 1 x {length}, {v_heads} heads, decays {what}: "
                                            f"{part}"), {})
            row["fla"] = f"{error(other, right):.1e}"
            if mine is None:
                continue
            mine = error(mine, right)
            row["ours"] = f"{mine:.1e}"
            worse += not (mine < 5e-3 or mine <= error(other, right))
    if worse:
        raise Worse(f"{worse} errors of ours are above 5e-3 and above flash-linear-attention's")


def read_ours(path):
    rows = []
    for line in path.read_text().splitlines():
        x = json.loads(line)
        bar = f"{'<=' if x['bar_is'] == 'at most' else '>='} {x['bar']:g}" if "bar" in x else ""
        if not x.get("met", True):
            bar += " MISSED"
        rows.append((x["params"]["section"], x["metric"], f"{x['us']:.2f}",
                     f"{x['p50']:.4g} {x['unit']}", bar))
    return rows


def table(ours):
    """Ours in their order, what rivals alone have behind them in each section."""
    sections = collections.OrderedDict()
    for section, name, us, value, bar in ours:
        sections.setdefault(section, collections.OrderedDict())[name] = [us, value, bar, {}]
    for (section, name), row in found.items():
        at = sections.setdefault(section, collections.OrderedDict())
        at.setdefault(name, ["", "", "", {}])[3].update(row)
    for section, rows in sections.items():
        print(f"{section}\n  {'':<54} {'ours, us':>11} {'':<24} {'bar':<14} "
              f"{'fla':>10} {'sglang':>10} {'torch':>10}")
        for name, (us, value, bar, others) in rows.items():
            cells = [others.get(who, "") for who in ("fla", "sglang", "torch")]
            value = value or others.get("value", "")
            print(f"  {name:<54} {others.get('ours', us):>11} {value:<24} {bar:<14} "
                  + " ".join(f"{cell:>10}" for cell in cells))
    for text in notes:
        print("note: " + text)


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {' '.join(PARTS)}; all")
    parser.add_argument("--ours", type=pathlib.Path, help="what statecache-bench gpu --json said")
    parser.add_argument("--bench", help="the command statecache-bench, for the errors of ours")
    parser.add_argument("--json", type=pathlib.Path, help="also the rivals' figures, in this file")
    parser.add_argument("--warm", action="store_true", help="only compile")
    options = parser.parse_args()
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"no part '{part}'")
    return options


PARTS = {"limits": limits, "decode": decode, "decode_kda": decode_kda, "conv": conv,
         "conv_prefill": conv_prefill, "step": step, "copy": copy,
         "prefill_gdn": lambda: prefill("GDN"), "prefill_kda": lambda: prefill("KDA"),
         "errors": None}


def main():
    global WARM
    options = parse()
    WARM = options.warm
    PARTS["errors"] = lambda: errors(options.bench)
    parts = options.parts or list(PARTS)
    if WARM and len(parts) > 1:
        running = [subprocess.Popen([sys.executable, __file__, "--warm", part]) for part in parts]
        return max([process.wait() for process in running])
    failed = 0
    for name in parts:
        try:
            if isinstance(torch, ImportError):
                raise torch
            PARTS[name]()
        except Exception as failure:  # one part less, said so; the others still run
            note(f"{name}: {type(failure).__name__}: {str(failure)[:300]}")
            failed = max(failed, 2 if isinstance(failure, Worse) else 1)
    if WARM:
        return failed
    if not isinstance(torch, ImportError) and torch.cuda.is_available():
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; times in us")
    table(read_ours(options.ours) if options.ours else [])
    if options.json:
        options.json.write_text("".join(json.dumps(x) + "\n" for x in figures))
    return failed


if __name__ == "__main__":
    sys.exit(main())
