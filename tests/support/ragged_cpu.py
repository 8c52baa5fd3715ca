"""cuDNN's ragged attention as an operator of the CPU, written out, so that what is compiled around it can be seen."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from verl_core.models import attention, cudnn_ragged


def _attended(q: Tensor, k: Tensor, v: Tensor, cu_B1: Tensor, key_cu_B1: Tensor, scale: float) -> Tensor:
    """Sequences one by one; the last query of each stands at its last key."""
    pieces = []
    ends = zip(cu_B1.tolist(), cu_B1[1:].tolist(), key_cu_B1.tolist(), key_cu_B1[1:].tolist(), strict=False)
    for begin, end, key_begin, key_end in ends:
        if begin < end:
            T, U = end - begin, key_end - key_begin
            sees_TU = torch.ones(T, U, dtype=torch.bool).tril(U - T)
            own = (q[begin:end], k[key_begin:key_end], v[key_begin:key_end])
            q1, k1, v1 = (x.transpose(0, 1)[None] for x in own)
            out = F.scaled_dot_product_attention(q1, k1, v1, sees_TU, scale=scale, enable_gqa=True)
            pieces.append(out[0].transpose(0, 1))
    out_NHD = torch.cat(pieces)
    return torch.cat([out_NHD, out_NHD.new_zeros(len(q) - len(out_NHD), *out_NHD.shape[1:])]).contiguous()


def _forward(q, k, v, cu, key_cu, limit, key_limit, scale, window):
    assert not window and int(cu.diff().max()) <= int(limit) and int(key_cu.diff().max()) <= int(key_limit)
    return _attended(q, k, v, cu, key_cu, scale), q.new_zeros(*q.shape[:2], 1, dtype=torch.float32)


def _backward(d_out, q, k, v, out, stats, cu, key_cu, limit, key_limit, scale, window):
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        found = torch.autograd.grad(_attended(*inputs, cu, key_cu, scale), inputs, d_out)
    return tuple(x.contiguous() for x in found)


@contextmanager
def ragged_kernel_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within it attention without windows goes by the operator, as on a Hopper GPU."""
    monkeypatch.setattr(cudnn_ragged, "usable", lambda device: True)
    monkeypatch.setattr(attention, "_has_kernel", lambda query, value: True)
    with torch.library._scoped_library("rlx", "IMPL") as library:
        library.impl("ragged_attention", _forward, "CPU")
        library.impl("ragged_attention_backward", _backward, "CPU")
        yield
