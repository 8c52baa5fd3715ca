"""Attention of rows in which answers share their prompt, against dense masks: the padded and the ragged layout."""

from itertools import pairwise

import pytest
import torch

from verl_core.models import flex
from verl_core.models.attention import packed_attention
from verl_core.models.packing import Packing
from verl_core.models.shared_prompt import SharedPacking

CPU = torch.device("cpu")
PROMPTS, ANSWERS, PROMPT_OF = (3, 5), (2, 4, 1, 3, 6), (0, 0, 1, -1, 1)
OPTIONS = [{}, {"sliding_window": 3}, {"softcap": 0.5}, {"softcap": 0.5, "sliding_window": 4}]


def shared() -> SharedPacking:
    return SharedPacking(PROMPTS, ANSWERS, PROMPT_OF, CPU)


def sequences() -> list[list[int]]:
    """Places in the row of each prompt, and of each answer with what stands before it."""
    starts = torch.tensor((0, *PROMPTS, *ANSWERS)).cumsum(0).tolist()
    places = [list(range(a, b)) for a, b in pairwise(starts)]
    prompts, answers = places[: len(PROMPTS)], places[len(PROMPTS) :]
    return prompts + [(prompts[p] if p >= 0 else []) + own for p, own in zip(PROMPT_OF, answers, strict=True)]


def seen(window: int) -> torch.Tensor:
    """[N, N], from the definition: an answer's own positions go on after its prompt's."""
    N = sum(PROMPTS) + sum(ANSWERS)
    mask = torch.zeros(N, N, dtype=torch.bool)
    for places in sequences():
        for i, query in enumerate(places):
            mask[query, places[max(0, i + 1 - window) : i + 1]] = True
    return mask


def inputs(dtype=torch.float64):
    torch.manual_seed(0)
    N = sum(PROMPTS) + sum(ANSWERS)
    return [torch.randn(1, heads, N, 8, dtype=dtype, requires_grad=True) for heads in (4, 2, 2)]


def dense(q, k, v, sliding_window=99, softcap=None):
    score = q @ k.repeat_interleave(2, 1).transpose(-1, -2) * 0.7
    if softcap:
        score = softcap * torch.tanh(score / softcap)
    weight = score.masked_fill(~seen(sliding_window), -torch.inf).softmax(-1)
    return (weight @ v.repeat_interleave(2, 1)).transpose(1, 2)


def assert_same(got, want, qkv, tolerance):
    weight = torch.randn_like(want)
    grads = [torch.autograd.grad((out * weight).sum(), qkv) for out in (got, want)]
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("options", OPTIONS)
def test_padded_layout_equals_a_dense_mask(options):
    qkv = inputs()
    got, _ = packed_attention(torch.nn.Identity(), *qkv, None, packing=shared(), scaling=0.7, **options)
    # soft-capped weights pass through float32
    assert_same(got, dense(*qkv, **options), qkv, 1e-6 if "softcap" in options else 1e-12)


@pytest.mark.parametrize("window", [99, 3])
def test_ragged_layout_equals_a_dense_mask(window):
    """What the kernels are handed: sequence by sequence, the last query at the last key."""
    qkv, packing = inputs(), shared()
    q, k, v = (x[0].transpose(0, 1) for x in qkv)
    k, v = packing.keys(k), packing.keys(v)
    assert len(k) == 64 and int(packing.key_cu_B1[-1]) == 40  # a power of two, some of it behind the last key
    out = []
    cu, key_cu = packing.cu_B1.tolist(), packing.key_cu_B1.tolist()
    for s in range(packing.S):
        mine, keys = slice(*cu[s : s + 2]), slice(*key_cu[s : s + 2])
        q_HTD, k_HUD, v_HUD = (x.transpose(0, 1) for x in (q[mine], k[keys], v[keys]))
        k_HUD, v_HUD = k_HUD.repeat_interleave(2, 0), v_HUD.repeat_interleave(2, 0)
        query = torch.arange(q_HTD.shape[1])[:, None] + k_HUD.shape[1] - q_HTD.shape[1]
        distance = query - torch.arange(k_HUD.shape[1])
        score = (q_HTD @ k_HUD.transpose(-1, -2) * 0.7).masked_fill((distance < 0) | (distance >= window), -torch.inf)
        out.append((score.softmax(-1) @ v_HUD).transpose(0, 1))
        assert k_HUD.shape[1] <= packing.longest_keys and q_HTD.shape[1] <= packing.longest
    assert_same(torch.cat(out)[None], dense(*qkv, sliding_window=window), qkv, 1e-12)


def test_what_a_kernel_leaves_behind_the_last_key_reaches_no_gradient():
    packing = shared()
    x = torch.ones(packing.sight.segment_N.numel(), 1, 1, requires_grad=True)
    grad = torch.ones(64, 1, 1)
    grad[40:] = torch.nan
    (got,) = torch.autograd.grad(packing.keys(x), x, grad)
    readers = [1 + PROMPT_OF.count(p) for p, n in enumerate(PROMPTS) for _ in range(n)]
    assert got.flatten().tolist() == readers + [1] * sum(ANSWERS)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("options", OPTIONS[2:])
def test_flex_attention_equals_a_dense_mask(options, monkeypatch):
    """Forward, not compiled: torch's flex_attention has no gradient on the CPU (tests/gpu has both)."""
    monkeypatch.setattr(flex, "compiled", lambda function: function)
    q, k, v = (x.detach()[0].transpose(0, 1) for x in inputs(torch.float32))
    for packing, want in (
        (shared(), dense(*inputs(torch.float32), **options)),
        (Packing((7, 17), CPU), None),
    ):
        window, cap = options.get("sliding_window"), options["softcap"]
        if want is None:
            want, _ = packed_attention(
                torch.nn.Identity(), *inputs(torch.float32), None, packing=packing, scaling=0.7, **options
            )
        n = len(packing.sight.segment_N)
        got = flex.attention(q[:n], k[:n], v[:n], packing, 0.7, window, cap)
        torch.testing.assert_close(got[None], want[:, :n], rtol=1e-5, atol=1e-5)
        assert list(packing.block_masks) == [window]


def test_compiled_attention_has_the_same_gradients():
    """Traced as inductor would have it, but run by torch's own operators: no C++ compiler is called."""
    qkv, packing = inputs(torch.float32), shared()

    def attention(q, k, v):
        return packed_attention(torch.nn.Identity(), q * 2, k, v, None, packing=packing, sliding_window=4)[0]

    assert_same(torch.compile(attention, backend="aot_eager", dynamic=False)(*qkv), attention(*qkv), qkv, 1e-5)


def test_compiled_keys_have_the_same_gradients():
    packing = shared()
    x = torch.randn(24, 2, 8, requires_grad=True)
    laid_out = lambda x: packing.keys(x.sin())  # noqa: E731
    assert_same(torch.compile(laid_out, backend="aot_eager", dynamic=False)(x), laid_out(x), [x], 1e-6)
