# SPDX-License-Identifier: Apache-2.0
"""schema_runs.py PROGRAM: runs `statecachectl schema` on configurations of public models."""
import copy
import json
import subprocess
import sys

from model_configs import MODELS

PROGRAM = sys.argv[1]
MIB, KIB, GIB = 1 << 20, 1 << 10, 1 << 30
counts = {True: 0, False: 0}


def expect(good, what, shown=""):
    counts[bool(good)] += 1
    if not good:
        print("NOT OK", what)
        print("   ", shown)


def run(config, *words, code=0):
    """Runs it on a config (an object, or text); returns its standard output and error."""
    text = config if isinstance(config, bytes) else json.dumps(config).encode()
    done = subprocess.run([PROGRAM, "schema", "-", *map(str, words)], input=text,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    expect(done.returncode == code, f"{words}: exit {done.returncode}, {code} expected",
           (done.stdout + done.stderr)[-600:])
    return done.stdout, done.stderr.decode()


def figures(config, *words):
    return json.loads(run(config, "--json", *words)[0])


def printed(mib, bytes_):
    """The table prints one decimal."""
    return abs(bytes_ / MIB - mib) <= 0.05 + 1e-9


def every_figure_of_the_table():
    for name, (config, row) in MODELS.items():
        layers, heads, rows, cols, channels, layer_mib, conv_kib, all_f32, all_bf16 = row
        for dtype, times, whole in (("f32", 1, all_f32), ("bf16", 2, all_bf16)):
            got = figures(config, "--dtype", dtype, "--gib", 8)
            conv, state = got["parts"][:2]
            expect(got["recurrent_count"] == layers == len(got["recurrent_layers"]) ==
                   len(got["parts"]) // 2, f"{name}: layers", got["recurrent_count"])
            expect(state["dims"] == [heads, rows, cols] and state["dtype"] == dtype,
                   f"{name}: heads x V x K", state)
            expect(conv["dims"] == [3, channels] and conv["dtype"] == "bf16",
                   f"{name}: channels", conv)
            expect(state["bytes"] == layer_mib * MIB / times == got["recurrent_bytes"],
                   f"{name}: MiB of a layer, {dtype}", state["bytes"] / MIB)
            expect(conv["bytes"] == conv_kib * KIB == got["conv_bytes"],
                   f"{name}: KiB of a window", conv["bytes"] / KIB)
            expect(printed(whole, got["state_bytes"]), f"{name}: MiB of a state, {dtype}",
                   got["state_bytes"] / MIB)
            expect(got["state_bytes"] == layers * got["layer_bytes"] ==
                   sum(part["bytes"] for part in got["parts"]), f"{name}: sums", got["state_bytes"])
            expect(got["fit_count"] == 8 * GIB // got["state_bytes"], f"{name}: fit", got)


def what_else_it_says():
    next_ = MODELS["qwen3-next-80b-a3b"][0]
    got = figures(next_)
    expect(got["attention_count"] == 12 and got["attention_layers"][:3] == [3, 7, 11] and
           got["recurrent_layers"][:4] == [0, 1, 2, 4], "layers of Qwen3-Next", got)
    expect(got["kv_token_bytes"] == 12 * 2 * 2 * 256 * 2, "KV of Qwen3-Next", got)
    expect(got["family"] == "gdn" and got["chunk"] == 64 and "gib" not in got, "family", got)
    text = run(next_, "--gib", 8, "--parts")[0].decode()
    for piece in ("36 of 48 layers", "73.688 MiB", "0-2 4-6", "111 states fit",
                  "24576 bytes a token", "32 x 128 x 128", "3 x 8192", "48.0 KiB", "2.000 MiB",
                  "layer  46"):
        expect(piece in text, f"for people: {piece}", text)
    # latent KV; and a file that says another dtype of the states
    got = figures(MODELS["kimi-linear-48b-a3b"][0])
    expect(got["kv_token_bytes"] == 7 * 576 * 2 and got["attention_layers"][-1] == 26, "MLA", got)
    got = figures(dict(next_, mamba_ssm_dtype="bfloat16"), "--kv-dtype", "fp8")
    expect(got["dtype"] == "bf16" and got["kv_token_bytes"] == 12 * 2 * 2 * 256, "dtypes", got)
    got = figures(dict(next_, dtype="float32"))
    expect(got["conv_dtype"] == "f32" and got["conv_bytes"] == 96 * KIB, "a window in fp32", got)
    got = figures(MODELS["falcon-h1-7b"][0])
    expect(got["attention_count"] == got["recurrent_count"] == 44, "both in every layer", got)
    got = figures(MODELS["jamba-v0.1"][0])
    expect(got["attention_layers"] == [4, 12, 20, 28], "Jamba's attention", got)
    got = figures(MODELS["ling-3.0-flash"][0] | {"num_hidden_layers": 44})
    expect(got["attention_layers"][-2:] == [42, 43], "the rest of a group has attention", got)


def ranks():
    config = MODELS["qwen3.5-397b-a17b"][0]
    whole = figures(config)
    for size in (1, 2, 4, 8, 16):
        got = figures(config, "--tp", size)
        expect(got["recurrent_bytes"] * size == whole["recurrent_bytes"], f"{size} ranks", got)
        expect(got["conv_bytes"] * size == whole["conv_bytes"], f"{size} ranks: window", got)
        expect(got["parts"][1]["dims"] == [64 // size, 128, 128], f"{size} ranks: heads", got)
        expect(got["kv_token_bytes"] == whole["kv_token_bytes"] // min(size, 2), "KV heads", got)
    # one group of B and C, which every rank has
    got = figures(MODELS["granite-4.0-h-small"][0], "--tp", 4)
    expect(got["parts"][0]["dims"] == [3, 8192 // 4 + 256], "groups on every rank", got["parts"][0])
    error = run(config, "--tp", 3, code=4)[1]
    expect("divide" in error or "3" in error, "three ranks", error)


def a_new_type_with_known_members():
    for name in ("qwen3.5-9b", "kimi-linear-48b-a3b", "nemotron-h-8b", "granite-4.0-h-tiny"):
        config, row = MODELS[name]
        got = figures(dict(config, model_type="something_new"))
        expect(got["recurrent_count"] == row[0], f"{name} by its members", got)
    bamba = {"model_type": "bamba", "num_hidden_layers": 4, "attn_layer_indices": [2],
             "hidden_size": 64, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 1,
             "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2}
    expect(figures(bamba)["recurrent_layers"] == [0, 1, 3], "Bamba")
    mamba2 = {"model_type": "mamba2", "num_hidden_layers": 2, "hidden_size": 64, "expand": 2,
              "num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 1, "conv_kernel": 4,
              "chunk_size": 256, "time_step_limit": [0.0, float("inf")],
              "note": "Infinity \\\" NaN"}
    got = figures(mamba2)
    expect(got["recurrent_count"] == 2 and got["kv_token_bytes"] == 0, "Mamba-2", got)
    expect("KV             none" in run(mamba2)[0].decode(), "no KV")
    mamba = {"model_type": "falcon_mamba", "num_hidden_layers": 2, "hidden_size": 64,
             "intermediate_size": 128, "state_size": 16, "conv_kernel": 4}
    expect(figures(mamba)["parts"][1]["dims"] == [128, 1, 16], "Mamba-1")
    zamba = {"model_type": "zamba2", "num_hidden_layers": 3, "hidden_size": 64, "mamba_expand": 2,
             "layers_block_type": ["mamba", "hybrid", "mamba"], "n_mamba_heads": 4,
             "mamba_headdim": 32, "mamba_d_state": 16, "mamba_ngroups": 1, "mamba_d_conv": 4,
             "chunk_size": 256}
    got = figures(zamba)
    expect(got["recurrent_count"] == 3 and got["kv_token_bytes"] is None, "Zamba2", got)


def without(config, path):
    config = copy.deepcopy(config)
    *folders, last = path.split(".")
    at = config
    for folder in folders:
        at = at[folder]
    del at[last]
    return config


def changed(config, path, value):
    config = copy.deepcopy(config)
    *folders, last = path.split(".")
    at = config
    for folder in folders:
        at = at[folder]
    at[last] = value
    return config


def members_that_are_missing():
    needed = {
        "qwen3-next-80b-a3b": ("num_hidden_layers", "linear_num_value_heads",
                               "linear_num_key_heads", "linear_value_head_dim",
                               "linear_key_head_dim", "linear_conv_kernel_dim", "model_type"),
        "qwen3.5-27b": ("text_config.linear_num_value_heads", "text_config.layer_types"),
        "kimi-linear-48b-a3b": ("linear_attn_config.kda_layers", "linear_attn_config.num_heads",
                                "linear_attn_config.head_dim",
                                "linear_attn_config.short_conv_kernel_size"),
        "ling-3.0-flash": ("layer_group_size", "short_conv_kernel_size"),
        "nemotron-h-8b": ("hybrid_override_pattern", "mamba_num_heads", "ssm_state_size",
                          "conv_kernel"),
        "granite-4.0-h-tiny": ("layer_types", "mamba_n_heads", "mamba_d_state", "mamba_d_conv",
                               "mamba_expand"),
        "jamba-v0.1": ("attn_layer_period", "mamba_d_state", "hidden_size"),
    }
    for name, paths in needed.items():
        for path in paths:
            config = without(MODELS[name][0], path)
            if path == "model_type":
                config = {"num_hidden_layers": 4}
            error = run(config, code=4)[1]
            expect(f"{path}: " in error and "missing" in error, f"{name} without {path}", error)


def members_that_are_odd():
    next_, kimi = MODELS["qwen3-next-80b-a3b"][0], MODELS["kimi-linear-48b-a3b"][0]
    nemotron, granite = MODELS["nemotron-h-8b"][0], MODELS["granite-4.0-h-tiny"][0]
    for config, path, value, text in (
            (next_, "num_hidden_layers", 0, "from 1"),
            (next_, "num_hidden_layers", 5000, "1024"),
            (next_, "linear_num_value_heads", "32", '"32"'),
            (next_, "linear_num_value_heads", 2.5, "2.5"),
            (next_, "linear_num_value_heads", -1, "-1"),
            (next_, "linear_num_value_heads", 1e30, "whole"),
            (next_, "linear_num_value_heads", True, "true"),
            (next_, "linear_num_value_heads", float("nan"), "whole"),
            (next_, "linear_conv_kernel_dim", 1, "from 2"),
            (next_, "full_attention_interval", 0, "from 1"),
            (next_, "mamba_ssm_dtype", "int4", "int4"),
            (next_, "dtype", 7, "dtype"),
            (next_, "layer_types", ["linear_attention"] * 3, "3 layers"),
            (next_, "layer_types", ["linear_attention"] * 47 + ["new"], "[47]"),
            (next_, "layer_types", ["linear_attention"] * 47 + [1], "[47]"),
            (next_, "layer_types", "linear", "no array"),
            (next_, "layer_types", ["full_attention"] * 48, "no recurrent layers"),
            (next_, "num_key_value_heads", [], "num_key_value_heads"),
            (next_, "head_dim", 0, "head_dim"),
            (kimi, "linear_attn_config.kda_layers", [1, 28], "[1]"),
            (kimi, "linear_attn_config.kda_layers", [1, 1], "[1]"),
            (kimi, "linear_attn_config.kda_layers", [0], "[0]"),
            (kimi, "linear_attn_config", 3, "linear_attn_config"),
            (nemotron, "hybrid_override_pattern", "M-*", "3 layers"),
            (nemotron, "hybrid_override_pattern",
             "X" + nemotron["hybrid_override_pattern"][1:], '"X"'),
            (granite, "mamba_n_heads", 7, "7 heads"),
            (MODELS["falcon-h1-7b"][0], "mamba_d_ssm", 3000, "24 x 128"),
            (MODELS["jamba-v0.1"][0], "hidden_size", 1 << 20, "too large"),
    ):
        error = run(changed(config, path, value), code=4)[1]
        expect(path in error or "recurrent" in text, f"{path} = {value!r}: names it", error)
        expect(text in error, f"{path} = {value!r}: {text}", error)
    # attention alone, although it has the members of Mamba layers (Granite 4.0 Micro)
    error = run(changed(granite, "layer_types", ["attention"] * 40), code=4)[1]
    expect("no recurrent layers" in error, "attention only", error)
    error = run({"model_type": "llama", "num_hidden_layers": 4}, code=4)[1]
    expect('"llama"' in error, "no hybrid", error)
    # shapes that the library refuses: a window that is not shorter than a chunk
    error = run(changed(next_, "linear_conv_kernel_dim", 70), code=4)[1]
    expect("SC_ERR_INVALID" in error, "a window longer than a chunk", error)


def no_config():
    for text in (b"", b"[1]", b"3", b"{", b'{"a": }', b"\xff\xfe", b"{}" * 2, b"[" * 100000):
        error = run(text, code=4)[1]
        expect(error.startswith("statecachectl: -: "), f"{text[:20]}", error)
    run(b" " * ((16 << 20) + 1), code=3)
    for words in ((), ("a", "b"), ("-", "--gib"), ("-", "--gib", "0"), ("-", "--gib", "x"),
                  ("-", "--tp", "0"), ("-", "--tp", "1.5"), ("-", "--dtype", "fp8"),
                  ("-", "--kv-dtype", "int"), ("-", "--conv-dtype"), ("-", "--what")):
        done = subprocess.run([PROGRAM, "schema", *words], input=b"{}", capture_output=True,
                              timeout=60)
        expect(done.returncode == 2 and done.stderr, f"words {words}", done)
    done = subprocess.run([PROGRAM, "schema", "/nowhere/config.json"], capture_output=True,
                          timeout=60)
    expect(done.returncode == 3 and b"/nowhere" in done.stderr, "no file", done)
    done = subprocess.run([PROGRAM, "schema", "--help"], capture_output=True, timeout=60)
    expect(done.returncode == 0 and b"usage" in done.stdout, "--help", done)


def main():
    for test in (every_figure_of_the_table, what_else_it_says, ranks, a_new_type_with_known_members,
                 members_that_are_missing, members_that_are_odd, no_config):
        test()
    print(f"{counts[True]} passed, {counts[False]} failed, 0 skipped")
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
