"""Two GPUs over NCCL against one: split rows, replicas, parts of layers and experts, and when gradients are reduced."""

import pytest
import torch
from transformers import Qwen2Config, Qwen3Config, Qwen3MoeConfig

from tests.training.training_ranks import running, train, write
from tests.training.training_tiny import NllEntropy, make_batch
from verl_core.training.protocol import MicroBatching

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]
ALL = [0, 1, 2, 3, 4, 5]
LOSS = NllEntropy()


@pytest.fixture(scope="module")
def two():
    with running(2, "cuda") as call:
        yield call


@pytest.fixture(scope="module", params=[(Qwen2Config, 1), (Qwen3Config, 2)], ids=["qwen2", "qwen3"])
def folder(request, tmp_path_factory):
    config, kv_heads = request.param
    return write(tmp_path_factory.mktemp("model"), config, num_key_value_heads=kv_heads)


@pytest.mark.parametrize(
    ("shares", "options"),
    [
        ([ALL, ALL], {"split": 2, "micro": MicroBatching(tokens=16)}),
        ([ALL, ALL], {"split": 2, "micro": MicroBatching(sequences=1), "checkpointing": True}),
        ([[0, 2, 3, 5], [1, 4]], {"fsdp_size": 1, "micro": MicroBatching(sequences=1)}),
        ([[0, 2, 3, 5], [1, 4]], {"reduce_gradients": "each", "micro": MicroBatching(sequences=1)}),
    ],
    ids=["split rows", "split rows, recomputed", "replicas", "reduced each micro-batch"],
)
@pytest.mark.parametrize(("dtype", "rel", "gradient_rel"), [("float32", 1e-4, 1e-4), ("bfloat16", 3e-2, 0.12)])
def test_two_gpus_equal_one_cpu_rank(two, folder, shares, options, dtype, rel, gradient_rel):
    """In bf16 one rank's gradients alone are up to 9 % off in this tiny model."""
    batch = make_batch()
    want = train(ALL, batch, folder, LOSS, {})
    half = {"dtype": dtype, "device": "cuda", "use_torch_compile": False}
    for got in two(train, shares, batch, folder, LOSS, options | half):
        for name in ("actor/loss", "actor/grad_norm"):
            assert got["metrics"][0][name] == pytest.approx(want["metrics"][0][name], rel=rel)
        for name, tensor in want["gradients"].items():
            distance = (got["gradients"][name] - tensor).norm() / tensor.norm().clamp(min=1e-3)
            assert distance < gradient_rel, f"{name}: {distance}"


@pytest.mark.parametrize(
    ("shares", "options"),
    [
        ([ALL, ALL], {"tensor_parallel_size": 2, "micro": MicroBatching(tokens=16)}),
        ([[0, 2, 3, 5], [1, 4]], {"expert_parallel_size": 2, "micro": MicroBatching(sequences=1)}),
    ],
    ids=["parts of layers", "experts"],
)
@pytest.mark.parametrize(("dtype", "rel", "gradient_rel"), [("float32", 1e-4, 1e-4), ("bfloat16", 3e-2, 0.12)])
def test_parts_on_two_gpus_equal_one_cpu_rank(two, tmp_path, shares, options, dtype, rel, gradient_rel):
    experts = {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 16, "norm_topk_prob": True}
    mixture = write(tmp_path, Qwen3MoeConfig, num_key_value_heads=2, **experts)  # all of them: none is a near tie
    test_two_gpus_equal_one_cpu_rank(two, mixture, shares, options, dtype, rel, gradient_rel)


@pytest.mark.parametrize("recomputed", [False, True])
def test_compiled_layers_in_parts(two, tmp_path, recomputed):
    dense = write(tmp_path, Qwen3Config, num_key_value_heads=2)
    batch, micro = make_batch(), MicroBatching(tokens=16)
    options = {"tensor_parallel_size": 2, "micro": micro, "device": "cuda", "checkpointing": recomputed}
    plain = two(train, [ALL, ALL], batch, dense, LOSS, options | {"use_torch_compile": False})
    compiled = two(train, [ALL, ALL], batch, dense, LOSS, options | {"use_torch_compile": True})
    assert compiled[0]["metrics"][0] == pytest.approx(plain[0]["metrics"][0], rel=2e-2)


@pytest.mark.parametrize("tokens", [8, 16])
def test_compiled_layers_split_rows(two, folder, tokens):
    batch = make_batch()
    options = {"split": 2, "micro": MicroBatching(tokens=tokens), "device": "cuda"}
    plain = two(train, [ALL, ALL], batch, folder, LOSS, options | {"use_torch_compile": False})
    compiled = two(train, [ALL, ALL], batch, folder, LOSS, options | {"use_torch_compile": True})
    assert compiled[0]["metrics"][0] == pytest.approx(plain[0]["metrics"][0], rel=2e-2)
