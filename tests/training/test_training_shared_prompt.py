"""Training with shared prompts gives what training without gives: quantities, loss and every gradient."""

import pytest
import torch

from tests.models.models_tiny import ARCHITECTURES, write_model
from tests.training.training_ranks import running, train
from tests.training.training_tiny import SMOOTH, NllEntropy, Squared, totals
from verl_core.algorithms.loss import Need
from verl_core.batch import Batch
from verl_core.batch.shared_prompt import deal_groups
from verl_core.config.schema import ActorConfig, CriticConfig, FsdpConfig, ModelConfig
from verl_core.platforms import current
from verl_core.training.fsdp import FsdpEngine
from verl_core.training.protocol import MicroBatching

WANTED = frozenset({Need.LOGP, Need.ENTROPY, Need.SUM_P_SQ})
ALL = MicroBatching(sequences=64)


def make_groups(prompts=(6, 3, 9), answers=((5, 2, 7, 1), (4, 6), (3,)), mixed=True) -> Batch:
    """Groups of answers to one prompt each, the groups' sequences between one another; within the longest answer stand
    two tokens that nobody produced (a tool's)."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda n: torch.randint(0, 61, (n,), generator=generator)  # noqa: E731
    rows = []
    for p, (length, group) in enumerate(zip(prompts, answers, strict=True)):
        prompt = draw(length)
        for answer in group:
            mask = torch.arange(length + answer) >= length
            if answer == 7:
                mask[length + 2 : length + 4] = False
            rows.append((p, torch.cat([prompt, draw(answer)]), mask))
    if mixed:
        rows = rows[::2] + rows[1::2]
    group_S, ids, masks = zip(*rows, strict=True)
    columns = {"ids_N": torch.cat(ids), "mask_N": torch.cat(masks)}
    batch = Batch(torch.tensor([len(x) for x in ids]), torch.tensor(group_S), columns)
    return batch.add(target_N=torch.randn(batch.N, generator=generator))


def make_engine(folder, share: bool, micro=ALL, role="actor", checkpointing=False, fsdp=None) -> FsdpEngine:
    settings = (CriticConfig if role == "critic" else ActorConfig)(
        optim=SMOOTH, grad_clip=1e9, fsdp_config=fsdp or FsdpConfig()
    )
    model = ModelConfig(path=str(folder), enable_gradient_checkpointing=checkpointing)
    return FsdpEngine(model, settings, role=role, platform=current("cpu"), micro=micro, share_prompt=share)


def gradients(engine: FsdpEngine) -> dict[str, torch.Tensor]:
    """After one step: AdamW's first moment is a tenth of the gradient."""
    return {name: x for name, x in engine.state().optimizer.items() if name.startswith("exp_avg/")}


def assert_equal_step(plain: FsdpEngine, shared: FsdpEngine, loss, batch: Batch) -> None:
    want, got = plain.step(batch, loss, totals(batch)), shared.step(batch, loss, totals(batch))
    assert got == pytest.approx(want, rel=1e-5, abs=1e-6)
    for name, gradient in gradients(plain).items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(gradients(shared)[name], gradient, rtol=0, atol=1e-5 * scale, msg=name)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_shared_equals_unshared(tmp_path, name):
    folder, batch = write_model(tmp_path, name), make_groups()
    plain, shared = make_engine(folder, share=False), make_engine(folder, share=True)
    want, got = (engine.forward(batch, WANTED, temperature=0.7) for engine in (plain, shared))
    for need in WANTED:
        torch.testing.assert_close(got[need], want[need], rtol=0, atol=1e-5)
    assert_equal_step(plain, shared, NllEntropy(), batch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), "qwen2-sliding")


@pytest.mark.parametrize("micro", [MicroBatching(sequences=3), MicroBatching(tokens=18)], ids=str)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_groups_may_be_cut_anywhere(folder, micro, checkpointing):
    plain, shared = make_engine(folder, share=False), make_engine(folder, True, micro, checkpointing=checkpointing)
    assert_equal_step(plain, shared, NllEntropy(), make_groups())


def test_critic_shares_too(folder):
    plain, shared = (make_engine(folder, share, role="critic") for share in (False, True))
    for engine in (plain, shared):  # a value head of zeros hides the body
        torch.nn.init.ones_(engine.model.score.weight)
    batch, values = make_groups(), frozenset({Need.VALUES})
    want, got = (engine.forward(batch, values)[Need.VALUES] for engine in (plain, shared))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    assert_equal_step(plain, shared, Squared(), batch)


def test_the_row_is_shorter_by_the_prompts_of_all_but_one_answer(folder):
    batch, engine = make_groups(), make_engine(folder, share=True)
    ((_, x),) = engine._inputs(batch, None)
    assert x.ids_1R.shape[1] == batch.N - 3 * 6 - 3
    assert len(x.token_K) == len(x.target_K) == int(batch["mask_N"].sum())


@pytest.mark.parametrize("lengths", [((4, 5), ((3,), (2,))), ((0, 0), ((3, 4), (2, 5)))])
def test_groups_that_share_nothing_run_as_they_would(folder, lengths):
    batch = make_groups(*lengths)
    batch["ids_N"][batch.cu_seqlens_S1[:-1]] = torch.arange(batch.S)  # first tokens differ
    plain, shared = make_engine(folder, share=False), make_engine(folder, share=True)
    assert torch.equal(*(engine.forward(batch, WANTED)[Need.LOGP] for engine in (plain, shared)))


@pytest.fixture(scope="module")
def two_ranks():
    with running(2) as call:
        yield call


@pytest.mark.slow
@pytest.mark.parametrize("split", [1, 2])
def test_two_ranks_equal_one_that_shares_nothing(two_ranks, folder, split):
    """split 2: both have the same sequences, and half of every row."""
    batch = make_groups()
    every = list(range(batch.S))
    shares = deal_groups(batch.length_S, batch.group_S, 2) if split == 1 else [every, every]
    options = {"micro": MicroBatching(tokens=24), "split": split, "share_prompt": True}
    want = train(every, batch, folder, NllEntropy(), {})
    for share, got in zip(shares, two_ranks(train, shares, batch, folder, NllEntropy(), options), strict=True):
        assert got["metrics"][0] == pytest.approx(want["metrics"][0], rel=1e-5)
        for name, gradient in want["gradients"].items():
            scale = float(gradient.abs().max())
            torch.testing.assert_close(got["gradients"][name], gradient, rtol=0, atol=1e-5 * scale, msg=name)
        place_N = batch.token_index(torch.tensor(share))
        for need, value_N in got["out"].items():
            torch.testing.assert_close(value_N, want["out"][need][place_N], rtol=1e-3, atol=1e-4)


@pytest.mark.slow  # torch.compile calls a C++ compiler here
def test_compiled_layers_share_too(folder):
    plain = make_engine(folder, share=False)
    shared = make_engine(folder, True, MicroBatching(tokens=40), fsdp=FsdpConfig(use_torch_compile=True))
    batch = make_groups()
    assert {x.ids_1R.shape[1] for _, x in shared._inputs(batch, None)} <= {10, 20, 30, 40}
    assert_equal_step(plain, shared, NllEntropy(), batch)
