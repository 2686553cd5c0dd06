# SPDX-License-Identifier: Apache-2.0
"""transformers' Qwen3-Next through the cache: resumed equals cold (examples/qwen3_next.py)."""
import pathlib
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (./dev oracle has it)")
cache_utils = pytest.importorskip("transformers.cache_utils", reason="transformers is missing")
if not hasattr(cache_utils, "LinearAttentionLayer"):
    pytest.skip("this version of transformers has no cache of linear layers",
                allow_module_level=True)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "api/python/examples"))
import qwen3_next  # noqa: E402 (needs the path)

SYSTEM = 128


@pytest.fixture(scope="module")
def engine():
    torch.set_num_threads(1)
    made = qwen3_next.Engine(qwen3_next.small_model())
    yield made
    made.close()


def tokens_of(seed, count):
    return np.random.default_rng(seed).integers(0, 512, count, dtype=np.int32)


def serve_cold(engine, number, tokens, cuts):
    """The same in a namespace that knows nothing, and nothing of it stays."""
    ns = engine.cache.namespace(adapter_id=number)
    resumed, logits = engine.serve(ns, tokens, cuts, keep=False)
    assert resumed == 0
    engine.cache.close_namespace(ns)
    engine.drain()
    return logits


def test_every_tail__resumed_logits_are_those_of_a_cold_run_with_the_same_cut(engine):
    """For tails of 1 to 65 tokens behind a system prompt that all share: bit for bit, and within
    rounding of the model as transformers runs it alone, whole."""
    ns = engine.cache.namespace()
    system = tokens_of(1, SYSTEM)
    engine.serve(ns, np.concatenate([system, tokens_of(2, 20)]))
    worst = 0.0
    for tail in range(1, 66):
        tokens = np.concatenate([system, tokens_of(100 + tail, tail)])
        resumed, logits = engine.serve(ns, tokens, keep=False)
        assert (resumed, len(logits)) == (SYSTEM, tail)
        whole = serve_cold(engine, tail, tokens, [SYSTEM])
        assert torch.equal(logits, whole[SYSTEM:]), f"tail of {tail} tokens"
        with torch.no_grad():
            alone = engine.model(torch.from_numpy(tokens).long()[None]).logits[0]
        worst = max(worst, float((alone - whole).norm() / alone.norm()))
    print(f"against transformers alone, uncut: {worst:.2e} (RMSE / RMS)")
    assert worst < 1e-5


def test_decode__token_by_token_behind_a_resumed_prompt(engine):
    ns = engine.cache.namespace(adapter_id=1000)
    engine.serve(ns, tokens_of(3, 100))
    tokens = np.concatenate([tokens_of(3, 100), tokens_of(4, 8)])
    cuts = [64, 100, *range(101, 108)]
    resumed, logits = engine.serve(ns, tokens, cuts, keep=False)
    assert resumed == 64
    assert torch.equal(logits, serve_cold(engine, 1001, tokens, cuts)[64:])


def test_example__runs(capsys):
    assert qwen3_next.main()
    assert "resumed at 128, computed 45" in capsys.readouterr().out
