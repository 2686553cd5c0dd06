# SPDX-License-Identifier: Apache-2.0
"""The kernels' formulas in float64, each by two routes that share as little as possible.

Shapes of one sequence: q, k [T, H, K]; v [T, HV, V]; g [T, HV] or [T, HV, K] (log decay);
beta [T, HV]; S [HV, V, K]. Value head hv reads q/k head hv // (HV // H).
"""
import numpy as np


def to_bf16(x):
    """Nearest even; uint16 patterns."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return (((u + 0x7FFF + ((u >> 16) & 1)) >> 16) & 0xFFFF).astype(np.uint16)


def from_bf16(u):
    return (u.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def round_bf16(x):
    return from_bf16(to_bf16(x))


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def l2norm(x, eps=1e-6):
    return x / np.sqrt(np.sum(x * x, -1, keepdims=True) + eps)


def gated_rmsnorm(x, z, weight, eps, act, gate_first):
    gate = {"silu": silu, "sigmoid": sigmoid}[act](z)
    if gate_first:
        x = x * gate
    y = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight
    return y if gate_first else y * gate


def gate_gdn(a, a_log, dt_bias):
    return -np.exp(a_log) * softplus(a + dt_bias)


def gate_kda(a, a_log, dt_bias, lower_bound=None):
    """a [T, HV, K], a_log [HV], dt_bias [HV, K]"""
    if lower_bound is None:
        return -np.exp(a_log)[:, None] * softplus(a + dt_bias)
    return lower_bound * sigmoid(np.exp(a_log)[:, None] * (a + dt_bias))


# ------------------------------------------------------------------------------------------- conv

def conv(x, weight, bias, window, act):
    """x [T, C], weight [C, W], window [W-1, C] -> y, window after each token [T, W-1, C]"""
    width = weight.shape[1]
    ext = np.concatenate([window, x], 0)
    y = np.zeros_like(x)
    for t in range(len(x)):
        y[t] = np.einsum("wc,cw->c", ext[t:t + width], weight)
    y += 0 if bias is None else bias
    windows = np.stack([ext[t + 1:t + width] for t in range(len(x))])
    return (silu(y) if act == "silu" else y), windows


def conv_by_numpy(x, weight, bias, window, act):
    """The same through np.convolve, channel by channel."""
    width = weight.shape[1]
    ext = np.concatenate([window, x], 0)
    y = np.stack([np.convolve(ext[:, c], weight[c, ::-1], "full")[width - 1:len(ext)]
                  for c in range(x.shape[1])], 1)
    y += 0 if bias is None else bias
    return silu(y) if act == "silu" else y


# ------------------------------------------------------------------------------------- delta rule

def prepare(q, k, scale, norm):
    if norm:
        q, k = l2norm(q), l2norm(k)
    return q * (q.shape[-1] ** -0.5 if scale is None else scale), k


def recurrent(q, k, v, g, beta, s0, scale=None, norm=True):
    """-> o [T, HV, V], states after each token [T, HV, V, K]. Decay, read, write, output."""
    q, k = prepare(q, k, scale, norm)
    tokens, heads = q.shape[:2]
    v_heads = v.shape[1]
    o, states, s = np.zeros(v.shape), np.zeros((tokens,) + s0.shape), s0.copy()
    for t in range(tokens):
        for hv in range(v_heads):
            h = hv // (v_heads // heads)
            s[hv] = s[hv] * np.exp(g[t, hv])
            u = beta[t, hv] * (v[t, hv] - s[hv] @ k[t, h])
            s[hv] = s[hv] + np.outer(u, k[t, h])
            o[t, hv] = s[hv] @ q[t, h]
        states[t] = s
    return o, states


def by_transition(q, k, v, g, beta, s0, scale=None, norm=True):
    """The same as S <- S diag(alpha) (I - beta k k^T) + beta v k^T with dense matrices."""
    q, k = prepare(q, k, scale, norm)
    tokens, heads, k_dim = q.shape
    v_heads = v.shape[1]
    o, s = np.zeros(v.shape), s0.copy()
    for hv in range(v_heads):
        h = hv // (v_heads // heads)
        for t in range(tokens):
            alpha = np.diag(np.exp(g[t, hv]) * np.ones(k_dim))
            erase = np.eye(k_dim) - beta[t, hv] * np.outer(k[t, h], k[t, h])
            s[hv] = s[hv] @ alpha @ erase + beta[t, hv] * np.outer(v[t, hv], k[t, h])
            o[t, hv] = s[hv] @ q[t, h]
    return o, s


def by_chunks(q, k, v, g, beta, s0, chunk, position=0, scale=None, norm=True):
    """WY form on the grid of absolute positions; the inverse by numpy's solver, decays pairwise."""
    q, k = prepare(q, k, scale, norm)
    tokens, heads, k_dim = q.shape
    v_heads = v.shape[1]
    o, s = np.zeros(v.shape), s0.copy()
    gk = g if g.ndim == 3 else np.repeat(g[:, :, None], k_dim, 2)
    for hv in range(v_heads):
        h, at = hv // (v_heads // heads), 0
        while at < tokens:
            end = min(tokens, at + chunk - (position + at) % chunk)
            qc, kc, vc, b = q[at:end, h], k[at:end, h], v[at:end, hv], beta[at:end, hv, None]
            cum = np.cumsum(gk[at:end, hv], 0)
            pair = np.exp(np.minimum(cum[:, None] - cum[None], 0))          # [i, j, K], i >= j
            a = np.tril(b * np.einsum("ik,ijk,jk->ij", kc, pair, kc), -1)
            p = np.tril(np.einsum("ik,ijk,jk->ij", qc, pair, kc))
            u = np.linalg.solve(np.eye(end - at) + a, b * (vc - (kc * np.exp(cum)) @ s[hv].T))
            o[at:end, hv] = (qc * np.exp(cum)) @ s[hv].T + p @ u
            s[hv] = s[hv] * np.exp(cum[-1]) + u.T @ (kc * np.exp(cum[-1] - cum))
            at = end
    return o, s


# --------------------------------------------------------------------- selective state space

def ssd(x, dt, a, b, c, s0, d=None):
    """x [T, NH, P]; dt [T, NH] after softplus; a [NH] < 0; b, c [T, G, N]; S [NH, P, N]
    -> y [T, NH, P], states after each token"""
    y, states, s = np.zeros_like(x), np.zeros((len(x),) + s0.shape), s0.copy()
    share = x.shape[1] // b.shape[1]
    for t in range(len(x)):
        for h in range(x.shape[1]):
            s[h] = s[h] * np.exp(a[h] * dt[t, h]) + np.outer(dt[t, h] * x[t, h], b[t, h // share])
            y[t, h] = s[h] @ c[t, h // share] + (0 if d is None else d[h] * x[t, h])
        states[t] = s
    return y, states


def ssd_by_sum(x, dt, a, b, c, s0, d=None):
    """The same unrolled: every output is a sum over all tokens before it. -> y, last state"""
    share = x.shape[1] // b.shape[1]
    cum = np.cumsum(a * dt, 0)                                              # [T, NH]
    bh, ch = (np.repeat(z, share, 1) for z in (b, c))
    pair = np.exp(np.minimum(cum[:, None] - cum[None], 0))                  # [i, j, NH]
    pair *= np.tril(np.ones(pair.shape[:2]))[..., None]
    y = np.einsum("ihn,jhn,ijh,jh,jhp->ihp", ch, bh, pair, dt, x, optimize=True)
    y += np.exp(cum)[..., None] * np.einsum("hpn,ihn->ihp", s0, ch)
    s = np.exp(cum[-1])[:, None, None] * s0
    s += np.einsum("jh,jh,jhp,jhn->hpn", np.exp(cum[-1] - cum), dt, x, bh, optimize=True)
    return y + (0 if d is None else d[:, None] * x), s
