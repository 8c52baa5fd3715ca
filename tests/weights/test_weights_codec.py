"""Changes travel bit for bit, are never longer than the tensor, and take few bytes where few units changed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weights_made import CHANGES, DTYPES, SHAPES, changed, random_bits

from verl_core.weights.buckets import as_bytes
from verl_core.weights.delta.codec import apply, bits, encode
from verl_core.weights.delta.placement import Box

WHAT = st.tuples(st.sampled_from(SHAPES), st.sampled_from(DTYPES), st.sampled_from(CHANGES), st.integers(0, 1000))


@given(WHAT)
def test_applying_gives_the_new_tensor(what):
    shape, dtype, how, seed = what
    old = random_bits(shape, dtype, seed)
    new = changed(old, how, seed + 1)
    payload, note = encode(bits(new).view(-1), bits(old).view(-1))
    assert payload.numel() <= max(new.nbytes, 0) or note["changed"] == 0
    assert note["changed"] == int((bits(new) != bits(old)).sum())
    apply(bits(old), payload, note)
    assert torch.equal(as_bytes(old), as_bytes(new))


@given(WHAT, st.integers(0, 2))
def test_a_part_of_a_larger_tensor_changes_in_place(what, axis):
    """A shard of any axis: rows, columns, or a block in between."""
    _, dtype, how, seed = what
    whole = random_bits((6, 7, 8), dtype, seed)
    before = whole.clone()
    start, size = [0, 0, 0], [6, 7, 8]
    start[axis], size[axis] = 2, 3
    part = Box(tuple(start), tuple(size)).of(whole)
    new = changed(part.contiguous(), how, seed + 1)
    apply(bits(part), *encode(bits(new).view(-1), bits(part.contiguous()).view(-1)))
    assert torch.equal(as_bytes(part), as_bytes(new))
    Box(tuple(start), tuple(size)).of(before).copy_(part)
    assert torch.equal(as_bytes(whole), as_bytes(before))  # nothing outside the part


@pytest.mark.parametrize("gap", [1, 254, 255, 256, 510, 511, 65534, 65535, 65536, 200_000])
@pytest.mark.parametrize("ends", [False, True])
def test_gaps_of_every_length(gap, ends):
    old = torch.zeros(gap * 3 + 5, dtype=torch.int16)
    new = old.clone()
    new[[gap, 2 * gap, 3 * gap]] = torch.tensor([1, -30000, 7], dtype=torch.int16)
    if ends:
        new[[0, -1]] = 1
    apply(old, *encode(new, old))
    assert torch.equal(old, new)


@pytest.mark.parametrize("ratio", [0.005, 0.01, 0.03])
def test_bytes_for_each_changed_element(ratio):
    draw = torch.Generator().manual_seed(0)
    old = bits(torch.randn(1_000_000, generator=draw).bfloat16())
    chosen = torch.rand(len(old), generator=draw) < ratio
    for kind, most in (("unit", 2.5), ("any", 3.5)):
        step = torch.ones_like(old) if kind == "unit" else random_bits((len(old),), torch.int16, 1)
        payload, note = encode(torch.where(chosen, old + step, old), old)
        assert note["how"] == "delta"
        assert payload.numel() / note["changed"] < most


def test_everything_changed_is_sent_as_it_is():
    old, new = random_bits((1000,), torch.int16, 0), random_bits((1000,), torch.int16, 1)
    payload, note = encode(new, old)
    assert note["how"] == "whole"
    assert payload.numel() == new.nbytes
