"""The GPU's own kernels against plain torch in float64 or float32. Run where there is a GPU: pytest tests/gpu."""

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn

from verl_core.models import cudnn_ragged
from verl_core.models.packing import Packing

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def far(got, want):
    """Relative distance."""
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def reference(q, k, v, lengths, window):
    """Sequence by sequence, in float32."""
    out = []
    for q_TD, k_TD, v_TD in zip(*(x.float().split(lengths) for x in (q, k, v)), strict=True):
        T = len(q_TD)
        at = torch.arange(T, device=q.device)
        distance = at[:, None] - at[None]
        seen = (distance >= 0) & (distance < (window or T))
        ratio = q.shape[1] // k.shape[1]
        k_TD, v_TD = (x.repeat_interleave(ratio, 1) for x in (k_TD, v_TD))
        score = torch.einsum("ihd,jhd->hij", q_TD, k_TD) * q.shape[-1] ** -0.5
        weight = score.masked_fill(~seen, float("-inf")).softmax(-1)
        out.append(torch.einsum("hij,jhd->ihd", weight, v_TD))
    return torch.cat(out)


@pytest.mark.parametrize(("heads", "kv_heads", "D"), [(14, 2, 64), (12, 2, 128), (8, 8, 80)])
@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("lengths", [(300,), (1, 2, 700, 33, 64, 129, 1, 5, 900)])
def test_ragged_attention_against_float32(heads, kv_heads, D, window, lengths):
    if not cudnn_ragged.usable(CUDA):
        pytest.fail("this GPU or environment has no cuDNN ragged attention")
    torch.manual_seed(0)
    new = lambda h: torch.randn(sum(lengths), h, D, device=CUDA, dtype=torch.bfloat16, requires_grad=True)  # noqa: E731
    q, k, v, weight = new(heads), new(kv_heads), new(kv_heads), new(heads).detach()
    packing = Packing(lengths, CUDA)
    out = cudnn_ragged.attention(q, k, v, packing.cu_B1, packing.cu_B1, packing.limit, packing.limit, D**-0.5, window)
    grads = torch.autograd.grad((out * weight).sum(), (q, k, v))
    want = reference(q, k, v, lengths, window)
    want_grads = torch.autograd.grad((want * weight).sum(), (q, k, v))
    assert far(out, want) < 5e-3
    assert all(far(a, b) < 1e-2 for a, b in zip(grads, want_grads, strict=True))


def test_both_kernels_agree_under_compile():
    lengths = (200, 31, 500)
    packing = Packing(lengths, CUDA)
    q, k, v = (torch.randn(sum(lengths), h, 64, device=CUDA, dtype=torch.bfloat16) for h in (8, 2, 2))
    cu, longest, limit = packing.cu_B1, packing.longest, packing.limit
    ours = torch.compile(lambda: cudnn_ragged.attention(q, k, v, cu, cu, limit, limit, 0.125, 0), fullgraph=True)()
    assert far(ours, varlen_attn(q, k, v, cu, cu, longest, longest, window_size=(-1, 0))) < 5e-3


@pytest.mark.parametrize("K", [0, 1, 77, 700])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("scale", [1.0, 1.7])
@pytest.mark.parametrize("through", ["both", "logp", "entropy"])
def test_the_output_layers_statistics_against_float64(K, keep, scale, through, monkeypatch):
    from verl_core.training import logprob_triton

    V, D = 5003, 64
    monkeypatch.setattr(logprob_triton, "KEPT_SHARE", 1.0 if keep else 0.0)
    monkeypatch.setattr(logprob_triton, "CHUNK_BYTES", 200 * V * 2)
    torch.manual_seed(0)
    hidden = torch.randn(K, D, device=CUDA, dtype=torch.bfloat16, requires_grad=True)
    weight = (torch.randn(V, D, device=CUDA) / 8).bfloat16().requires_grad_()
    ids = torch.randint(0, V, (K,), device=CUDA)
    a, b = torch.randn(K, device=CUDA), torch.randn(K, device=CUDA)
    weigh = lambda logp, entropy: {"both": a * logp + b * entropy, "logp": a * logp, "entropy": b * entropy}[through]  # noqa: E731
    logp, entropy, square = logprob_triton.LinearStats.apply(hidden, weight, ids, scale, True, True)
    grads = torch.autograd.grad(weigh(logp, entropy).sum(), (hidden, weight))

    hidden64, weight64 = (x.detach().double().requires_grad_() for x in (hidden, weight))
    all_64 = (scale * hidden64 @ weight64.T).log_softmax(-1)
    entropy64 = -(all_64.exp() * all_64).sum(-1)
    want = all_64.gather(1, ids[:, None])[:, 0]
    want_grads = torch.autograd.grad(weigh(want, entropy64).sum(), (hidden64, weight64))
    for x, y in ((logp, want), (entropy, entropy64), (square, all_64.exp().square().sum(-1))):
        torch.testing.assert_close(x.double(), y, rtol=2e-2, atol=2e-2)  # logits are bf16
    if K:
        assert all(far(x, y) < 2e-2 for x, y in zip(grads, want_grads, strict=True))
    else:
        assert all(not x.any() for x in grads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_add_up_in_float32(dtype):
    from verl_core.training.fsdp import accumulate_triton

    torch.manual_seed(0)
    shapes = [(5000,), (1,), (64, 64), (3, 4096), (4097,)]
    parts = [[torch.randn(s, device=CUDA, dtype=dtype) for s in shapes] for _ in range(3)]
    sums = [torch.full(s, torch.nan, device=CUDA) for s in shapes]
    for i, part in enumerate(parts):
        accumulate_triton.add(sums, part, first=i == 0)
    for got, *want in zip(sums, *parts, strict=True):
        assert torch.equal(got, want[0].float() + want[1].float() + want[2].float())
