"""Drawing: the distribution, the filters, the log-probs, the seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from verl_core.rollout import sampling as drawing
from verl_core.rollout.protocol import Sampling
from verl_core.rollout.sampling import Columns, Kinds, streams, uniforms


def draw(logits: torch.Tensor, sampling: Sampling, seeds=None) -> tuple[torch.Tensor, torch.Tensor]:
    rows = len(logits)
    seeds = range(rows) if seeds is None else seeds
    return draw_mixed(logits, [sampling] * rows, seeds)


def draw_mixed(logits: torch.Tensor, sampling: list[Sampling], seeds, positions=None) -> tuple[torch.Tensor, ...]:
    positions = torch.zeros(len(logits), dtype=torch.int64) if positions is None else positions
    columns = Columns.of(sampling, seeds, logits.device)
    return drawing.draw(logits, positions.to(logits.device), columns, Kinds.of(sampling))


def slow_distribution(logits: list[float], sampling: Sampling) -> list[float]:
    """Temperature, then the k most likely, then the smallest set with mass top_p, renormalised: as it is said."""
    weights = [math.exp(x / sampling.temperature) for x in logits]
    ranked = sorted(range(len(weights)), key=lambda i: -weights[i])
    if sampling.top_k > 0:
        ranked = ranked[: sampling.top_k]
    mass = sum(weights[i] for i in ranked)
    kept, sofar = [], 0.0
    for i in ranked:
        kept.append(i)
        sofar += weights[i]
        if sofar >= sampling.top_p * mass:
            break
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(weights))]


FILTERS = [
    Sampling(1),
    Sampling(1, temperature=0.6),
    Sampling(1, temperature=1.7, top_k=5),
    Sampling(1, top_p=0.9),
    Sampling(1, temperature=0.8, top_p=0.5, top_k=7),
    Sampling(1, top_k=1),
    Sampling(1, top_p=1e-6),
    Sampling(1, top_k=1000),
]


@pytest.mark.parametrize("sampling", FILTERS, ids=str)
def test_frequencies_and_logps_follow_the_filtered_distribution(sampling: Sampling):
    """Chi-square over 20,000 draws (fixed seeds; limit: 5 standard deviations above its mean), and every log-prob."""
    logits = 2.0 * torch.randn(20, generator=torch.Generator().manual_seed(3))
    expected = torch.tensor(slow_distribution(logits.tolist(), sampling), dtype=torch.float64)
    n = 20_000
    ids, logp = draw(logits.expand(n, -1), sampling)
    torch.testing.assert_close(logp.double(), expected[ids].log(), atol=1e-5, rtol=0)
    counts = torch.bincount(ids, minlength=20).double()
    assert counts[expected == 0].sum() == 0
    common = expected * n >= 5  # the classical condition for the test
    chi2 = ((counts - n * expected)[common] ** 2 / (n * expected[common])).sum().item()
    freedom = max(int(common.sum()) - 1, 1)
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom)


def test_top_p_takes_the_smallest_sufficient_set():
    """Shares 0.5, 0.3, 0.2: 0.5 needs one id, just more needs two, 0.8 needs two, just more needs three."""
    logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log().float().expand(2000, -1)
    for top_p, size in [(0.499, 1), (0.501, 2), (0.799, 2), (0.801, 3)]:
        assert draw(logits, Sampling(1, top_p=top_p))[0].unique().tolist() == list(range(size))


def test_top_k_among_equals_keeps_exactly_k():
    ids, logp = draw(torch.zeros(500, 6), Sampling(1, top_k=2))
    assert ids.unique().tolist() == [0, 1]
    torch.testing.assert_close(logp, torch.full((500,), -math.log(2.0)))


def test_greedy_takes_the_largest_and_reports_temperature_one():
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    ids, logp = draw(logits, Sampling(1, temperature=0.0, top_p=0.5, top_k=3))
    assert ids.tolist() == logits.argmax(-1).tolist()
    torch.testing.assert_close(logp, logits.log_softmax(-1).amax(-1))


def test_rows_keep_their_own_parameters():
    """A mixed batch draws for each row what a batch of that row alone draws."""
    kinds = [*FILTERS, Sampling(1, temperature=0.0)]
    logits = torch.randn(len(kinds), 40, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(len(kinds))
    ids, logp = draw_mixed(logits, kinds, range(len(kinds)), positions)
    for i, kind in enumerate(kinds):
        one_id, one_logp = draw_mixed(logits[i : i + 1], [kind], [i], positions[i : i + 1])
        assert (one_id.item(), one_logp.item()) == (ids[i].item(), pytest.approx(logp[i].item(), abs=1e-6))


def test_an_id_without_mass_is_never_drawn():
    logits = torch.full((5000, 8), -math.inf)
    logits[:, 3] = 0.0
    ids, logp = draw(logits, Sampling(1))
    assert ids.unique().tolist() == [3]
    assert logp.abs().max() == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "sampling", [Sampling(1), Sampling(1, top_p=0.9, top_k=3), Sampling(1, temperature=0.0)], ids=str
)
def test_a_broken_row_reports_nan_and_leaves_the_others(bad: float, sampling: Sampling):
    logits = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    broken = logits.clone()
    broken[1, 4] = bad
    ids, logp = draw(broken, sampling)
    whole_ids, whole_logp = draw(logits, sampling)
    assert math.isnan(logp[1])
    assert 0 <= ids[1] < 10
    assert ids[[0, 2]].tolist() == whole_ids[[0, 2]].tolist()
    assert logp[[0, 2]].tolist() == whole_logp[[0, 2]].tolist()


def test_uniform_numbers_are_uniform_and_unrelated():
    """Neighbouring seeds and positions, the worst case for a weak hash: bins, and correlation of neighbours."""
    seed, position = torch.meshgrid(torch.arange(400), torch.arange(500), indexing="ij")
    u = uniforms(streams(seed), position).numpy()
    assert u.min() >= 0 and u.max() < 1
    counts = np.bincount((u.ravel() * 100).astype(int), minlength=100)
    chi2 = ((counts - u.size / 100) ** 2 / (u.size / 100)).sum()
    assert 99 - 5 * math.sqrt(198) < chi2 < 99 + 5 * math.sqrt(198)
    for a, b in [(u[1:], u[:-1]), (u[:, 1:], u[:, :-1]), (u[1:, 1:], u[:-1, :-1]), (u[1:, :-1], u[:-1, 1:])]:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / math.sqrt(a.size)


def test_uniform_numbers_are_those_of_splitmix64():
    """Against the same arithmetic on Python's integers, at the ends of the range too."""
    whole = (1 << 64) - 1

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & whole
        x = (x ^ x >> 27) * 0x94D049BB133111EB & whole
        return x ^ x >> 31

    golden = 0x9E3779B97F4A7C15
    for seed in (0, 1, 12345, 2**63 - 1, -(2**63), -1):
        for position in (0, 1, 4095):
            want = mix(mix((seed + golden) & whole) + (position + 1) * golden & whole) >> 11
            got = uniforms(streams(torch.tensor([seed])), torch.tensor([position]))
            assert got.item() == want * 2.0**-53


def test_seeds_of_any_size_are_taken():
    logits = torch.zeros(4, 1000)
    ids, _ = draw(logits, Sampling(1), seeds=[-1, 2**63 + 5, 2**200 + 7, 0])
    assert len(set(ids.tolist())) == 4


@pytest.mark.gpu
def test_a_gpu_draws_the_same_ids_also_where_every_kernel_must_be_deterministic():
    """torch refuses a cumulative sum of floats there (trainer.deterministic=true)."""
    sampling = [Sampling(8), Sampling(8, top_p=0.9), Sampling(8, top_k=5), Sampling(8, temperature=0.0)]
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0)) * 3
    position = torch.arange(4)
    here = draw_mixed(logits, sampling, range(4), position)
    torch.use_deterministic_algorithms(True)
    try:
        there = draw_mixed(logits.cuda(), sampling, range(4), position)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(here[0], there[0].cpu())
    torch.testing.assert_close(here[1], there[1].cpu(), rtol=0, atol=1e-5)
