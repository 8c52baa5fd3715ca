"""The likeliest tokens, the log-probs of given tokens and the KL over the whole vocabulary: functions on chunks."""

from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from verl_core.training.logprob_wide import given_logp, kl_from, top_tokens

V, D, K, J = 23, 6, 11, 4
ROWS = [1, 4, K, 100]


def drawn(dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    make = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)  # noqa: E731
    return make(K, D), make(V, D), make(K, D), make(V, D), torch.randint(0, V, (K, J), generator=draw)


def linear(weight_VD, hidden_KD):
    return hidden_KD @ weight_VD.T


def capped(weight_VD, hidden_KD):
    return 2 * torch.tanh(linear(weight_VD, hidden_KD) / 2)


def given(head, hidden, weight, ids, temperature, rows):
    return given_logp(hidden, ids, partial(head, weight), V, temperature, rows * V)


def full(head, hidden, weight, reference, temperature, rows):
    ref_hidden, ref_weight = reference
    heads = partial(head, weight), partial(head, ref_weight)
    return kl_from(hidden, ref_hidden, *heads, V, temperature, 2 * rows * V)


def slow_given(head, hidden, weight, ids, temperature):
    return (head(weight, hidden) / temperature).log_softmax(-1).gather(1, ids)


def slow_kl(head, hidden, weight, reference, temperature):
    ref_hidden, ref_weight = reference
    p, q = ((head(w, h) / temperature).softmax(-1) for w, h in ((weight, hidden), (ref_weight, ref_hidden)))
    return (p * (p / q).log()).sum(-1)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("head", [linear, capped])
@pytest.mark.parametrize("quantity", ["given", "kl"])
def test_values_and_gradients_against_float64(quantity, head, temperature, rows):
    fast, slow = {"given": (given, slow_given), "kl": (full, slow_kl)}[quantity]

    def value_and_gradients(dtype, function, *more):
        hidden, weight, ref_hidden, ref_weight, ids = drawn(dtype)
        hidden.requires_grad_(), weight.requires_grad_()
        beside = ids if quantity == "given" else (ref_hidden.requires_grad_(), ref_weight.requires_grad_())
        value = function(head, hidden, weight, beside, temperature, *more)
        share = (value * torch.arange(value.numel()).view_as(value).cos()).sum()
        return value.detach(), *torch.autograd.grad(share, (hidden, weight))

    got = value_and_gradients(torch.float32, fast, rows)
    for x, y in zip(got, value_and_gradients(torch.float64, slow), strict=True):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x.double(), y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("quantity", ["given", "kl"])
def test_gradient_is_that_of_finite_differences(quantity):
    """Float32 throughout, so by a step that its rounding allows."""
    hidden, weight, ref_hidden, ref_weight, ids = drawn()

    def value(hidden):
        if quantity == "given":
            return given(linear, hidden, weight, ids, 0.6, 4).sum()
        return full(linear, hidden, weight, (ref_hidden, ref_weight), 0.6, 4).sum()

    hidden.requires_grad_()
    (gradient,) = torch.autograd.grad(value(hidden), hidden)
    step = 1e-2
    for k, d in ((0, 0), (5, 3), (10, 5)):
        apart = torch.zeros(K, D).index_put((torch.tensor(k), torch.tensor(d)), torch.tensor(step))
        slope = (value(hidden.detach() + apart) - value(hidden.detach() - apart)) / (2 * step)
        assert gradient[k, d].item() == pytest.approx(slope.item(), rel=2e-2, abs=2e-2)


@pytest.mark.parametrize("rows", ROWS)
def test_the_likeliest_tokens_are_those_of_a_sort(rows):
    hidden, weight, *_ = drawn()
    ids, logp = top_tokens(hidden.requires_grad_(), partial(linear, weight), V, 0.6, 5, rows * V)
    want = (linear(weight.double(), hidden.double()) / 0.6).log_softmax(-1).sort(-1, descending=True)
    assert ids.dtype == torch.int32 and logp.dtype == torch.float32 and not logp.requires_grad
    assert torch.equal(ids.long(), want.indices[:, :5])
    torch.testing.assert_close(logp.double(), want.values[:, :5], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("k", [0, V + 1])
def test_more_tokens_than_there_are_is_refused(k):
    hidden, weight, *_ = drawn()
    with pytest.raises(ValueError, match=f"the {k} likeliest of {V} tokens"):
        top_tokens(hidden, partial(linear, weight), V, 1.0, k)


def test_all_tokens_likeliest_have_all_of_the_probability_and_their_given_log_probs():
    hidden, weight, *_ = drawn()
    head = partial(linear, weight)
    ids, logp = top_tokens(hidden, head, V, 0.6, V)
    torch.testing.assert_close(logp.exp().sum(-1), torch.ones(K))
    torch.testing.assert_close(given_logp(hidden, ids, head, V, 0.6), logp)


def test_by_hand():
    """Probabilities 1/2, 1/4, 1/4 from 1/4, 1/4, 1/2: KL = 1/2 log 2 - 1/4 log 2."""
    p, q = (torch.tensor([x]).log() for x in ([0.5, 0.25, 0.25], [0.25, 0.25, 0.5]))
    same = lambda logits: logits  # noqa: E731
    log2 = torch.tensor(2.0).log()
    torch.testing.assert_close(kl_from(p, q, same, same, 3, 1.0), log2[None] / 4)
    assert kl_from(p, p, same, same, 3, 0.5).item() == 0
    torch.testing.assert_close(
        given_logp(p, torch.tensor([[2, 0]]), same, 3, 1.0), torch.stack([-2 * log2, -log2])[None]
    )
    ids, logp = top_tokens(q, same, 3, 1.0, 1)
    assert ids.tolist() == [[2]] and logp.item() == pytest.approx(-log2.item())


def test_tokens_that_are_excluded_add_nothing():
    p = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    q = torch.tensor([[0.0, 0.0, 0.0]])
    kl = kl_from(p, q, lambda x: x, lambda x: x, 3, 1.0)
    kl.sum().backward()
    assert kl.item() == pytest.approx(torch.tensor(1.5).log().item()) and torch.isfinite(p.grad).all()


def test_no_tokens_keep_the_graph():
    hidden, weight = torch.randn(0, D, requires_grad=True), torch.randn(V, D)
    head = partial(linear, weight)
    logp = given_logp(hidden, torch.zeros(0, J, dtype=torch.int32), head, V, 1.0)
    kl = kl_from(hidden, hidden.detach(), head, head, V, 1.0)
    (logp.sum() + kl.sum()).backward()
    assert logp.shape == (0, J) and kl.shape == (0,) and hidden.grad.shape == (0, D)
    assert top_tokens(hidden, head, V, 1.0, 3)[0].shape == (0, 3)


class Largest(TorchDispatchMode):
    """Elements of the largest floating-point tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        sizes = [x.numel() for x in tree_iter(out) if isinstance(x, torch.Tensor) and x.is_floating_point()]
        self.elements = max([self.elements, *sizes])
        return out


@pytest.mark.parametrize("quantity", ["top", "given", "kl"])
def test_no_tensor_is_larger_than_a_chunk_of_logits(quantity):
    """Forward and backward; the output layer's own gradient and all hidden states are smaller here."""
    tokens, chunk = 64, 4 * V
    draw = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(tokens, 1, generator=draw, requires_grad=True), torch.randn(V, 1, requires_grad=True)
    head = partial(linear, weight)
    with Largest() as seen:
        if quantity == "top":
            top_tokens(hidden, head, V, 1.0, 1, chunk)
        elif quantity == "given":
            given_logp(hidden, torch.zeros(tokens, 1, dtype=torch.int32), head, V, 1.0, chunk).sum().backward()
        else:
            kl_from(hidden, hidden.detach() + 1, head, head, V, 1.0, 2 * chunk).sum().backward()
    assert seen.elements == chunk
