# SPDX-License-Identifier: Apache-2.0
"""transformers' Qwen3-Next, unchanged, with the states of its linear layers in a pool of slots.

Small random weights on the CPU. Two prompts share a system prompt: the second one resumes from the
snapshot that was saved behind it, and has the logits of a cold run. Run it: python qwen3_next.py
(needs torch and transformers 5).

A linear layer of transformers keeps a conv window [channels, width] and a state [heads, K, V]; a
slot has [width - 1, channels] and [heads, V, K]. The forward reads the source slot in place and
writes the destination, also where a state is to be saved on the way; KV is kept in pages, by id.
"""
import sys

import numpy as np
import torch

# Where these packages are installed, transformers takes their kernels, which need a GPU.
sys.modules.update(dict.fromkeys(("fla", "causal_conv1d")))

from transformers import Qwen3NextConfig, Qwen3NextForCausalLM  # noqa: E402
from transformers.cache_utils import DynamicCache, LinearAttentionLayer  # noqa: E402

import statecache as sc  # noqa: E402

PAGE = 16


class SlotLayer(LinearAttentionLayer):
    """The states of one linear layer: read from slot `source`, written to slot `dest`."""

    def __init__(self, window, state, source, dest):
        super().__init__()
        self.window, self.state, self.dest = window, state, dest
        if source > 0:  # 0: nothing came before
            self.conv_states[0] = torch.nn.functional.pad(window[source].T, (1, 0))[None]
            self.recurrent_states[0] = state[source].transpose(-1, -2)[None]
            self.conv_kernel_size[0] = window.shape[1] + 1
            for known in (self.is_conv_states_initialized, self.is_recurrent_states_initialized,
                          self.has_previous_state):
                known[0] = True

    def update_recurrent_state(self, recurrent_states, state_idx=0, **_):
        """Called by the model with the state behind the last token."""
        self.state[self.dest] = recurrent_states[0].transpose(-1, -2)
        return recurrent_states

    def finish(self):
        """The model has updated its window; a slot keeps the inputs that still count."""
        self.window[self.dest] = self.conv_states[0][0, :, 1:].T


class Engine:
    """Serves one request after the other."""

    def __init__(self, model, slot_count=32):
        self.model, self.config = model, model.config
        kinds = self.config.layer_types
        self.linear = [at for at, kind in enumerate(kinds) if kind == "linear_attention"]
        self.full = [at for at, kind in enumerate(kinds) if kind == "full_attention"]
        self.pool = sc.Pool(schema_of(self.config), slot_count)
        self.cache = sc.Cache(self.pool, PAGE)
        self.views = {at: (torch.from_dlpack(self.pool.tensor(at, "conv")),
                           torch.from_dlpack(self.pool.tensor(at, "recurrent")))
                      for at in self.linear}
        self.pages = {}  # id -> keys and values of a page of tokens, by full layer
        self.next_id = 0

    def close(self):
        """Gives all back."""
        self.views.clear()
        self.cache.verify()
        self.cache.close()
        self.pool.close()

    @torch.no_grad()
    def forward(self, tokens, position, source, dest, kv):
        """Logits of `tokens`; kv becomes that of all tokens so far."""
        cache = DynamicCache(config=self.config)
        for at in self.linear:
            cache.layers[at] = SlotLayer(*self.views[at], source, dest)
        for at in self.full:
            if at in kv:
                cache.layers[at].update(*kv[at])
        positions = torch.arange(position, position + len(tokens))[None]
        out = self.model(input_ids=torch.from_numpy(tokens).long()[None], cache=cache,
                         position_ids=positions, use_cache=True)
        for at in self.linear:
            cache.layers[at].finish()
        kv.update({at: (cache.layers[at].keys, cache.layers[at].values) for at in self.full})
        return out.logits[0]

    def row(self, step, tokens, kv):
        """Runs the row of a step, piece by piece where states are saved on the way."""
        at, end, source = int(step.position[0]), int(step.end[0]), int(step.source[0])
        stops = [*zip(step.save_position.tolist(), step.save_slot.tolist()),
                 (end, int(step.dest[0]))]
        logits = []
        for stop, dest in stops:
            logits.append(self.forward(tokens[at:stop], at, source, dest, kv))
            at, source = stop, dest
        return logits

    def serve(self, ns, tokens, cuts=(), keep=True):
        """Serves a prompt, cut at some positions; (tokens resumed, logits of the others)."""
        lease = self.cache.acquire_one(ns, tokens)
        resumed = at = lease.info.resume_len
        ids = lease.kv_ids().tolist()
        kv = {layer: tuple(torch.cat([self.pages[one][layer][part] for one in ids], dim=2)
                           for part in (0, 1)) for layer in self.full} if ids else {}
        logits = []
        for stop in [*cuts, len(tokens)]:
            while at < stop:
                step = self.cache.plan(lease, at, stop)
                sc.raise_for_status(step.status)
                logits += self.row(step, tokens, kv)
                end = int(step.end[0])
                step.commit([self.keep_pages(kv, at // PAGE, end // PAGE)])
                at = end
        lease.release(keep)
        self.drain()
        return resumed, torch.cat(logits)

    def drain(self):
        """Pages that the cache has let go are free."""
        for one in self.cache.drain().tolist():
            del self.pages[one]

    def keep_pages(self, kv, first, last):
        """Copies pages that are complete to where others find them; their ids."""
        ids = np.arange(self.next_id, self.next_id + last - first, dtype=np.int32)
        self.next_id += len(ids)
        for one, page in zip(ids.tolist(), range(first, last)):
            part = slice(page * PAGE, (page + 1) * PAGE)
            self.pages[one] = {layer: tuple(tensor[:, :, part].clone() for tensor in kv[layer])
                               for layer in self.full}
        return ids


def schema_of(config):
    """The states of the linear layers; transformers prefills in chunks of 64."""
    heads, key_dim = config.linear_num_value_heads, config.linear_key_head_dim
    channels = 2 * config.linear_num_key_heads * key_dim + heads * config.linear_value_head_dim
    parts = []
    for layer, kind in enumerate(config.layer_types):
        if kind == "linear_attention":
            parts.append(sc.Part(layer, "conv", "f32",
                                 (config.linear_conv_kernel_dim - 1, channels)))
            parts.append(sc.Part(layer, "recurrent", "f32",
                                 (heads, config.linear_value_head_dim, key_dim)))
    return sc.Schema("qwen3-next-small", "random 0", [sc.Group("gdn", 64)], parts,
                     config.num_hidden_layers)


def small_model():
    """Three linear layers and a full one, random weights."""
    torch.manual_seed(0)
    config = Qwen3NextConfig(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, linear_key_head_dim=16,
        linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
        moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=4,
        num_experts_per_tok=2)
    return Qwen3NextForCausalLM(config).eval().float()


def main():
    """Two prompts behind one system prompt."""
    engine = Engine(small_model())
    ns, cold = engine.cache.namespace(), engine.cache.namespace(adapter_id=1)
    rng = np.random.default_rng(0)
    system, *users = (rng.integers(0, 512, count, dtype=np.int32) for count in (128, 30, 45))
    for user in users:
        tokens = np.concatenate([system, user])
        resumed, logits = engine.serve(ns, tokens)
        print(f"{len(tokens)} tokens, resumed at {resumed}, computed {len(logits)}")
    _, other = engine.serve(cold, tokens, cuts=[128])
    same = torch.equal(logits, other[128:])
    print(f"logits equal those of a cold run, bit for bit: {same}")
    engine.close()
    return same


if __name__ == "__main__":
    raise SystemExit(not main())
