# SPDX-License-Identifier: Apache-2.0
"""PyTorch on a CPU, for `statecache-bench kernels --rival`: the same operations on the same shapes.

    statecache-bench kernels --rival "build/oracle-venv/bin/python3 bench/kernels_torch.py"
    build/oracle-venv/bin/python3 bench/kernels_torch.py --check

kernels_rival.h has the protocol; ./dev bench kernels does the first by itself, `./dev oracle` makes
the venv. What runs, eagerly, with as many threads as ours:

    chunk, recurrent GDN    torch_chunk_, torch_recurrent_gated_delta_rule of `transformers`
    chunk, recurrent KDA    naive_chunk_kda, naive_recurrent_kda of `flash-linear-attention`
    chunk Mamba-2           mamba2_chunk_scan of `transformers`
    conv                    causal_conv1d_fn, causal_conv1d_update of `transformers`
    norms                   Qwen3NextRMSNormGated, l2norm of `transformers`
    decode, verify, gates, Mamba-2 token by token: `Step` and `gates` below, over whole tensors

It is given what suits it: rows of all threads in one call, slots side by side as one view, large
tensors in huge pages, states and conv inputs in the layout of its functions; arguments are ready.
A bf16 state is widened, computed in fp32 and rounded, as ours. The fixed parts of a call count, as
in ours.

Before a function is timed its results for a small shape are compared with the float64 formulas of
tests/oracle/reference.py; beyond BOUND there is no time. Time: of the thread's processor clock with
one thread, else elapsed; the median of calls after one that is not counted.
"""
import inspect
import json
import os
import statistics
import sys
import time
import types
import warnings

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # PyTorch reads it when it is imported
CHUNK, SSM_CHUNK, WIDTH, DRAFTS = 64, 128, 4, 8
BUDGET_S = 3.0
BOUND = {"fp32": 1e-5, "bf16": 1.5e-2}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Skip(Exception):
    """There is no time for this case, and why."""


def load():
    """The packages; raises ImportError."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")
    have = types.SimpleNamespace()
    import torch
    have.torch = torch
    have.names = [f"PyTorch {torch.__version__}"]
    torch.set_grad_enabled(False)
    for name, path in (("qwen", "transformers.models.qwen3_next.modeling_qwen3_next"),
                       ("mamba2", "transformers.models.mamba2.modeling_mamba2"),
                       ("kda", "fla.ops.kda.naive")):
        try:
            module = __import__(path, fromlist=["x"])
            package = sys.modules[path.split(".", 1)[0]]
            setattr(have, name, module)
            version = f"{package.__name__} {package.__version__}"
            if version not in have.names:
                have.names.append(version)
        except Exception as why:  # whatever an optional package does where it cannot run
            setattr(have, name, Missing(f"{path.split('.', 1)[0]}: {why}"))
    sys.path.insert(0, os.path.join(ROOT, "tests", "oracle"))
    import reference
    have.ref = reference
    return have


class Missing:
    """Stands for a module that could not be imported."""

    def __init__(self, why):
        self.why = why

    def __getattr__(self, name):
        raise Skip(self.why)


def plain(module, name):
    """The PyTorch function itself: the wrapper about it prefers kernels for GPUs."""
    return inspect.unwrap(getattr(module, name))


class Case:
    """One request. `batch`: rows of all threads."""

    def __init__(self, have, ask):
        self.have, self.torch = have, have.torch
        self.__dict__.update(ask)
        self.batch *= self.threads
        self.ssm = self.kind == "ssm"
        types_of = {"fp32": self.torch.float32, "bf16": self.torch.bfloat16}
        self.tensor, self.slot = types_of[self.dtype], types_of[self.state]
        self.torch.manual_seed(7)

    def normal(self, *shape, scale=1.0):
        return (self.torch.randn(*shape) * scale).to(self.tensor)

    def uniform(self, low, high, *shape):
        return self.torch.rand(*shape) * (high - low) + low

    def channels(self):
        return 2 * self.heads * self.k_dim + self.v_heads * self.v_dim

    def pool(self, part, bytes_):
        """Slots of one shape: as many as `bytes_` hold, a multiple of the batch."""
        size = self.torch.empty(0, dtype=self.slot).element_size()
        count = max(1, bytes_ // (size * int(self.torch.Size(part).numel())) // self.batch)
        pool = self.torch.empty(count, self.batch, *part, dtype=self.slot)
        pool[:] = (self.torch.randn(self.batch, *part) * 0.1).to(self.slot)
        return pool

    def delta(self):
        """q, k, v, g, beta: [rows, tokens, heads, ...]"""
        n, h, hv = (self.batch, self.tokens), self.heads, self.v_heads
        wide = (self.k_dim,) if self.kind == "kda" else ()
        return (self.normal(*n, h, self.k_dim), self.normal(*n, h, self.k_dim),
                self.normal(*n, hv, self.v_dim), self.uniform(-0.2, -0.01, *n, hv, *wide),
                self.uniform(0.1, 0.9, *n, hv))

    def scan(self):
        """x, raw dt, A, B, C, D"""
        n, h, hv = (self.batch, self.tokens), self.heads, self.v_heads
        return (self.normal(*n, hv, self.v_dim), self.normal(*n, hv),
                -self.uniform(0.5, 2.0, hv), self.normal(*n, h, self.k_dim),
                self.normal(*n, h, self.k_dim), self.uniform(-1.0, 1.0, hv))


def unit(x):
    return x * (x * x).sum(-1, keepdim=True).add(1e-6).rsqrt()


class Step:
    """One token of every row at once; states [rows, heads, V, K], in place."""

    def __init__(self, case):
        self.case, self.torch = case, case.torch
        self.share = case.v_heads // case.heads

    def delta(self, s, q, k, v, g, beta):
        torch = self.torch
        q, k = unit(q.float()) * q.shape[-1] ** -0.5, unit(k.float())
        q, k = (x.repeat_interleave(self.share, 1) for x in (q, k))
        decay = g.exp()
        if decay.dim() == 2:
            decay = decay[..., None]
        read = torch.matmul(s, torch.stack([k * decay, q * decay], -1))
        u = beta[..., None] * (v.float() - read[..., 0])
        s.mul_(decay[:, :, None]).addcmul_(u[..., None], k[:, :, None])
        return read[..., 1] + u * (k * q).sum(-1, keepdim=True)

    def scan(self, s, x, dt, a, b, c, d):
        torch = self.torch
        dt, x = torch.nn.functional.softplus(dt.float()), x.float()
        b, c = (y.float().repeat_interleave(self.share, 1) for y in (b, c))
        s.mul_((dt * a).exp()[..., None, None]).addcmul_((dt[..., None] * x)[..., None],
                                                         b[:, :, None])
        return torch.matmul(s, c[..., None])[..., 0] + d[:, None] * x

    def tokens(self, s, inputs):
        """Outputs of all tokens, [rows, tokens, heads, V]."""
        one = self.scan if self.case.ssm else self.delta
        at = lambda x, t: x[:, t] if x.dim() > 1 else x
        return self.torch.stack([one(s, *(at(x, t) for x in inputs))
                                 for t in range(self.case.tokens)], 1)


# ---- operations: each gives (what runs, call(i) -> results, wanted() -> the float64 ones) ----

def wide(*tensors):
    return [x.double().numpy() for x in tensors]


def reference_of(case, inputs, s0):
    """Outputs and last states by reference.py; s0 [rows, heads, V, K]."""
    ref, np_o, np_s = case.have.ref, [], []
    for r, s in enumerate(s0):
        if case.ssm:
            x, dt, a, b, c, d = wide(*(y[r] if y.dim() > 1 else y for y in inputs))
            o, states = ref.ssd(x, ref.softplus(dt), a, b, c, s, d)
        else:
            o, states = ref.recurrent(*wide(*(y[r] for y in inputs)), s)
        np_o.append(o), np_s.append(states[-1])
    return np_o, np_s


def op_decode(case, keep=True):
    step, inputs = Step(case), case.scan() if case.ssm else case.delta()
    pool = case.pool((case.v_heads, case.v_dim, case.k_dim), case.pool_bytes)
    first = wide(pool[0])[0]

    def call(i):
        s = pool[i % len(pool)]
        if not keep:
            return step.tokens(s.clone() if s.dtype == case.torch.float32 else s.float(), inputs),
        if s.dtype == case.torch.float32:
            return step.tokens(s, inputs), s
        work = s.float()
        o = step.tokens(work, inputs)
        return o, s.copy_(work)

    return "torch, whole tensors", call, lambda: reference_of(case, inputs, first)


def op_verify(case):
    return op_decode(case, keep=False)


def op_recurrent(case):
    if case.ssm:
        case.pool_bytes = 0
        return op_decode(case)
    return sequences(case, *{
        "gdn": ("transformers torch_recurrent_gated_delta_rule", "qwen",
                "torch_recurrent_gated_delta_rule"),
        "kda": ("fla naive_recurrent_kda", "kda", "naive_recurrent_kda")}[case.kind])


def op_chunk(case):
    if case.ssm:
        return scan_chunk(case)
    if case.kind == "kda" and case.tokens % CHUNK != 0:
        raise Skip("naive_chunk_kda takes whole chunks")
    return sequences(case, *{
        "gdn": ("transformers torch_chunk_gated_delta_rule", "qwen",
                "torch_chunk_gated_delta_rule"),
        "kda": ("fla naive_chunk_kda", "kda", "naive_chunk_kda")}[case.kind])


def sequences(case, name, module, function):
    """From zero states; they come as [rows, heads, K, V]."""
    run, inputs = plain(getattr(case.have, module), function), case.delta()
    norm = (lambda x: x) if module == "qwen" else unit
    more = {"use_qk_l2norm_in_kernel": True} if module == "qwen" else {}
    zero = case.torch.zeros(case.batch, case.v_heads, case.v_dim, case.k_dim)

    def call(_):
        q, k, *rest = inputs
        o, last = run(norm(q), norm(k), *rest, initial_state=None, output_final_state=True, **more)
        return o, last.to(case.slot).transpose(2, 3)

    return name, call, lambda: reference_of(case, inputs, wide(zero)[0])


def scan_chunk(case):
    x, dt, a, b, c, d = inputs = case.scan()
    # six tensors of [tokens, heads, chunk] at a time
    need = 6 * 4 * case.batch * case.tokens * case.v_heads * SSM_CHUNK
    if need > available() // 2:
        raise Skip(f"mamba2_chunk_scan would need {need >> 30} GiB")
    run = plain(case.have.mamba2, "mamba2_chunk_scan")
    zero = case.torch.zeros(case.batch, case.v_heads, case.v_dim, case.k_dim)

    def call(_):
        y, last = run(x, dt, a, b, c, chunk_size=SSM_CHUNK, D=d, dt_softplus=True,
                      initial_states=zero, return_final_states=True)
        return y, last.to(case.slot)

    return ("transformers mamba2_chunk_scan", call,
            lambda: reference_of(case, inputs, wide(zero)[0]))


def available():
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) << 10
    return 0


def op_conv_prefill(case):
    run = plain(case.have.qwen, "causal_conv1d_fn")
    x, weight = case.normal(case.batch, case.channels(), case.tokens), case.normal(
        case.channels(), WIDTH, scale=0.5)

    def wanted():
        rows = [case.have.ref.conv(r.T, wide(weight)[0], None, 0 * r.T[:WIDTH - 1], "silu")[0].T
                for r in wide(x)[0]]
        return rows,

    return "transformers causal_conv1d_fn", lambda _: (run(x, weight, None, "silu"),), wanted


def op_conv_update(case):
    run = plain(case.have.qwen, "causal_conv1d_update")
    x, weight = case.normal(case.batch, case.channels(), 1), case.normal(
        case.channels(), WIDTH, scale=0.5)
    pool = case.pool((case.channels(), WIDTH - 1), case.pool_bytes // 8)
    first = wide(pool[0])[0]

    def wanted():
        rows = [case.have.ref.conv(r.T, wide(weight)[0], None, past.T, "silu")
                for r, past in zip(wide(x)[0], first)]
        return [y.T for y, _ in rows], [windows[-1].T for _, windows in rows]

    def call(i):
        window = pool[i % len(pool)]
        return run(x, window, weight, None, "silu"), window

    return "transformers causal_conv1d_update", call, wanted


def op_gates(case):
    torch, ref, n = case.torch, case.have.ref, (case.batch * case.tokens, case.v_heads)
    each = (case.k_dim,) if case.kind == "kda" else ()
    a, b = case.normal(*n, *each), case.normal(*n)
    a_log, bias = torch.randn(case.v_heads) * 0.1, torch.randn(*n[1:], *each) * 0.1

    def call(_):
        rate = a_log.exp().reshape(-1, *(1 for _ in each))
        g = -rate * torch.nn.functional.softplus(a.float() + bias)
        return g, torch.sigmoid(b.float())

    def wanted():
        gate = ref.gate_kda if each else ref.gate_gdn
        return gate(*wide(a, a_log, bias)), ref.sigmoid(wide(b)[0])

    return "torch", call, wanted


def op_gated_rmsnorm(case):
    norm = case.have.qwen.Qwen3NextRMSNormGated(case.v_dim, eps=1e-6)
    norm.weight.copy_(case.torch.rand(case.v_dim) + 0.5)
    norm = norm.to(case.tensor)
    x, z = (case.normal(case.batch * case.tokens * case.v_heads, case.v_dim) for _ in range(2))
    return "transformers Qwen3NextRMSNormGated", lambda _: (norm(x, z),), lambda: (
        case.have.ref.gated_rmsnorm(*wide(x, z, norm.weight), 1e-6, "silu", False),)


def op_l2norm(case):
    x = case.normal(case.batch * case.tokens * case.heads, case.k_dim)
    run = case.have.qwen.l2norm
    return "transformers l2norm", lambda _: (run(x),), lambda: (case.have.ref.l2norm(wide(x)[0]),)


def op_replay(_):
    raise Skip("PyTorch has no steps that leave the state; its decode is above")


OPS = {name[3:].replace("_", " "): run for name, run in list(globals().items())
       if name.startswith("op_")}


# ---- comparison and time ----

def error_of(have, ask, checked={}):  # pylint: disable=dangerous-default-value
    """RMSE(error) / RMS(reference) of a small shape of the same kind; the largest of all."""
    small = dict(ask, heads=2, v_heads=4, k_dim=32, v_dim=16, threads=1, pool_bytes=0)
    small["batch"] = min(ask["batch"], 2)
    small["tokens"] = 1 if ask["tokens"] == 1 else DRAFTS if ask["op"] == "verify" else 2 * CHUNK
    key = json.dumps([small[x] for x in ("op", "kind", "dtype", "state", "batch", "tokens")])
    if key in checked:
        return checked[key]
    import numpy as np
    case = Case(have, small)
    _, call, wanted = OPS[ask["op"]](case)
    got, want = call(0), wanted()
    worst = 0.0
    for x, y in zip(got, want):
        x, y = x.double().numpy(), np.asarray(y)
        if x.shape != y.shape:
            raise Skip(f"its result is {list(x.shape)}, the reference's {list(y.shape)}")
        worst = max(worst, float(np.sqrt(np.mean((x - y) ** 2) / np.mean(y ** 2))))
    narrow = "bf16" in (ask["dtype"], ask["state"])
    if not worst <= BOUND["bf16" if narrow else "fp32"]:
        raise Skip(f"its result differs from the reference by {worst:.1e}")
    checked[key] = worst
    return worst


def answer(have, ask):
    if ask["op"] not in OPS:
        raise Skip("an operation that kernels_torch.py does not know")
    error = error_of(have, ask)
    case = Case(have, ask)
    have.torch.set_num_threads(case.threads)
    by, call, _ = OPS[ask["op"]](case)
    clock = time.thread_time_ns if case.threads == 1 else time.perf_counter_ns
    times, begin = [], time.monotonic()
    call(0)
    while len(times) < 3 * case.rounds and (not times or time.monotonic() - begin < BUDGET_S):
        start = clock()
        call(len(times) + 1)
        times.append(clock() - start)
    return {"by": by, "us": statistics.median(times) / 1e3, "n": len(times), "error": error}


def say(what):
    print(json.dumps(what), flush=True)


def reason(why):
    return {"skip": f"{type(why).__name__}: {why}" if not isinstance(why, Skip) else str(why)}


def serve():
    try:
        have = load()
    except ImportError as why:
        say({"skip": f"{why} ({sys.executable}); ./dev oracle makes a venv that has it"})
        return
    say({"rival": ", ".join(have.names)})
    for line in sys.stdin:
        try:
            said = answer(have, json.loads(line))
        except Exception as why:  # a case that cannot run is no end of the others
            said = reason(why)
        say(said)


def check():
    """All operations in small, compared with the reference; status 77 where nothing can run."""
    try:
        have = load()
    except ImportError as why:
        print(f"skipped, {why}")
        return 77
    print(", ".join(have.names))
    failed = 0
    for op in OPS:
        for kind in ("gdn", "kda", "ssm"):
            for dtype in ("fp32", "bf16"):
                rows = op in ("decode", "verify", "conv update")
                narrow = dtype == "bf16" and op not in ("decode", "verify", "chunk")
                tokens = 8 if op == "verify" else 1 if rows else 128
                ask = {"op": op, "kind": kind, "dtype": "bf16" if narrow else "fp32",
                       "state": dtype, "batch": 2, "tokens": tokens}
                try:
                    print(f"{error_of(have, ask):9.2e}  {op} {kind} {dtype}")
                except Skip as why:
                    failed += op != "replay"
                    print(f"{'-':>9}  {op} {kind} {dtype}: {why}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(check() if sys.argv[1:] == ["--check"] else serve())
