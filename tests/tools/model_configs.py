# SPDX-License-Identifier: Apache-2.0
"""Configurations of public models, cut to the members that decide what a state is, and what they
must give. The figures are a published table of shapes; where a member's value is not public here
(marked), it is one that gives the table's number of layers.

MODELS: name -> (config, row); a row is layers, heads, V, K, channels of the conv window, MiB of a
layer's matrix in fp32, KiB of its window in bf16, MiB of a whole state in fp32 and in bf16."""


def delta(layers, key_heads, value_heads, **more):
    return {"model_type": "qwen3_5_text", "num_hidden_layers": layers, "dtype": "bfloat16",
            "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": key_heads, "linear_num_value_heads": value_heads,
            "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, **more}


def words(config):
    """The same with layer_types, below text_config, as the checkpoints of Qwen3.5 have it."""
    config = dict(config, mamba_ssm_dtype="float32")
    interval = config.pop("full_attention_interval")
    config["layer_types"] = ["linear_attention" if (at + 1) % interval else "full_attention"
                             for at in range(config["num_hidden_layers"])]
    return {"model_type": "qwen3_5", "text_config": config}


def kimi(model_type, layers, full, heads, **more):
    return {"model_type": model_type, "num_hidden_layers": layers, "torch_dtype": "bfloat16",
            "linear_attn_config": {
                "full_attn_layers": full, "num_heads": heads, "head_dim": 128,
                "kda_layers": [at for at in range(1, layers + 1) if at not in full],
                "short_conv_kernel_size": 4},
            "num_attention_heads": heads, "kv_lora_rank": 512, "qk_rope_head_dim": 64, **more}


def glm():
    config = kimi("glm5_next_text", 45, [], 64, qk_rope_head_dim=0)
    config["layer_types"] = ["deepseek_sparse_attention" if at % 4 == 3 else "linear_attention"
                             for at in range(45)]
    config["linear_attn_config"]["kda_layers"] = [at for at in range(45) if at % 4 != 3]
    return {"model_type": "glm5_next", "text_config": config}


def ling():
    # 42 layers in groups of 6: not public here
    return {"model_type": "bailing_hybrid", "num_hidden_layers": 42, "layer_group_size": 6,
            "num_attention_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
            "kv_lora_rank": 512, "qk_rope_head_dim": 64}


def nemotron(pattern, heads, dim=64, state=128, **more):
    return {"model_type": "nemotron_h", "num_hidden_layers": len(pattern),
            "hybrid_override_pattern": pattern, "mamba_num_heads": heads, "mamba_head_dim": dim,
            "ssm_state_size": state, "n_groups": 8, "conv_kernel": 4, "chunk_size": 128,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "time_step_limit": [0.0, float("inf")], **more}


def letters(mamba, attention, others):
    """A pattern with so many layers of each kind; the order of most models is not public here."""
    return "M-" * min(mamba, others) + "M" * max(mamba - others, 0) + "*" * attention + \
        "-" * max(others - mamba, 0)


def blocks(config):
    """The same with an array of words instead of letters."""
    config = dict(config)
    names = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    config["layers_block_type"] = [names[at] for at in config.pop("hybrid_override_pattern")]
    return config


def falcon(layers, heads, groups, width):
    return {"model_type": "falcon_h1", "num_hidden_layers": layers, "mamba_d_ssm": width,
            "mamba_n_heads": heads, "mamba_d_head": 128, "mamba_n_groups": groups,
            "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_chunk_size": 256,
            "mamba_expand": 2, "hidden_size": 3072, "num_attention_heads": 12,
            "num_key_value_heads": 2, "head_dim": 128}


def granite(heads, hidden):
    return {"model_type": "granitemoehybrid", "num_hidden_layers": 40, "hidden_size": hidden,
            "layer_types": ["attention" if at in (5, 15, 25, 35) else "mamba"
                            for at in range(40)],
            "mamba_n_heads": heads, "mamba_d_head": "auto", "mamba_n_groups": 1,
            "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_chunk_size": 256, "mamba_expand": 2,
            "num_attention_heads": 32, "num_key_value_heads": 8}


def jamba(layers, hidden):
    return {"model_type": "jamba", "num_hidden_layers": layers, "hidden_size": hidden,
            "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_expand": 2,
            "mamba_d_state": 16, "mamba_d_conv": 4, "num_attention_heads": 32,
            "num_key_value_heads": 8, "torch_dtype": "bfloat16"}


K3_FULL = list(range(4, 93, 4)) + [93]
MODELS = {
    "qwen3-next-80b-a3b": (dict(delta(48, 16, 32), model_type="qwen3_next"),
                           (36, 32, 128, 128, 8192, 2.0, 48.0, 73.7, 37.7)),
    "qwen3.5-397b-a17b": (words(delta(60, 16, 64)),
                          (45, 64, 128, 128, 12288, 4.0, 72.0, 183.2, 93.2)),
    "qwen3.5-122b-a10b": (delta(48, 16, 64, model_type="qwen3_5_moe_text"),
                          (36, 64, 128, 128, 12288, 4.0, 72.0, 146.5, 74.5)),
    "qwen3.5-35b-a3b": (delta(40, 16, 32), (30, 32, 128, 128, 8192, 2.0, 48.0, 61.4, 31.4)),
    "qwen3.5-27b": (words(delta(64, 16, 48)),
                    (48, 48, 128, 128, 10240, 3.0, 60.0, 146.8, 74.8)),
    "qwen3.5-9b": (delta(32, 16, 32), (24, 32, 128, 128, 8192, 2.0, 48.0, 49.1, 25.1)),
    "qwen3.5-4b": (words(delta(32, 16, 32)), (24, 32, 128, 128, 8192, 2.0, 48.0, 49.1, 25.1)),
    "qwen3.5-2b": (delta(24, 16, 16), (18, 16, 128, 128, 6144, 1.0, 36.0, 18.6, 9.6)),
    "qwen3.5-0.8b": (delta(24, 16, 16), (18, 16, 128, 128, 6144, 1.0, 36.0, 18.6, 9.6)),
    "kimi-linear-48b-a3b": (kimi("kimi_linear", 27, [4, 8, 12, 16, 20, 24, 27], 32),
                            (20, 32, 128, 128, 12288, 2.0, 72.0, 41.4, 21.4)),
    "kimi-k3": ({"model_type": "kimi_k3", "text_config": kimi("kimi_linear", 93, K3_FULL, 96)},
                (69, 96, 128, 128, 36864, 6.0, 216.0, 428.6, 221.6)),
    "glm-5.3-flash": (glm(), (34, 64, 128, 128, 24576, 4.0, 144.0, 140.8, 72.8)),
    "ling-3.0-flash": (ling(), (35, 32, 128, 128, 12288, 2.0, 72.0, 72.5, 37.5)),
    "nemotron-3-super-120b-a12b": (blocks(nemotron(letters(40, 8, 40), 128)),
                                   (40, 128, 64, 128, 10240, 4.0, 60.0, 162.3, 82.3)),
    "nemotron-3-nano-30b-a3b": (nemotron(letters(23, 6, 23).replace("-", "E"), 64),
                                (23, 64, 64, 128, 6144, 2.0, 36.0, 46.8, 23.8)),
    "nemotron-h-8b": (nemotron(letters(24, 4, 24), 128),
                      (24, 128, 64, 128, 10240, 4.0, 60.0, 97.4, 49.4)),
    "nemotron-h-56b": (nemotron(letters(54, 10, 54), 256, state=256),
                       (54, 256, 64, 256, 20480, 16.0, 120.0, 870.3, 438.3)),
    "nemotron-nano-9b-v2": (nemotron(letters(27, 4, 25), 128, dim=80),
                            (27, 128, 80, 128, 12288, 5.0, 72.0, 136.9, 69.4)),
    "falcon-h1-34b": (falcon(72, 32, 2, 4096),
                      (72, 32, 128, 256, 5120, 4.0, 30.0, 290.1, 146.1)),
    "falcon-h1-7b": (falcon(44, 24, 1, 3072),
                     (44, 24, 128, 256, 3584, 3.0, 21.0, 132.9, 66.9)),
    "granite-4.0-h-small": (granite(128, 4096),
                            (36, 128, 64, 128, 8448, 4.0, 49.5, 145.7, 73.7)),
    "granite-4.0-h-tiny": (granite(48, 1536),
                           (36, 48, 64, 128, 3328, 1.5, 19.5, 54.7, 27.7)),
    "jamba-v0.1": (jamba(32, 4096), (28, 8192, 1, 16, 8192, 0.5, 48.0, 15.3, 8.3)),
    "jamba-1.5-mini": (jamba(32, 4096), (28, 8192, 1, 16, 8192, 0.5, 48.0, 15.3, 8.3)),
    "jamba-1.5-large": (jamba(72, 8192), (63, 16384, 1, 16, 16384, 1.0, 96.0, 68.9, 37.4)),
}
