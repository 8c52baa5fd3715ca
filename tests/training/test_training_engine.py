"""The engine on one rank: what it computes, and that cutting a mini-batch changes nothing."""

import math

import pytest
import torch
from training_tiny import NllEntropy, Squared, make_batch, make_engine, totals, weights, write_model
from transformers import AutoModelForCausalLM

from verl_core.algorithms.loss import Need
from verl_core.config.errors import UserError
from verl_core.config.schema import FsdpConfig, ModelConfig, OptimConfig
from verl_core.models.liger import apply_liger
from verl_core.models.pretrained import load_causal_lm
from verl_core.training.protocol import MicroBatching

LOGP_ENTROPY = frozenset({Need.LOGP, Need.ENTROPY})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def close(a, b, rel=1e-5):
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=rel, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


def test_forward_equals_float64_log_softmax_one_sequence_at_a_time(folder):
    batch = make_batch()
    out = make_engine(folder).forward(batch, LOGP_ENTROPY, temperature=0.7, micro=MicroBatching(tokens=16))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    logp, entropy = [], []
    for ids in batch["ids_N"].split(batch.length_S.tolist()):
        with torch.no_grad():
            full = (model(ids[None]).logits[0, :-1] / 0.7).log_softmax(-1)
        logp.append(torch.cat([torch.zeros(1), full.gather(1, ids[1:, None])[:, 0]]))
        entropy.append(torch.cat([torch.zeros(1), -(full.exp() * full).sum(-1)]))
    mask_N = batch["mask_N"]
    torch.testing.assert_close(out[Need.LOGP], (torch.cat(logp) * mask_N).float(), rtol=0, atol=1e-5)
    torch.testing.assert_close(out[Need.ENTROPY], (torch.cat(entropy) * mask_N).float(), rtol=0, atol=1e-5)
    assert out[Need.LOGP].dtype == torch.float32 and out[Need.LOGP].device.type == "cpu"


@pytest.mark.parametrize(
    "micro", [MicroBatching(sequences=3), MicroBatching(sequences=2), MicroBatching(tokens=13)], ids=str
)
def test_step_does_not_depend_on_the_micro_batch_split(folder, micro):
    batch = make_batch()
    whole, cut = make_engine(folder), make_engine(folder, micro=micro)
    for _ in range(2):
        want, got = (e.step(batch, NllEntropy(), totals(batch)) for e in (whole, cut))
        assert got == pytest.approx(want, rel=1e-5)
    close(weights(cut), weights(whole))
    assert want["longest"] == 12 and want["actor/lr"] == 1e-2


def test_step_equals_plain_torch(folder):
    """One step against AdamW on transformers' own loss, clipping included."""
    batch = make_batch()
    engine = make_engine(folder)
    got = engine.step(batch, NllEntropy(), totals(batch))

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    loss = 0
    for ids, mask in zip(*(batch[c].split(batch.length_S.tolist()) for c in ("ids_N", "mask_N")), strict=True):
        full = (model(ids[None]).logits[0, :-1] / 0.7).log_softmax(-1)
        quantity = full.gather(1, ids[1:, None])[:, 0] - 0.1 * (full.exp() * full).sum(-1)
        loss = loss - (quantity * mask[1:]).sum() / totals(batch).tokens
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3, weight_decay=0.01)
    optimizer.step()
    assert got["actor/loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert got["actor/grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    assert norm > 0.5  # clipping took part
    close(weights(engine), dict(model.named_parameters()))


def test_empty_share_on_one_rank_steps_with_zero_gradient(folder):
    engine = make_engine(folder, optim=OptimConfig(lr=1e-2, weight_decay=0.0))
    before = weights(engine)
    empty = make_batch().select([])
    metrics = engine.step(empty, NllEntropy(), totals(empty))
    assert metrics["actor/grad_norm"] == 0
    close(weights(engine), before, rel=0)
    assert engine.forward(empty, LOGP_ENTROPY)[Need.LOGP].shape == (0,)


def test_sequences_without_produced_tokens_add_nothing(folder):
    batch = make_batch()
    silent = make_batch()
    silent["mask_N"][silent.seq_N == 2] = False
    rest = batch.select([0, 1, 3, 4, 5])
    got = make_engine(folder, micro=MicroBatching(sequences=1)).step(silent, NllEntropy(), totals(rest))
    want = make_engine(folder).step(rest, NllEntropy(), totals(rest))
    assert got["actor/grad_norm"] == pytest.approx(want["actor/grad_norm"], rel=1e-5)
    assert got["actor/loss"] == pytest.approx(want["actor/loss"], rel=1e-5)


def test_non_finite_gradient_skips_the_step_and_is_counted(folder):
    class Broken(NllEntropy):
        def __call__(self, out, batch, totals):
            share, metrics = super().__call__(out, batch, totals)
            return share * math.inf, metrics

    engine, batch = make_engine(folder), make_batch()
    before = weights(engine)
    assert engine.step(batch, Broken(), totals(batch))["actor/skipped_steps"] == 1
    close(weights(engine), before, rel=0)
    assert engine.step(batch, NllEntropy(), totals(batch))["actor/skipped_steps"] == 0
    assert not torch.equal(weights(engine)["model.norm.weight"], before["model.norm.weight"])


def test_critic_starts_at_zero_and_learns(folder):
    engine, batch = make_engine(folder, role="critic"), make_batch()
    values = frozenset({Need.VALUES})
    assert engine.forward(batch, values)[Need.VALUES].abs().max() == 0
    losses = [engine.step(batch, Squared(), totals(batch))["critic/loss"] for _ in range(20)]
    assert losses[0] == pytest.approx(float(batch["target_N"][batch["mask_N"]].square().mean()), rel=1e-5)
    assert losses[-1] < 0.5 * losses[0]
    out = engine.forward(batch, values)[Need.VALUES]
    assert out[~batch["mask_N"]].abs().max() == 0 and out[batch["mask_N"]].abs().min() > 0
    names = [name for name, _ in engine.named_weights()]
    assert names[-2:] == ["score.weight", "score.bias"] and "model.embed_tokens.weight" in names


def test_snapshot_use_drop(folder):
    engine, batch = make_engine(folder), make_batch()
    engine.snapshot("ref")
    before = engine.forward(batch, LOGP_ENTROPY)[Need.LOGP]
    live = dict(engine.named_weights())
    engine.step(batch, NllEntropy(), totals(batch))
    after, trained = engine.forward(batch, LOGP_ENTROPY)[Need.LOGP], weights(engine)
    with engine.use("ref"):
        assert torch.equal(engine.forward(batch, LOGP_ENTROPY)[Need.LOGP], before)
    assert torch.equal(engine.forward(batch, LOGP_ENTROPY)[Need.LOGP], after)
    assert not torch.equal(before, after)
    close(weights(engine), trained, rel=0)
    assert all(t.data_ptr() == live[n].data_ptr() for n, t in engine.named_weights())  # shared storage stays valid
    engine.drop("ref")
    with pytest.raises(KeyError):
        engine.use("ref")


def test_memory_that_runs_out_under_a_snapshot_leaves_the_weights(folder, monkeypatch):
    engine = make_engine(folder)
    engine.snapshot("ref")
    engine.step(make_batch(), NllEntropy(), totals(make_batch()))
    before, kept = weights(engine), {name: x.clone() for name, x in engine.snapshots["ref"].items()}

    def full(*_, **__):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", full)
        with pytest.raises(torch.OutOfMemoryError), engine.use("ref"):
            pass
    assert all(torch.equal(x, before[name]) for name, x in weights(engine).items())
    assert all(torch.equal(x, kept[name]) for name, x in engine.snapshots["ref"].items())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_state_round_trip_continues_bitwise(folder, optimizer):
    optim = OptimConfig(optimizer=optimizer, lr=1e-2, lr_scheduler_type="cosine", lr_warmup_steps=2)
    first = make_engine(folder, optim=optim, total_steps=6)
    batch = make_batch()
    for _ in range(2):
        first.step(batch, NllEntropy(), totals(batch))
    state = first.state()
    for part in (state.weights, state.optimizer):
        part.update({name: tensor.clone() for name, tensor in part.items()})
    second = make_engine(folder, optim=optim, total_steps=6, weights=False)
    second.load_state(state)
    for _ in range(2):
        assert first.step(batch, NllEntropy(), totals(batch)) == second.step(batch, NllEntropy(), totals(batch))
    close(weights(first), weights(second), rel=0)


def test_state_of_another_model_is_refused_by_name(folder):
    engine = make_engine(folder)
    state = engine.state()
    state.weights["model.norm.weight"] = torch.zeros(3)
    state.weights["extra"] = torch.zeros(1)
    with pytest.raises(UserError, match=r"extra is unknown; model.norm.weight has shape \[3\], not \[32\]"):
        engine.load_state(state)


def test_offload_keeps_everything(folder):
    engine, batch = make_engine(folder), make_batch()
    engine.step(batch, NllEntropy(), totals(batch))
    trained = weights(engine)
    engine.offload("cpu")
    engine.offload("device")
    close(weights(engine), trained, rel=0)


def test_bf16_compute_on_float32_weights(folder):
    batch = make_batch()
    exact = make_engine(folder).step(batch, NllEntropy(), totals(batch))
    mixed_engine = make_engine(folder, fsdp=FsdpConfig(dtype="bfloat16"))
    mixed = mixed_engine.step(batch, NllEntropy(), totals(batch))
    assert mixed["actor/loss"] == pytest.approx(exact["actor/loss"], rel=2e-2)
    assert mixed["actor/loss"] != exact["actor/loss"]
    assert {t.dtype for t in mixed_engine.state().weights.values()} == {torch.float32}
    before = mixed_engine.forward(batch, LOGP_ENTROPY)[Need.LOGP]
    mixed_engine.snapshot("now")
    mixed_engine.step(batch, NllEntropy(), totals(batch))
    with mixed_engine.use("now"):
        assert torch.equal(mixed_engine.forward(batch, LOGP_ENTROPY)[Need.LOGP], before)


def test_set_optimizer_starts_a_new_phase(folder):
    engine, batch = make_engine(folder), make_batch()
    engine.step(batch, NllEntropy(), totals(batch))
    engine.set_optimizer(OptimConfig(lr=5e-3, lr_scheduler_type="linear"), total_steps=3)
    rates = [engine.step(batch, NllEntropy(), totals(batch))["actor/lr"] for _ in range(3)]
    assert rates == pytest.approx([5e-3, 2.5e-3, 0])


def test_schedule_without_its_length_is_refused(folder):
    engine, batch = make_engine(folder, optim=OptimConfig(lr=1e-3, lr_scheduler_type="cosine")), make_batch()
    with pytest.raises(ValueError, match="set_total_steps"):
        engine.step(batch, NllEntropy(), totals(batch))
    engine.set_total_steps(4)
    assert engine.step(batch, NllEntropy(), totals(batch))["actor/lr"] == 1e-3


def test_liger_kernels_are_refused_without_a_gpu(tmp_path):
    with pytest.raises(UserError, match="needs a GPU"):
        apply_liger(
            load_causal_lm(ModelConfig(path=str(write_model(tmp_path))), dtype=torch.float32), torch.device("cpu")
        )


def test_liger_kernels_are_refused_for_an_architecture_that_has_none(tmp_path):
    model = load_causal_lm(ModelConfig(path=str(write_model(tmp_path))), dtype=torch.float32)
    model.config.model_type = "cohere"
    with pytest.raises(UserError, match="Liger has no kernels for model type 'cohere'"):
        apply_liger(model, torch.device("cuda"))
