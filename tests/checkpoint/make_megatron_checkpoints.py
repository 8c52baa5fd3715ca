"""Writes fixtures/megatron.tar.xz: tiny models as megatron-core's own dist_checkpointing saves them, on two CPU ranks.

Run once, by hand, in an environment that has megatron-core 0.17.1 beside torch and transformers:
`python make_megatron_checkpoints.py OUT`; then `tar -cJf fixtures/megatron.tar.xz -C OUT .`. Each folder is an `actor`
of veRL's Megatron layout, version 2: `ckpt_contents.json`, `model/dist_ckpt`, `model/huggingface`; `truth.safetensors`
has the same values under Hugging Face names.

The network is megatron-core's GPTModel: tensor parallel over the two ranks, or with its experts spread over them. Its
layers come from the plain specification, as Transformer Engine needs a GPU; in a checkpoint they have the names of
Transformer Engine's all the same.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29619", "OMP_NUM_THREADS": "1"}

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from safetensors.torch import save_file
from transformers import PreTrainedConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

RANKS, HIDDEN, HEADS, GROUPS, HEAD, LAYERS, EXPERTS, VOCABULARY, PADDED = 2, 16, 4, 2, 4, 2, 4, 13, 16
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": HEAD,
}
# name: (config, dtype, one entry a layer rather than all layers in one)
CASES: dict[str, tuple[PreTrainedConfig, torch.dtype, bool]] = {
    "qwen2": (Qwen2Config(**COMMON, intermediate_size=24, tie_word_embeddings=True), torch.bfloat16, False),
    "qwen3": (Qwen3Config(**COMMON, intermediate_size=24, tie_word_embeddings=False), torch.float32, True),
    "qwen3_moe": (
        Qwen3MoeConfig(
            **COMMON,
            intermediate_size=24,
            moe_intermediate_size=8,
            num_experts=EXPERTS,
            num_experts_per_tok=2,
            tie_word_embeddings=False,
        ),
        torch.bfloat16,
        False,
    ),
}


def network(config: PreTrainedConfig, dtype: torch.dtype) -> GPTModel:
    """The GPTModel that a Hugging Face config describes."""
    experts = getattr(config, "num_experts", None)
    qwen3 = config.model_type.startswith("qwen3")
    settings = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_query_groups=GROUPS,
        kv_channels=HEAD,
        ffn_hidden_size=config.intermediate_size,
        moe_ffn_hidden_size=getattr(config, "moe_intermediate_size", None),
        num_moe_experts=experts,
        moe_token_dispatcher_type="allgather",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=not qwen3,
        qk_layernorm=qwen3,
        normalization="RMSNorm",
        tensor_model_parallel_size=1 if experts else RANKS,
        expert_model_parallel_size=RANKS if experts else 1,
        expert_tensor_parallel_size=1,
        params_dtype=dtype,
        use_cpu_initialization=True,
        perform_initialization=False,
    )
    spec = get_gpt_layer_local_spec(num_experts=experts, qk_layernorm=qwen3, normalization="RMSNorm")
    return GPTModel(
        config=settings,
        transformer_layer_spec=spec,
        vocab_size=PADDED,
        max_sequence_length=32,
        share_embeddings_and_output_weights=config.tie_word_embeddings,
        position_embedding_type="rope",
    ).to(dtype)


def filled(model: GPTModel, name: str) -> dict[str, torch.Tensor]:
    """Sets every weight to its part of a random whole, and returns the wholes by Hugging Face name."""
    config, dtype, _ = CASES[name]
    wholes = truth_of(config, dtype)
    state = {key: value.data for key, value in model.named_parameters()}
    rank, ranks = dist.get_rank(), model.config.tensor_model_parallel_size
    for key, part in state.items():
        part.copy_(part_of(key, wholes, rank, ranks))
    return wholes


def truth_of(config: PreTrainedConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Random tensors for every parameter of the Hugging Face model, with published names."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    q, kv, mlp = HEADS * HEAD, GROUPS * HEAD, config.intermediate_size
    wholes = {"model.embed_tokens.weight": random(VOCABULARY, HIDDEN), "model.norm.weight": random(HIDDEN)}
    if not config.tie_word_embeddings:
        wholes["lm_head.weight"] = random(VOCABULARY, HIDDEN)
    for index in range(LAYERS):
        layer = f"model.layers.{index}"
        for part, rows in (("q", q), ("k", kv), ("v", kv)):
            wholes[f"{layer}.self_attn.{part}_proj.weight"] = random(rows, HIDDEN)
            if config.model_type == "qwen2":
                wholes[f"{layer}.self_attn.{part}_proj.bias"] = random(rows)
        wholes[f"{layer}.self_attn.o_proj.weight"] = random(HIDDEN, q)
        wholes[f"{layer}.input_layernorm.weight"] = random(HIDDEN)
        wholes[f"{layer}.post_attention_layernorm.weight"] = random(HIDDEN)
        if config.model_type != "qwen2":
            wholes[f"{layer}.self_attn.q_norm.weight"] = random(HEAD)
            wholes[f"{layer}.self_attn.k_norm.weight"] = random(HEAD)
        places = [f"{layer}.mlp"]
        if config.model_type == "qwen3_moe":
            wholes[f"{layer}.mlp.gate.weight"] = random(EXPERTS, HIDDEN)
            places, mlp = [f"{layer}.mlp.experts.{expert}" for expert in range(EXPERTS)], config.moe_intermediate_size
        for place in places:
            wholes[f"{place}.gate_proj.weight"] = random(mlp, HIDDEN)
            wholes[f"{place}.up_proj.weight"] = random(mlp, HIDDEN)
            wholes[f"{place}.down_proj.weight"] = random(HIDDEN, mlp)
    return wholes


def part_of(key: str, wholes: dict[str, torch.Tensor], rank: int, ranks: int) -> torch.Tensor:
    """This rank's part of the megatron-core parameter `key`, cut from the Hugging Face tensors for `ranks` ranks."""

    def share(tensor: torch.Tensor, axis: int = 0) -> torch.Tensor:
        return tensor.chunk(ranks, axis)[rank % ranks]

    def padded(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor.new_zeros(PADDED - VOCABULARY, HIDDEN)])

    if key == "embedding.word_embeddings.weight":
        return share(padded(wholes["model.embed_tokens.weight"]))
    if key == "output_layer.weight":
        return share(padded(wholes["lm_head.weight"]))
    if key == "decoder.final_layernorm.weight":
        return wholes["model.norm.weight"]
    index, _, rest = key.removeprefix("decoder.layers.").partition(".")
    layer = f"model.layers.{index}"
    simple = {
        "input_layernorm.weight": "input_layernorm.weight",
        "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
        "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
        "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
        "mlp.router.weight": "mlp.gate.weight",
    }
    if rest in simple:
        return wholes[f"{layer}.{simple[rest]}"]
    if rest == "self_attention.linear_proj.weight":
        return share(wholes[f"{layer}.self_attn.o_proj.weight"], 1)
    if rest.startswith("self_attention.linear_qkv."):
        kind = rest.rpartition(".")[2]
        groups = [wholes[f"{layer}.self_attn.{part}_proj.{kind}"].chunk(GROUPS) for part in "qkv"]
        return share(torch.cat([part for group in zip(*groups, strict=True) for part in group]))
    if rest.startswith("mlp.experts.local_experts."):
        local, _, rest = rest.removeprefix("mlp.experts.local_experts.").partition(".")
        place = f"{layer}.mlp.experts.{int(local) + rank * EXPERTS // RANKS}"
        if rest == "linear_fc2.weight":
            return wholes[f"{place}.down_proj.weight"]
        return torch.cat([wholes[f"{place}.gate_proj.weight"], wholes[f"{place}.up_proj.weight"]])
    if rest == "mlp.linear_fc2.weight":
        return share(wholes[f"{layer}.mlp.down_proj.weight"], 1)
    return torch.cat([share(wholes[f"{layer}.mlp.{part}_proj.weight"]) for part in ("gate", "up")])


def rank_main(rank: int, out: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    torch.set_num_threads(1)
    torch.cuda.synchronize = lambda *_: None  # megatron-core's writer asks for these two whatever the device
    torch.cuda.current_device = lambda: torch.device("cpu")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    for name, (config, dtype, by_layer) in CASES.items():
        experts = hasattr(config, "num_experts")
        parallel_state.initialize_model_parallel(
            1 if experts else RANKS,
            expert_model_parallel_size=RANKS if experts else 1,
            expert_tensor_parallel_size=1,
        )
        model = network(config, dtype)
        truth = filled(model, name)
        role = out / name
        folder = role / "model" / "dist_ckpt"
        folder.mkdir(parents=True, exist_ok=True)
        state = {"model": model.sharded_state_dict(metadata={"non_homogeneous_layers": by_layer})}
        dist_checkpointing.save(state, str(folder))
        dist.barrier()
        if rank == 0:
            save_file(truth, role / "truth.safetensors")
            write_contents(role, config)
        parallel_state.destroy_model_parallel()


def write_contents(role: Path, config: PreTrainedConfig) -> None:
    """The files that veRL puts beside megatron-core's."""
    config.architectures = [
        {"qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe"}[config.model_type] + "ForCausalLM"
    ]
    (role / "model" / "huggingface").mkdir()
    config.to_json_file(role / "model" / "huggingface" / "config.json")
    contents = {
        "schema_version": 2,
        "framework": "megatron",
        "role": "actor",
        "global_step": 3,
        "world_size": RANKS,
        "save_contents": ["model"],
        "contents": {"model": {"path": "model/dist_ckpt", "format": "megatron_dist_checkpoint"}},
    }
    (role / "ckpt_contents.json").write_text(json.dumps(contents))


if __name__ == "__main__":
    mp.start_processes(rank_main, (Path(sys.argv[1]),), nprocs=RANKS, start_method="spawn")
