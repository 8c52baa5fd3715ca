"""Packing is lossless, keeps to its buckets, and hands out views where it can."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weights_made import random_bits, tensors

from verl_core.config.errors import RunError
from verl_core.weights.buckets import Bucket, as_bytes, buffers, pack, unpack

CPU = torch.device("cpu")


def through(named, size):
    """Packed, described as JSON, and unpacked: copies of what comes out, and how many buckets it took."""
    space, count = buffers(CPU, size), 0

    def travelled():
        nonlocal count
        for bucket in pack(named.items(), space):
            count += 1
            yield Bucket.described(json.loads(json.dumps(bucket.describe())), space)

    return [(piece.name, tensor.clone()) for piece, tensor in unpack(travelled())], count


@given(named=tensors(), size=st.sampled_from([64, 200, 1024, 1 << 20]))
def test_what_comes_out_is_what_went_in(named, size):
    out, _ = through(named, size)
    assert [name for name, _ in out] == list(named)
    for name, tensor in out:
        assert (tensor.shape, tensor.dtype) == (named[name].shape, named[name].dtype)
        assert torch.equal(as_bytes(tensor), as_bytes(named[name]))


def test_strided_tensors_travel_in_order():
    x = torch.arange(60.0).view(5, 12).t()[::2]
    (_, out), *_ = through({"x": x}, 4096)[0]
    assert torch.equal(out, x)


def test_a_tensor_that_fits_is_not_cut_and_costs_no_memory_of_its_own():
    named = {"a": torch.ones(60, dtype=torch.uint8), "b": torch.ones(100, dtype=torch.uint8)}
    space = buffers(CPU, 128)
    for i, (_, tensor) in enumerate(unpack(pack(named.items(), space))):
        assert tensor.untyped_storage().data_ptr() == space[i].untyped_storage().data_ptr()


def test_a_buffer_is_written_only_when_it_is_free():
    named = {str(i): torch.full((64,), i, dtype=torch.uint8) for i in range(6)}
    log = []
    for bucket in pack(named.items(), buffers(CPU, 64), lambda buffer: log.append(("free", buffer))):
        log.append(("sent", bucket.buffer))
    assert log == [(what, turn % 2) for turn in range(6) for what in ("free", "sent")]


def test_a_tensor_is_read_before_the_next_is_gathered():
    """A trainer may reuse the memory in which it gathers."""
    shared = torch.zeros(16)

    def gathered():
        for i in range(4):
            shared.fill_(i)
            yield str(i), shared

    assert [t.unique().tolist() for _, t in unpack(pack(gathered(), buffers(CPU, 4096)))] == [[0], [1], [2], [3]]


def test_with_room_everything_is_copied_there():
    named = {"whole": random_bits((3, 4), torch.bfloat16, 1), "cut": random_bits((99,), torch.float32, 2)}
    mine = {name: torch.empty_like(t) for name, t in named.items()}
    for piece, tensor in unpack(pack(named.items(), buffers(CPU, 128)), lambda piece: mine[piece.name]):
        assert tensor is mine[piece.name]
    assert all(torch.equal(as_bytes(mine[name]), as_bytes(t)) for name, t in named.items())


def test_an_end_within_a_tensor_is_an_error():
    first, *_ = pack([("x", torch.ones(100))], buffers(CPU, 128))
    with pytest.raises(RunError, match="within a tensor"):
        list(unpack([first]))
