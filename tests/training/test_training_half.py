"""One rank that stores float32, or bf16, and computes in bf16: its copies, their gradients, and joined products."""

import copy

import pytest
import torch
from training_tiny import NllEntropy, make_batch, make_engine, totals, weights, write_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from verl_core.algorithms.loss import Need
from verl_core.config.schema import FsdpConfig
from verl_core.models.attention import NAME
from verl_core.models.joint import join_projections
from verl_core.models.packing import Packing
from verl_core.training.fsdp.half import HalfCopies
from verl_core.training.protocol import MicroBatching

LOGP = frozenset({Need.LOGP})
BF16 = FsdpConfig(dtype="bfloat16")
STORED = FsdpConfig(model_dtype="bfloat16", dtype="bfloat16")


def test_the_network_computes_on_copies_and_holds_float32_otherwise(tmp_path):
    engine = make_engine(write_model(tmp_path), fsdp=BF16)
    seen = []
    engine.network.register_forward_pre_hook(lambda module, _: seen.append({p.dtype for p in module.parameters()}))
    engine.step(make_batch(), NllEntropy(), totals(make_batch()))
    engine.forward(make_batch(), LOGP)
    assert seen == [{torch.bfloat16}] * 2
    assert {p.dtype for p in engine.network.parameters()} == {torch.float32}
    assert all(c.untyped_storage().nbytes() == 0 for c in engine.halves.copies)
    assert all(p.grad is None for p in (*engine.network.parameters(), *engine.halves.copies))


def test_a_tied_embedding_has_one_copy(tmp_path):
    engine = make_engine(write_model(tmp_path, tie_word_embeddings=True), fsdp=BF16)
    model = engine.model
    with engine.halves:
        assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
        assert len(engine.halves.copies) == len(list(model.parameters()))
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_gradients_of_micro_batches_add_up_in_float32():
    """Two numbers whose sum bf16 cannot hold."""
    layer = torch.nn.Linear(1, 1, bias=False)
    halves = HalfCopies(layer, torch.bfloat16, torch.device("cpu"))
    with halves:
        for value in (1.0, 2.0**-12):
            layer(torch.full((1, 1), value, dtype=torch.bfloat16)).sum().backward()
            halves.collect_gradients()
    assert layer.weight.dtype == layer.weight.grad.dtype == torch.float32
    assert layer.weight.grad.item() == 1 + 2.0**-12


@pytest.mark.parametrize("computing", [torch.bfloat16, torch.float32])
def test_gradients_of_weights_stored_in_bf16_add_up_in_float32_too(computing):
    """bf16 cannot hold 1 + 2^-9: one after the other, the small numbers would be lost."""
    layer = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    halves = HalfCopies(layer, computing, torch.device("cpu"))
    for _ in range(2):  # nothing is left of the first mini-batch
        layer.weight.grad = None
        with halves:
            for value in (1.0, *[2.0**-9] * 4):
                layer(torch.full((1, 1), value, dtype=computing)).sum().backward()
                halves.collect_gradients()
        assert layer.weight.dtype == layer.weight.grad.dtype == torch.bfloat16
        assert layer.weight.grad.item() == 1 + 2.0**-7


def test_weights_stored_in_bf16_hold_no_float32_gradient_of_one_micro_batch():
    layer = torch.nn.Linear(8, 8, bias=False, dtype=torch.bfloat16)
    halves = HalfCopies(layer, torch.bfloat16, torch.device("cpu"))
    with halves:
        layer(torch.ones(1, 8, dtype=torch.bfloat16)).sum().backward()
        made = layer.weight.grad.data_ptr()
        halves.collect_gradients()
    assert layer.weight.grad.data_ptr() == made


def test_a_step_of_weights_stored_in_bf16_has_the_sum_of_its_micro_batches(tmp_path):
    """32 of them; added up in bf16 they would miss it by far more than the one rounding at the end."""
    batch = make_batch(tuple(range(4, 20)) * 2)
    engine = make_engine(write_model(tmp_path), fsdp=STORED, micro=MicroBatching(sequences=1))
    gradients: list[dict[str, torch.Tensor]] = []
    engine.optimizers[0].step = lambda: gradients.append({n: p.grad for n, p in engine.model.named_parameters()})
    for share in (batch, *(batch.select([index]) for index in range(batch.S))):
        engine.step(share, NllEntropy(), totals(batch))
    whole, *parts = gradients
    for name, grad in whole.items():
        assert torch.equal(grad, sum(part[name].float() for part in parts).bfloat16())


def test_an_error_on_the_way_leaves_the_parameters(tmp_path):
    engine = make_engine(write_model(tmp_path), fsdp=BF16)
    before = weights(engine)

    class Fails(NllEntropy):
        def __call__(self, out, batch, totals):
            raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        engine.step(make_batch(), Fails(), totals(make_batch()))
    assert all(torch.equal(t, before[name]) for name, t in weights(engine).items())
    assert engine.step(make_batch(), NllEntropy(), totals(make_batch()))["actor/grad_norm"] > 0


@pytest.mark.parametrize("fsdp", [BF16, FsdpConfig(), STORED], ids=["copies", "float32", "stored"])
def test_gradients_of_a_step_that_failed_are_forgotten(tmp_path, fsdp):
    folder, one_each = write_model(tmp_path), MicroBatching(sequences=1)
    failed, fresh = (make_engine(folder, fsdp=fsdp, micro=one_each) for _ in range(2))

    class FailsLater(NllEntropy):
        calls = 0

        def __call__(self, out, batch, totals):
            self.calls += 1
            if self.calls == 3:
                raise torch.OutOfMemoryError("in the third micro-batch")
            return super().__call__(out, batch, totals)

    with pytest.raises(torch.OutOfMemoryError):
        failed.step(make_batch(), FailsLater(), totals(make_batch()))
    assert all(p.grad is None for p in failed.network.parameters())
    got, want = (engine.step(make_batch(), NllEntropy(), totals(make_batch())) for engine in (failed, fresh))
    assert got == want


def test_memory_that_runs_out_while_copying_is_given_back(monkeypatch):
    layer = torch.nn.Linear(4, 4)
    halves = HalfCopies(layer, torch.bfloat16, torch.device("cpu"))

    def full(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "_foreach_copy_", full)
    with pytest.raises(torch.OutOfMemoryError), halves:
        pass
    assert all(copy.untyped_storage().nbytes() == 0 for copy in halves.copies)
    assert layer.weight.dtype == torch.float32


@pytest.mark.slow
def test_bf16_follows_float32_compiled_and_not(tmp_path):
    folder, batch = write_model(tmp_path), make_batch()
    exact = make_engine(folder)
    halves = [
        make_engine(folder, fsdp=FsdpConfig(dtype="bfloat16", use_torch_compile=on), micro=MicroBatching(tokens=64))
        for on in (False, True)
    ]
    for _ in range(2):
        want, *got = (engine.step(batch, NllEntropy(), totals(batch)) for engine in (exact, *halves))
        for metrics in got:
            assert metrics["actor/loss"] == pytest.approx(want["actor/loss"], rel=0.02)
            assert metrics["actor/grad_norm"] == pytest.approx(want["actor/grad_norm"], rel=0.05)


@pytest.mark.slow
def test_compiled_layers_are_not_compiled_again_in_later_steps(tmp_path):
    engine = make_engine(
        write_model(tmp_path), fsdp=FsdpConfig(dtype="bfloat16", use_torch_compile=True), micro=MicroBatching(tokens=64)
    )
    batch = make_batch()
    for _ in range(2):
        engine.step(batch, NllEntropy(), totals(batch))
        engine.forward(batch, LOGP)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for _ in range(2):
        engine.step(batch, NllEntropy(), totals(batch))
        engine.forward(batch, LOGP)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs > 0


SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
SIZES |= {"num_attention_heads": 4, "attn_implementation": NAME}


@pytest.mark.parametrize(
    ("config", "model", "joined"),
    [
        (Qwen2Config(**SIZES, num_key_value_heads=2), Qwen2ForCausalLM, True),  # biased
        (Qwen3Config(**SIZES, num_key_value_heads=1), Qwen3ForCausalLM, True),
        (LlamaConfig(**SIZES, num_key_value_heads=2), LlamaForCausalLM, True),
        (LlamaConfig(**SIZES, num_key_value_heads=4), LlamaForCausalLM, False),  # as wide as queries: nothing to gain
    ],
)
def test_one_product_for_queries_keys_and_values_changes_nothing(config, model, joined):
    torch.manual_seed(0)
    plain = model(config)
    joint = copy.deepcopy(plain)
    join_projections(joint)
    projection = joint.model.layers[0].self_attn.k_proj
    assert ("forward" in vars(projection)) == joined
    ids, packing = torch.randint(0, 64, (1, 12)), Packing((5, 7), torch.device("cpu"))
    position = torch.cat([torch.arange(5), torch.arange(7)])[None]
    out = []
    for network in (plain, joint):
        logits = network(input_ids=ids, position_ids=position, use_cache=False, packing=packing).logits
        logits.square().sum().backward()
        out.append((logits.detach(), {name: p.grad for name, p in network.named_parameters()}))
    torch.testing.assert_close(out[1][0], out[0][0], rtol=1e-5, atol=1e-6)
    assert out[0][1].keys() == out[1][1].keys()
    for name, gradient in out[0][1].items():
        torch.testing.assert_close(out[1][1][name], gradient, rtol=1e-4, atol=1e-5, msg=name)


def test_values_may_be_asked_for_before_keys():
    torch.manual_seed(0)
    attention = torch.nn.ModuleDict({f"{x}_proj": torch.nn.Linear(8, n) for x, n in (("q", 8), ("k", 4), ("v", 4))})
    plain = copy.deepcopy(attention)
    join_projections(attention)
    x = torch.randn(3, 8)
    for name in ("q_proj", "v_proj", "k_proj"):
        torch.testing.assert_close(attention[name](x), plain[name](x))
