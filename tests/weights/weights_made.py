"""Tensors and changes of them for hypothesis: any bit pattern, odd shapes, ties."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from verl_core.weights.delta.codec import bits

SHAPES = [(), (1,), (0,), (7,), (2, 0, 3), (1, 1, 1), (5, 9), (4, 3, 5), (257, 9), (1500,)]
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int64]
FLOATING = [dtype for dtype in DTYPES if dtype.is_floating_point]
CHANGES = ["none", "all", "some", "unit", "special"]


def special(dtype: torch.dtype) -> Tensor:
    """NaN of two payloads and of the other sign, infinities, zeros of both signs, and denormals: the smallest of both
    signs and the largest."""
    info = torch.finfo(dtype)
    named = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0, info.tiny], dtype=dtype)
    nan, _, _, zero, minus, tiny = bits(named)
    further = torch.stack([nan + 1, nan | minus, zero + 1, minus + 1, tiny - 1])
    return torch.cat([bits(named), further]).view(dtype)


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    size = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return raw.view(dtype).view(shape)


def changed(tensor: Tensor, how: str, seed: int) -> Tensor:
    """A changed copy: every element, a random tenth, that tenth by one unit in the last place, or to special values."""
    draw = torch.Generator().manual_seed(seed)
    if how == "none":
        return tensor.clone()
    other = random_bits(tuple(tensor.shape), tensor.dtype, seed)
    if how == "all":
        return other
    new = bits(tensor).clone()
    chosen = torch.rand(tensor.shape, generator=draw) < 0.1
    if how == "unit":
        new[chosen] += 1
    elif how == "special" and tensor.is_floating_point():
        values = bits(special(tensor.dtype))
        new[chosen] = values[torch.randint(0, len(values), tensor.shape, generator=draw)][chosen]
    else:
        new[chosen] = bits(other)[chosen]
    return new.view(tensor.dtype)


@st.composite
def tensors(draw: st.DrawFn, most: int = 6) -> dict[str, Tensor]:
    """Named tensors; the last may be a second name of the first."""
    kinds = draw(st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(DTYPES)), min_size=1, max_size=most))
    seed = draw(st.integers(0, 2**31))
    named = {f"layer.{i}": random_bits(shape, dtype, seed + i) for i, (shape, dtype) in enumerate(kinds)}
    if draw(st.booleans()):
        named["tied"] = named["layer.0"]
    return named


@st.composite
def changes(draw: st.DrawFn, named: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same names after a change; tied names stay tied."""
    seed = draw(st.integers(0, 2**31))
    new = {name: changed(t, draw(st.sampled_from(CHANGES)), seed + i) for i, (name, t) in enumerate(named.items())}
    if "tied" in named:
        new["tied"] = new["layer.0"]
    return new
