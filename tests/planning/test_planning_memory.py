"""Components worked by hand on a small shape, and against what torch really keeps."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from tests.benchmarks import gpu_shapes
from tests.planning.planning_examples import estimated, phase, tiny_config
from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.models import attention
from verl_core.planning import engine_memory, gpus, memory, traffic
from verl_core.planning.components import CONTEXT, FRAGMENTATION, Components
from verl_core.planning.host import checkpoint_bytes
from verl_core.planning.plan import shapes_of
from verl_core.planning.roles import Role
from verl_core.planning.system import System, system_of
from verl_core.planning.work import Micro, Work, cut, work_of

WORDS = [
    "data.train_batch_size=8",
    "actor.ppo_mini_batch_size=4",
    "actor.ppo_micro_batch_size_per_gpu=2",
    "data.max_prompt_length=6",
    "data.max_response_length=10",
    "rollout.n=2",
    "rollout.engine=vllm",
]


def test_shared_prompts_count_once_a_group():
    """Groups of 4 answers of 10 tokens to prompts of 6."""
    alone, shared = Work(8, 4, 6, 10), Work(8, 4, 6, 10, shares=True)
    assert [alone.row(n) for n in (1, 4, 5)] == [16, 64, 80]
    assert [shared.row(n) for n in (1, 4, 5)] == [16, 2 * 6 + 40, 2 * 6 + 50]  # the first group may be cut
    assert [shared.fitting(tokens) for tokens in (15, 16, 45, 46, 62, 92, 138)] == [0, 1, 3, 4, 5, 8, 12]
    assert cut(shared, 32, None, 46) == Micro(46, 46, 8)
    assert cut(shared, 32, None, 5) == Micro(16, 5, 32)  # a sequence beyond the budget is refused elsewhere


def test_pairs_are_never_cut():
    """Two sequences of 6 + 10 tokens, whatever a micro-batch is meant to hold."""
    pairs = Work(8, 2, 6, 10, least=2)
    assert cut(pairs, 16, 1, None) == Micro(32, 20, 8)
    assert cut(pairs, 16, None, 20) == Micro(32, 32, 8)
    assert cut(pairs, 16, None, 64) == Micro(64, 64, 4)
    words = ["smoke-dpo", "smoke-rm", "smoke-sft", "smoke-sppo", "smoke-online-dpo"]
    assert [work_of(effective(resolve(profile).config)).least for profile in words] == [2, 2, 1, 1, 2]


def test_shared_prompts_take_less_time_and_memory(model):
    words = ["data.max_prompt_length=60", "rollout.n=4", "actor.ppo_micro_batch_size_per_gpu=8"]
    plans = [
        estimated("gsm8k-grpo", *WORDS, f"model.path={model}", *words, f"actor.share_prompt={share}", gpu="80GB")
        for share in ("false", "true")
    ]
    alone, shared = (phase(plan, "actor", "update") for plan in plans)
    assert shared.memory.activations < 0.6 * alone.memory.activations
    assert shared.seconds <= alone.seconds


@pytest.fixture
def model(tmp_path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config()))
    return str(tmp_path)


def system(model: str, *words: str, profile: str = "gsm8k-grpo") -> System:
    e = effective(resolve(profile, [*WORDS, f"model.path={model}", *words]).config)
    return system_of(e, shapes_of(e), gpus.named("80GB"))


def actor(model: str, *words: str) -> Role:
    return system(model, *words).actor


# layer: q 8x8+8, k and v 8x4+4 each, o 8x8, gate, up, down 8x16 each, two norms of 8 = 616
LAYER = 72 + 36 + 36 + 64 + 384 + 16
ROOT = 32 * 8 + 8 + 32 * 8  # embedding, last norm, output layer
PARAMS = 2 * LAYER + ROOT


def test_state_of_one_gpu(model):
    role = actor(model)
    assert role.params == PARAMS == 1736
    stage = role.stages[0]
    assert memory.parameters(role, stage) == 4 * PARAMS
    assert memory.gradients(role, stage) == 4 * PARAMS
    assert memory.optimizer(role, stage) == 8 * PARAMS


def test_state_over_four_shards(model):
    role = actor(model, "cluster.nproc=4")
    stage = role.stages[0]
    assert role.update.count == 1  # 4 x 2 sequences over 4 ranks in micro-batches of 2
    assert memory.parameters(role, stage) == PARAMS
    assert memory.gradients(role, stage) == PARAMS
    assert memory.optimizer(role, stage) == 2 * PARAMS


def test_gradients_wait_whole_between_micro_batches(model):
    role = actor(model, "cluster.nproc=4", "actor.ppo_micro_batch_size_per_gpu=1")
    assert role.update.count == 2
    assert memory.gradients(role, role.stages[0]) == 4 * PARAMS


def test_muon_has_one_moment_of_the_layers(model):
    role = actor(model, "actor.optim.optimizer=muon")
    assert memory.optimizer(role, role.stages[0]) == 4 * (2 * PARAMS - 2 * LAYER)


def test_adapter_has_gradients_and_moments_alone(model):
    role = actor(model, "model.lora_rank=3")
    stage, adapter = role.stages[0], 2 * 3 * 128
    assert memory.parameters(role, stage) == 2 * PARAMS + 4 * adapter  # below it the model is kept in bfloat16
    assert memory.gradients(role, stage) == 4 * adapter
    assert memory.optimizer(role, stage) == 8 * adapter
    assert checkpoint_bytes(role) == 12 * adapter
    muon = actor(model, "model.lora_rank=3", "actor.optim.optimizer=muon")  # all of an adapter are matrices of layers
    assert memory.optimizer(muon, stage) == 4 * adapter and checkpoint_bytes(muon) == 8 * adapter


def test_stored_in_bfloat16(model):
    role = actor(model, "actor.fsdp_config.model_dtype=bfloat16")
    assert memory.parameters(role, role.stages[0]) == 2 * PARAMS
    assert memory.optimizer(role, role.stages[0]) == 4 * PARAMS
    assert not role.copies and role.update.count == 4
    assert memory.update(role, role.stages[0]).gradients == 4 * PARAMS  # sums of earlier micro-batches, in float32
    one = replace(role, update=Micro(32, 1, 1))  # its gradients are kept as they are made
    used = memory.update(one, role.stages[0])
    assert used.gradients == max(0, 2 * PARAMS - used.activations - used.logits)
    exact = actor(model, "actor.fsdp_config.model_dtype=bfloat16", "actor.fsdp_config.dtype=float32")
    used = memory.update(replace(exact, update=Micro(32, 1, 1)), exact.stages[0])
    assert used.gradients == max(0, (2 + 4) * PARAMS - used.activations - used.logits)


EAGER = "actor.fsdp_config.use_torch_compile=false"


def test_activations_with_and_without_recomputation(model):
    # a token in a layer: norms 2 x (4+2+2) x 8, q, k, v and output 2 x (16+8), log-sum 4 x 2, feed-forward 4 x 2 x 16
    layer = 128 + 48 + 8 + 128
    flowing = 2 * (2 * 8 + 3 * 16)
    tokens, logits = (
        2 * 16,
        2 * 2 * 8 * 20 + 2 * 32 * 20 + 2 * 32 * 8,
    )  # logits have gone when layers are differentiated
    role = actor(model, EAGER, "model.enable_gradient_checkpointing=false")
    assert memory.activations(role, role.stages[0], role.update) == tokens * (2 * layer + flowing) - logits
    role = actor(model, EAGER)
    assert memory.activations(role, role.stages[0], role.update) == tokens * (2 * 2 * 8 + layer + flowing) - logits


def test_compiled_layers_keep_no_norms_and_what_attention_returns(model):
    layer, flowing = 48 + 8 + 128, 2 * (2 * 8 + 3 * 16)
    tokens, logits = 2 * 16, 2 * 2 * 8 * 20 + 2 * 32 * 20 + 2 * 32 * 8
    role = actor(model, "model.enable_gradient_checkpointing=false")
    assert memory.activations(role, role.stages[0], role.update) == tokens * (2 * layer + flowing) - logits
    role = actor(model)
    kept = 2 * (2 * 8 + 2 * 8 + 4 * 2)  # input, output of attention, log-sum; two layers
    assert memory.activations(role, role.stages[0], role.update) == tokens * (kept + layer + flowing) - logits


def test_logits_of_plain_torch_up_to_a_chunk(model):
    role = actor(model, "actor.fsdp_config.dtype=float32")
    role = replace(role, kept_logits=0.0)  # as on a CPU
    stage, answers = role.stages[0], 2 * 10
    assert memory.logits(role, stage, role.update, backward=True) == 2 * 4 * 8 * answers + 16 * 32 * answers
    assert memory.logits(role, stage, role.update, backward=False) == 2 * 4 * 8 * answers + 12 * 32 * answers
    big = phase(estimated("gsm8k-grpo", "actor.ppo_micro_batch_size_per_gpu=64"), "actor", "update").memory
    assert big.logits < 2**27 * 16 + 64 * 512 * 896 * 4 + 1  # one chunk, and hidden states


def test_logits_of_the_gpus_kernels(model):
    role = actor(model)
    stage, answers = role.stages[0], 2 * 10
    hidden, logits = 2 * 2 * 8 * answers, 2 * 32 * answers
    assert memory.logits(role, stage, role.update, backward=True) == hidden + logits + 2 * 32 * 8
    assert memory.logits(role, stage, role.update, backward=False) == hidden + logits
    narrow = replace(role, kept_logits=1.0)  # no room to keep them: a chunk, and the weight's gradient in float32 too
    assert memory.logits(narrow, stage, role.update, backward=True) == hidden + logits + (4 + 2) * 32 * 8


def test_one_rank_computes_on_copies(model):
    role = actor(model)
    stage = role.stages[0]
    assert role.copies == 2 * PARAMS and role.update.count == 4
    used = memory.update(role, stage)
    assert used.parameters == (4 + 2) * PARAMS
    assert used.gradients == 4 * PARAMS  # of earlier micro-batches
    one = replace(role, update=Micro(32, 1, 1))  # few logits: most is held when both kinds of gradients are there
    used = memory.update(one, stage)
    assert used.gradients == max(0, (4 + 2) * PARAMS - used.activations - used.logits)
    assert memory.forward(role, stage, role.forward).parameters == (4 + 2) * PARAMS
    assert actor(model, "actor.fsdp_config.dtype=float32").copies == actor(model, "cluster.nproc=2").copies == 0
    adapter = actor(model, "model.lora_rank=3")
    assert adapter.copies == 2 * 2 * 3 * 128


MEASURED = {  # GB allocated at the peak on an H200: gpu_update.py with 16,384 tokens a micro-batch, docs/performance.md
    "0.5B micro=4": (("0.5B", 4, None, 0), 31.2),
    "1.5B micro=4": (("1.5B", 4, None, 0), 69.1),
    "3B micro=4": (("3B", 4, None, 0), 119.0),
    "3B micro=2 checkpointing=full": (("3B", 2, "full", 0), 66.5),
    "1.5B checkpointing=full": (("1.5B", 1, "full", 0), 31.0),
    "4B lora=16": (("4B", 1, None, 16), 67.4),
}


@pytest.mark.parametrize(("case", "peak"), MEASURED.values(), ids=MEASURED)
def test_the_update_peak_is_the_measured_one(case, peak, tmp_path):
    shape, micro, checkpointing, lora = case
    config = gpu_shapes.config(shape)
    config.save_pretrained(tmp_path)
    words = gpu_shapes.plan_words(str(tmp_path), micro, 16384, 2048, checkpointing, lora)
    assert gpu_shapes.planned_peak(words) == pytest.approx(peak, rel=0.05)


def test_gradient_buffers_of_megatron_stay_unless_they_are_offloaded():
    stay = estimated("grpo-70b-multinode", "actor.megatron.param_offload=false")
    gone = estimated("grpo-70b-multinode")
    buffers = phase(stay, "actor", "update").memory.gradients
    assert buffers == phase(gone, "actor", "update").memory.gradients > 0
    for role, name in (("actor", "log-prob"), ("actor", "sync"), ("actor", "checkpoint")):
        assert (phase(stay, role, name).memory.gradients, phase(gone, role, name).memory.gradients) == (buffers, 0)
    weights = phase(stay, "actor", "update").memory.parameters
    more = phase(stay, "rollout", "rollout").memory.others - phase(gone, "rollout", "rollout").memory.others
    assert more == pytest.approx(buffers + weights)


def test_gathered_parameters_and_reduction(model):
    role = actor(model, "cluster.nproc=4")
    largest = max(LAYER, ROOT)
    passing = 2 * (ROOT + 2 * LAYER) + 2 * largest  # gathered, and one gather under way
    whole = memory.communication(role, role.stages[0], role.update, backward=True)
    assert whole == memory.NCCL + passing + 2 * 2 * ROOT + 4 * largest
    assert memory.communication(role, role.stages[0], role.update, backward=False) == memory.NCCL + passing


def test_large_gradients_are_reduced_after_each_micro_batch(model):
    """As FsdpEngine does: null means where whole ones are more than a tenth of the GPU."""
    words = ["cluster.nproc=4", "actor.ppo_micro_batch_size_per_gpu=1", "model.override_config.num_hidden_layers=4"]
    once = actor(model, *words)
    each = actor(model, *words, "actor.fsdp_config.reduce_gradients=each")
    whole = 4 * (PARAMS + 2 * LAYER)
    assert memory.gradients(once, once.stages[0]) == whole
    assert memory.gradients(each, each.stages[0]) == whole / 4
    more = traffic.step(each, each.stages[0])["link"] - traffic.step(once, once.stages[0])["link"]
    assert more == 2 * (2 - 1) * whole * 3 / 4  # updates, of two micro-batches each
    copies = actor(model, *words, "actor.fsdp_config.reduce_gradients=each", "actor.fsdp_config.fsdp_size=1")
    assert memory.gradients(copies, copies.stages[0]) == whole  # a whole copy a rank has no shards
    e = effective(resolve("grpo-7b-8gpu").config)
    assert system_of(e, shapes_of(e), gpus.named("80GB")).actor.reduces_each  # 30 GB
    assert not system_of(e, shapes_of(e), gpus.named("320GB")).actor.reduces_each


def test_a_small_model_stays_gathered_through_a_mini_batch(model):
    """As FsdpEngine does: null means up to a tenth of the GPU (here 8 GB)."""
    words = ["cluster.nproc=4", "actor.ppo_micro_batch_size_per_gpu=1", "model.override_config.num_hidden_layers=4"]
    stays = actor(model, *words)
    freed = actor(model, *words, "actor.fsdp_config.reshard_between_micro_batches=true")
    more = memory.communication(stays, stays.stages[0], stays.update, True)
    assert more - memory.communication(freed, freed.stages[0], freed.update, True) == 2 * 2 * LAYER
    reduced = 4 * (PARAMS + 2 * LAYER) * 3 / 4
    gather = 2 * (PARAMS + 2 * LAYER) * 3 / 4
    updates = 2  # of two micro-batches each
    assert traffic.step(stays, stays.stages[0])["link"] == updates * (gather + reduced)
    assert traffic.step(freed, freed.stages[0])["link"] == updates * (2 * 2 * gather + reduced)
    assert traffic.forward(stays, stays.stages[0], stays.forward)["link"] == gather
    large = system_of(e := effective(resolve("grpo-7b-8gpu").config), shapes_of(e), gpus.named("80GB")).actor
    assert not large.gathers_once and large.reshard  # 15 GB


def test_a_kl_over_the_whole_vocabulary_has_a_chunk_and_an_output_layer_of_its_own(model):
    plain, full = (actor(model, "actor.use_kl_loss=true", f"actor.kl_loss_type={kind}") for kind in ("k3", "full"))
    pairs = 32 * 2 * 10  # of logits: vocabulary times answers
    for used in (memory.update, lambda role, stage: memory.forward(role, stage, role.update)):
        more, less = (used(role, role.stages[0]) for role in (full, plain))
        assert more.logits - less.logits == 28 * pairs and more.parameters - less.parameters == 2 * 32 * 8


def test_critic_has_a_value_head_and_no_logits(model):
    critic = system(model, profile="gsm8k-ppo").roles[1]
    assert critic.name == "critic"
    assert critic.params == PARAMS - 32 * 8 + 8
    answers = 4 * 10  # the profile's own micro-batch
    assert memory.logits(critic, critic.stages[0], critic.update, True) == 2 * 2 * 8 * answers + 16 * answers


def test_engine_fills_its_share(model):
    engine = system(model).engine
    assert engine is not None
    assert engine.cache_per_token == 2 * 2 * 1 * 4 * 2  # keys and values, 2 layers, 1 head of 4, bfloat16
    memory_of_gpu = 80e9
    used = engine_memory.generating(engine, memory_of_gpu)
    assert used.total - used.reserve == pytest.approx(0.4 * memory_of_gpu)  # CUDA's context and graphs come on top
    assert used.parameters == 2 * PARAMS
    assert engine_memory.sequences_held(engine, memory_of_gpu) == int(used.kv_cache / (32 * 16))


def test_engine_over_two_gpus_halves_weights_and_repeats_the_one_key_head(model):
    engine = system(model, "rollout.tensor_model_parallel_size=2", "cluster.nproc=2").engine
    assert engine is not None
    assert (engine.replicas, engine.weights, engine.cache_per_token) == (1, PARAMS, 2 * 2 * 1 * 4 * 2)


def test_hf_engine_shares_what_it_can(model):
    shared = system(model, "rollout.engine=hf", "rollout.dtype=float32", "actor.fsdp_config.dtype=float32").engine
    fused = 2 * (8 * (8 + 4 + 4) + 2 * 8 * 16)
    assert shared is not None and engine_memory.asleep(shared) == 4 * fused
    copied = system(model, "rollout.engine=hf", "rollout.dtype=bfloat16").engine
    assert copied is not None and engine_memory.asleep(copied) == 2 * (PARAMS + fused)


def test_reserve_is_the_context_and_a_share_of_what_moves():
    used = Components(parameters=10.0, gradients=1.0, activations=2.0, logits=3.0, communication=4.0, kv_cache=7.0)
    assert used.with_reserve(on_cpu=True).reserve == pytest.approx(FRAGMENTATION * 10)
    assert used.with_reserve(on_cpu=False).reserve == pytest.approx(FRAGMENTATION * 10 + CONTEXT)
    assert used.total == 27.0


def test_idle_roles_leave_what_is_not_offloaded():
    both = estimated("gsm8k-ppo")
    state = phase(both, "critic", "update").memory
    copies = state.parameters / 3  # bf16 beside float32, while it computes
    leaves = state.parameters - copies + state.optimizer
    assert phase(both, "actor", "update").memory.others == leaves + engine_memory.ASLEEP
    away = estimated("gsm8k-ppo", "critic.fsdp_config.param_offload=true", "critic.fsdp_config.optimizer_offload=true")
    assert phase(away, "actor", "update").memory.others == engine_memory.ASLEEP
    assert away.pools[0].host - both.pools[0].host == pytest.approx(leaves)


def kept_per_token(config, layers: int, dtype: torch.dtype) -> float:
    """Bytes of storage that autograd holds after a forward pass of the body, a token."""
    config = copy.deepcopy(config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"] * layers
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention.NAME)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # alive, so that no address comes twice
        return tensor

    n = 128
    ids = torch.zeros(1, n, dtype=torch.int64)
    packing = attention.Packing((n // 2, n // 2), torch.device("cpu"))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model.base_model(
            input_ids=ids, position_ids=torch.arange(n)[None] % (n // 2), use_cache=False, packing=packing
        )
    assert out.last_hidden_state.requires_grad
    return sum(n_bytes for n_bytes, _ in kept.values()) / n


SIZES = {"vocab_size": 128, "hidden_size": 256, "intermediate_size": 640, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "head_dim": 64}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZES),
        Qwen2Config(**SIZES),
        Qwen3Config(**SIZES),
        Qwen3MoeConfig(**SIZES, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=192),
    ],
    ids=lambda config: config.model_type,
)
def test_saved_activations_are_what_torch_keeps(config, dtype, tmp_path):
    measured = (kept_per_token(config, 3, dtype) - kept_per_token(config, 1, dtype)) / 2
    config.save_pretrained(tmp_path)
    role = actor(str(tmp_path), EAGER, f"actor.fsdp_config.dtype={str(dtype).removeprefix('torch.')}")
    near = 0.1 if role.shape.experts else 0.01  # routed tokens are kept in ways that depend on transformers' kernels
    assert memory.saved_per_token(role, 0) == pytest.approx(measured, rel=near)


@pytest.mark.parametrize(
    ("words", "less"),
    [
        (["actor.optim.optimizer=adamw_8bit"], "optimizer"),
        (["actor.optim.optimizer=adamw_host"], "optimizer"),
        (["model.enable_activation_offload=true"], "activations"),
    ],
)
def test_what_goes_elsewhere_or_smaller_is_counted(words, less):
    before, after = _actor_update([]), _actor_update(words)
    assert getattr(after, less) < getattr(before, less) and after.parameters == before.parameters


def test_selective_recomputation_lies_between_full_and_none():
    none, full, selective = (
        _actor_update(words).activations
        for words in (
            ["model.enable_gradient_checkpointing=false"],
            [],
            ["model.recompute_granularity=selective"],
        )
    )
    assert full < selective < none


def _actor_update(words):
    plan = estimated("gsm8k-grpo", *words)
    return phase(plan, "actor", "update").memory
