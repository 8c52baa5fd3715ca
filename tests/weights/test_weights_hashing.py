"""The hash against a slow one in plain integers, and what it has to notice."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weights_made import DTYPES, SHAPES, random_bits

from verl_core.config.errors import RunError
from verl_core.weights import hashing
from verl_core.weights.hashing import Hasher, compare, hashes_of, tensor_hash

M = (1 << 64) - 1


def slow_hash(data: bytes) -> int:
    total = len(data) * 0xBF58476D1CE4E5B9
    padded = data + bytes(8 - len(data) % 8)
    for i in range(len(padded) // 8):
        x = int.from_bytes(padded[8 * i : 8 * i + 8], "little") + (i + 1) * 0x9E3779B97F4A7C15 & M
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & M
        x = (x ^ x >> 27) * 0x94D049BB133111EB & M
        total += x
    total &= M
    return total - (1 << 64) if total >> 63 else total


@given(st.sampled_from(SHAPES), st.sampled_from(DTYPES), st.integers(0, 1000))
def test_it_is_the_slow_hash_of_the_bytes(shape, dtype, seed):
    tensor = random_bits(shape, dtype, seed)
    assert int(tensor_hash(tensor)) == slow_hash(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def test_chunks_views_and_layout_do_not_matter(monkeypatch):
    tensor = random_bits((123, 77), torch.bfloat16, 0)
    value = int(tensor_hash(tensor))
    monkeypatch.setitem(hashing._WORDS, "cpu", 5)
    assert int(tensor_hash(tensor)) == value
    assert int(tensor_hash(tensor.t().contiguous().t())) == value
    odd = torch.cat([torch.zeros(1, dtype=torch.bfloat16), tensor.view(-1)])[1:]  # not at a multiple of 8 bytes
    assert int(tensor_hash(odd)) == value


@given(st.integers(0, 1499), st.integers(0, 15), st.integers(0, 1499))
def test_one_bit_or_two_swapped_elements_change_it(at, bit, other):
    tensor = random_bits((1500,), torch.int16, 3)
    flipped, swapped = tensor.clone(), tensor.clone()
    flipped[at] ^= 1 << bit if bit < 15 else -(1 << 15)
    assert int(tensor_hash(flipped)) != int(tensor_hash(tensor))
    swapped[at], swapped[other] = tensor[other], tensor[at]
    assert (int(tensor_hash(swapped)) == int(tensor_hash(tensor))) == (tensor[at] == tensor[other]).item()


def test_negative_zero_is_not_zero_and_lengths_count():
    assert int(tensor_hash(torch.tensor([0.0]))) != int(tensor_hash(torch.tensor([-0.0])))
    assert len({int(tensor_hash(torch.zeros(n, dtype=torch.uint8))) for n in range(20)}) == 20


def test_the_first_wrong_tensor_is_named():
    hasher = Hasher()
    stream = [("a", torch.ones(2)), ("b", torch.ones(3)), ("c", torch.ones(4))]
    assert list(hasher.watch(stream)) == stream
    held = hashes_of([("c", torch.ones(4)), ("a", torch.ones(2)), ("b", torch.zeros(3)), ("more", torch.ones(1))])
    with pytest.raises(RunError, match=r"holds other bytes than were sent: b$"):
        compare(hasher.hashes(), held)
    with pytest.raises(RunError, match=r"does not hold it: a$"):
        compare(hasher.hashes(), {})
    compare(hasher.hashes(), hasher.hashes() | {"more": 1})


@pytest.mark.gpu
def test_a_gpu_gives_the_same_hash():
    tensor = random_bits((12345, 77), torch.bfloat16, 0)
    assert int(tensor_hash(tensor.cuda())) == int(tensor_hash(tensor))
