"""The engine gives teachers' tokens, their log-probs and the KL from its reference as float64 does, however rows are
cut, and trains through them."""

import pytest
import torch

from tests.models.models_tiny import write_model
from tests.training.test_training_shared_prompt import gradients, make_groups
from tests.training.training_tiny import SMOOTH, NllEntropy, make_engine, totals, weights
from tests.training.training_wide import TEMPERATURE, ForwardKl, FullKl, add_teacher, log_probs, slow_kl
from verl_core.algorithms.loss import Need
from verl_core.config.schema import FsdpConfig
from verl_core.training.protocol import MicroBatching

TOP = frozenset({Need.TOPK_IDS, Need.TOPK_LOGP})
KL = frozenset({Need.FULL_KL})
CUTS = [
    pytest.param({"micro": MicroBatching(tokens=18), "share_prompt": True}, id="shared prompts"),
    pytest.param({"micro": MicroBatching(sequences=2)}, id="two sequences", marks=pytest.mark.slow),
]


SOFT_CAPPED = pytest.param("gemma2", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=["qwen3", SOFT_CAPPED])
def folder(request, tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), "qwen3")


def trained(folder, **options):
    """An engine a step from its reference."""
    engine = make_engine(folder, **options)
    engine.snapshot("ref")
    engine.step(make_groups(), NllEntropy(), totals(make_groups()))
    return engine


@pytest.mark.parametrize("options", CUTS)
def test_top_and_given_tokens_equal_float64(folder, options):
    batch, engine = add_teacher(make_groups()), make_engine(folder, **options)
    out = engine.forward(batch, TOP | {Need.GIVEN}, TEMPERATURE, k=4)
    mask_N1, logp_NV = batch["mask_N"][:, None], log_probs(folder, batch)
    best = logp_NV.topk(4)
    assert torch.equal(out[Need.TOPK_IDS], (best.indices * mask_N1).int())
    torch.testing.assert_close(out[Need.TOPK_LOGP], (best.values * mask_N1).float(), rtol=0, atol=2e-5)
    given_NK = logp_NV.gather(1, batch["teacher_ids_NK"].long()) * mask_N1
    torch.testing.assert_close(out[Need.GIVEN], given_NK.float(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("options", CUTS)
def test_full_kl_equals_float64(folder, options):
    batch, engine = make_groups(), trained(folder, **options)
    now = weights(engine)
    kl_N = engine.forward(batch, KL, TEMPERATURE)[Need.FULL_KL]
    want_N = slow_kl(log_probs(folder, batch, now), log_probs(folder, batch), batch)
    torch.testing.assert_close(kl_N, want_N, rtol=1e-4, atol=2e-5)
    assert want_N[batch["mask_N"]].min() > 1e-3  # so that the tolerance says something
    assert all(torch.equal(x, now[name]) for name, x in engine.named_weights())


@pytest.mark.slow
@pytest.mark.parametrize("loss", [ForwardKl(), FullKl()], ids=["given", "kl"])
@pytest.mark.parametrize("options", CUTS)
def test_a_step_does_not_depend_on_how_rows_are_cut(qwen3, loss, options):
    batch = add_teacher(make_groups())
    want, got = (trained(qwen3, **cut).step(batch, loss, totals(batch)) for cut in ({}, options))
    assert got == pytest.approx(want, rel=1e-4) and want["actor/grad_norm"] > 0.01


def test_the_gradient_of_a_step_is_that_of_plain_torch(qwen3):
    """Through the last norm's weight, by finite differences of the float64 loss."""
    batch, engine = make_groups(), trained(qwen3)
    now, name = weights(engine), "model.norm.weight"
    engine.set_optimizer(SMOOTH)
    engine.grad_clip = 1e9
    engine.step(batch, FullKl(), totals(batch))
    got = 10 * gradients(engine)[f"exp_avg/{name}"]
    ref_NV, own = log_probs(qwen3, batch), batch["ids_N"][:, None]

    def loss(place, by):
        moved = now | {name: now[name].double().index_add(0, torch.tensor([place]), torch.tensor([by]).double())}
        logp_NV = log_probs(qwen3, batch, moved)
        quantity_N = slow_kl(logp_NV, ref_NV, batch).double() + 0.1 * logp_NV.gather(1, own)[:, 0] * batch["mask_N"]
        return (quantity_N * batch["target_N"]).sum() / totals(batch).tokens

    for place in (0, 17):
        slope = (loss(place, 1e-2) - loss(place, -1e-2)) / 2e-2
        assert got[place].item() == pytest.approx(slope.item(), rel=1e-2, abs=1e-4)


def test_below_an_adapter_the_output_layer_is_the_references_own(qwen3):
    batch, engine = make_groups(), make_engine(qwen3, model={"lora_rank": 4, "lora_alpha": 12})
    engine.snapshot("ref")
    assert not engine.forward(batch, KL, TEMPERATURE)[Need.FULL_KL].any()  # B is zero yet
    for _ in range(3):
        engine.step(batch, NllEntropy(), totals(batch))
    kl_N = engine.forward(batch, KL, TEMPERATURE)[Need.FULL_KL]
    want_N = slow_kl(log_probs(qwen3, batch, weights(engine)), log_probs(qwen3, batch), batch)
    torch.testing.assert_close(kl_N, want_N, rtol=1e-4, atol=2e-5)
    assert engine.step(batch, FullKl(), totals(batch))["actor/grad_norm"] > 0


@pytest.mark.slow
def test_in_half_precision_values_are_near_and_hidden_states_are_half(qwen3):
    batch = add_teacher(make_groups())
    half, exact = (trained(qwen3, fsdp=FsdpConfig(dtype=dtype)) for dtype in ("bfloat16", None))
    wanted = TOP | {Need.GIVEN, Need.FULL_KL, Need.HIDDEN, Need.LOGP}
    got, want = (engine.forward(batch, wanted, TEMPERATURE, k=3) for engine in (half, exact))
    assert got[Need.HIDDEN].dtype == torch.bfloat16 and want[Need.HIDDEN].dtype == torch.float32
    for need in (Need.GIVEN, Need.TOPK_LOGP, Need.FULL_KL):
        assert got[need].dtype == torch.float32
        torch.testing.assert_close(got[need], want[need], rtol=0.1, atol=0.3)
    norms = [engine.step(batch, FullKl(), totals(batch))["actor/grad_norm"] for engine in (half, exact)]
    assert norms[0] == pytest.approx(norms[1], rel=0.2)


def test_hidden_states_are_what_the_output_layer_reads(qwen3):
    batch, engine = make_groups(), make_engine(qwen3)
    out = engine.forward(batch, frozenset({Need.HIDDEN, Need.LOGP}), TEMPERATURE)
    logits_NV = engine.network.head(out[Need.HIDDEN]) / TEMPERATURE
    logp_N = logits_NV.log_softmax(-1).gather(1, batch["ids_N"][:, None])[:, 0] * batch["mask_N"]
    torch.testing.assert_close(logp_N, out[Need.LOGP], rtol=0, atol=1e-5)
    assert not out[Need.HIDDEN][~batch["mask_N"]].any()


def test_an_empty_share_has_its_shapes(qwen3):
    batch, engine = add_teacher(make_groups()).select([]), make_engine(qwen3)
    engine.snapshot("ref")
    out = engine.forward(batch, TOP | {Need.GIVEN, Need.FULL_KL, Need.HIDDEN}, k=3)
    shapes = {need.value: tuple(x.shape) for need, x in out.items()}
    assert shapes == {
        "topk_ids_NK": (0, 3),
        "topk_logp_NK": (0, 3),
        "given_logp_NK": (0, 5),
        "full_kl_N": (0,),
        "hidden_ND": (0, 32),
    }


def test_without_a_reference_there_is_no_kl_from_it(qwen3):
    with pytest.raises(KeyError, match="ref"):
        make_engine(qwen3).forward(make_groups(), KL)
