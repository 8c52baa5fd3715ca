"""Log-prob and entropy in chunks against log_softmax in float64, values and gradients."""

import pytest
import torch

from verl_core.training.logprob import token_stats

V, D, K = 23, 6, 11


def reference(hidden, ids, weight, temperature):
    logp = (hidden @ weight.T / temperature).log_softmax(-1)
    return logp.gather(1, ids[:, None])[:, 0], -(logp.exp() * logp).sum(-1), logp.exp().square().sum(-1)


@pytest.mark.parametrize("rows", [1, 4, K, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("through", ["both", "logp", "entropy"])
def test_values_and_gradients_against_float64(rows, temperature, through):
    torch.manual_seed(0)
    hidden = torch.randn(K, D, requires_grad=True)
    weight = torch.randn(V, D, requires_grad=True)
    ids, a, b = torch.randint(0, V, (K,)), torch.randn(K), torch.randn(K)
    weigh = lambda logp, entropy, _: {"both": a * logp + b * entropy, "logp": a * logp, "entropy": b * entropy}[through]  # noqa: E731
    head = lambda h: h @ weight.T  # noqa: E731
    got = token_stats(hidden, ids, head, V, temperature, entropy=True, square=True, chunk_elements=rows * V)
    grads = torch.autograd.grad(weigh(*got).sum(), (hidden, weight))

    hidden64, weight64 = (x.detach().double().requires_grad_() for x in (hidden, weight))
    want = reference(hidden64, ids, weight64, temperature)
    want_grads = torch.autograd.grad(weigh(*want).sum(), (hidden64, weight64))
    for x, y in zip((*got, *grads), (*want, *want_grads), strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-5, atol=1e-5)


def test_chunks_bound_the_logits_that_exist_at_once():
    sizes = []
    head = lambda h: sizes.append(len(h)) or h @ torch.ones(V, D).T  # noqa: E731
    token_stats(torch.randn(K, D), torch.zeros(K, dtype=torch.int64), head, V, 1.0, False, chunk_elements=4 * V)
    assert sizes == [4, 4, 3]


def test_impossible_tokens_have_no_part_in_the_entropy():
    logits = torch.tensor([[0.0, 0.0, float("-inf")]], requires_grad=True)
    logp, entropy, _ = token_stats(logits, torch.tensor([1]), lambda h: h, 3, 1.0, entropy=True)
    assert entropy.item() == pytest.approx(torch.tensor(2.0).log().item())
    (logp + entropy).sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_no_tokens_keep_the_graph():
    hidden = torch.randn(0, D, requires_grad=True)
    head = lambda h: h @ torch.ones(D, V)  # noqa: E731
    logp, entropy, _ = token_stats(hidden, torch.zeros(0, dtype=torch.int64), head, V, 1.0, True)
    (logp.sum() + entropy.sum()).backward()
    assert logp.shape == entropy.shape == (0,) and hidden.grad.shape == (0, D)


def test_half_precision_logits_are_taken_in_float32():
    torch.manual_seed(0)
    logits = (4 * torch.randn(K, V)).bfloat16().requires_grad_()
    ids = torch.randint(0, V, (K,))
    logp, entropy, _ = token_stats(logits, ids, lambda h: h, V, 0.7, entropy=True)
    full = (logits.detach().double() / 0.7).log_softmax(-1)
    torch.testing.assert_close(logp.double(), full.gather(1, ids[:, None])[:, 0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(entropy.double(), -(full.exp() * full).sum(-1), rtol=1e-6, atol=1e-6)
    logp.sum().backward()
    assert logits.grad.dtype == torch.bfloat16
