"""Pickles are read and never run: a poisoned file is refused, and nothing that it asks for happens."""

import copyreg
import functools
import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from verl_core.checkpoint.foreign.dtensor import DTENSOR, piece_of
from verl_core.checkpoint.foreign.restricted_pickle import load
from verl_core.checkpoint.foreign.torch_file import TORCH, TorchFile
from verl_core.config.errors import UserError

MARK = "touched"  # the file that a poisoned pickle would make in the working directory


class Calls:
    """Pickles to a call of a function with arguments."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def protocol_0(name: str, *arguments: str) -> bytes:
    """GLOBAL and REDUCE, the name spelled as given."""
    return b"c" + name.replace(" ", "\n").encode() + b"\n(" + b"".join(map(text, arguments)) + b"tR."


SHELL = f"touch {MARK}"
CODE = f"open({MARK!r}, 'w')"
POISONED = {
    "os.system": protocol_0("os system", SHELL),
    "posix.system": protocol_0("posix system", SHELL),
    "eval": protocol_0("builtins eval", CODE),
    "exec of python 2": protocol_0("__builtin__ exec", CODE),
    "subprocess": pickle.dumps(Calls(__import__("subprocess").check_call, ["touch", MARK])),
    "partial": pickle.dumps(Calls(functools.partial, eval, CODE)),
    "getattr": pickle.dumps(Calls(getattr, "text", "format")),
    "torch.load": protocol_0("torch load", "model.pt"),
    "nested name": b"\x80\x04" + text("torch") + text("serialization.os.system") + b"\x93" + text(SHELL) + b"\x85R.",
    "dotted allowed name": b"\x80\x04" + text("collections") + text("OrderedDict.__init__") + b"\x93.",
    "STACK_GLOBAL of no strings": b"\x80\x04K\x01K\x02\x93.",
    "INST": b"(S'" + SHELL.encode() + b"'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nS'" + SHELL.encode() + b"'\no.",
    "NEWOBJ": b"\x80\x02cos\nsystem\n" + text(SHELL) + b"\x85\x81.",
    "state of a function": b"ctorch._utils\n_rebuild_tensor_v2\n(N}" + text("__code__") + text("x") + b"stb.",
    "state of a class": b"ccollections\nOrderedDict\n(N}" + text("__reduce__") + text("x") + b"stb.",
    "state of a dtype": b"ctorch\nfloat32\n(N}" + text("itemsize") + text("x") + b"stb.",
    "slots of a record": b"ctorch\nTensor\n)R(N}" + text("arguments") + b"N" + b"stb\x85ctorch\nTensor\n\x92.",
    "class with __setstate__": protocol_0("logging.config dictConfig", "x"),
    "persistent id": b"\x80\x02" + text("os.system") + b"Q.",
    "persistent id of protocol 0": b"Pos.system\n.",
    "storage of no type": b"\x80\x02(" + text("storage") + text("eval") + text("0") + text("cpu") + b"K\x01tQ.",
    "storage that is absent": b"\x80\x02("
    + text("storage")
    + b"ctorch\nFloatStorage\n"
    + text("../../x")
    + text("cpu")
    + b"K\x01tQ.",
    "tensor without storage": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(NK\x00)))tR.",
    "cut": pickle.dumps({"a": list(range(100))})[:-20],
    "memo that is absent": b"\x80\x02h\x05.",
    "empty": b"",
    "text": b"#!/bin/sh\ntouch " + MARK.encode(),
}


def file_of(folder: Path, pickled: bytes) -> Path:
    """As torch.save writes it, around any pickle."""
    path = folder / "model_world_size_1_rank_0.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickled)
        archive.writestr("model/data/0", b"\0" * 64)
    return path


@pytest.mark.parametrize("pickled", POISONED.values(), ids=POISONED)
def test_a_poisoned_file_is_refused_and_does_nothing(tmp_path, monkeypatch, pickled):
    monkeypatch.chdir(tmp_path)
    code = TORCH["torch._utils", "_rebuild_tensor_v2"]
    with pytest.raises(UserError, match=r"model_world_size_1_rank_0.pt is (refused|not a pickle)"):
        TorchFile(file_of(tmp_path, pickled), DTENSOR)
    assert not (tmp_path / MARK).exists()
    assert TORCH["torch._utils", "_rebuild_tensor_v2"] is code


def test_the_name_that_was_asked_for_is_told(tmp_path):
    with pytest.raises(UserError, match=r"it calls for posix\.system, which no such checkpoint contains"):
        TorchFile(file_of(tmp_path, POISONED["posix.system"]))


def test_an_extension_of_the_process_is_no_way_in():
    """EXT1 reads a table that any import may have filled, and a cache behind it that is not asked for names."""
    copyreg.add_extension("os", "system", 7)
    try:
        assert pickle.loads(b"\x82\x07.").__name__ == "system"  # now cached
        with pytest.raises(UserError, match=r"calls for os\.system"):
            load(b"\x82\x07" + text("true") + b"\x85R.", TORCH, "file")
        with pytest.raises(UserError, match="unregistered extension code"):
            load(b"\x82\x08.", TORCH, "file")
    finally:
        copyreg.remove_extension("os", "system", 7)
        copyreg.clear_extension_cache()


@pytest.mark.parametrize(
    ("shape", "stride", "offset"), [((17,), (1,), 0), ((4, 4), (5, 1), 0), ((1,), (1,), 16), ((2,), (-1,), 1)]
)
def test_a_tensor_beyond_its_storage_is_refused(tmp_path, shape, stride, offset):
    values = [offset, shape, stride]
    body = b"".join(pickle.dumps(value, protocol=2)[2:-1] for value in values)
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x10tQ"
    with pytest.raises(UserError, match="a tensor of shape"):
        TorchFile(file_of(tmp_path, b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + body + b"tR."))


def test_a_cut_file_is_told(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"a": torch.ones(100)}, path)
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"model.pt is truncated, or not a file of torch.save"):
            TorchFile(path)


def test_the_other_byte_order_is_refused(tmp_path):
    path = file_of(tmp_path, pickle.dumps({}))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("model/byteorder", b"big")
    with pytest.raises(UserError, match="the other byte order"):
        TorchFile(path)


def test_tensors_are_those_of_torch_load(tmp_path):
    shared = torch.arange(24, dtype=torch.int64)
    saved = OrderedDict(
        a=torch.randn(3, 4),
        half=torch.randn(2, 3).bfloat16(),
        parameter=torch.nn.Parameter(torch.randn(2)),
        scalar=torch.tensor(3.5, dtype=torch.float64),
        empty=torch.empty(0, 5),
        transposed=shared.view(4, 6).t(),
        part=shared[5:9],
        flags=torch.tensor([True, False]),
    )
    saved._metadata = {"": {"version": 1}}
    torch.save(saved, tmp_path / "model.pt")
    read = TorchFile(tmp_path / "model.pt").value
    for name, tensor in saved.items():
        got = read[name].view()
        assert got.dtype == tensor.dtype and torch.equal(got, tensor.detach()), name
    assert piece_of(read["a"]).shape == (3, 4) and piece_of("text") is None


def test_a_file_inside_another_is_read_in_place(tmp_path):
    inner = io.BytesIO()
    torch.save(torch.arange(5.0), inner)
    path = tmp_path / "many"
    path.write_bytes(b"before" + inner.getvalue() + b"behind")
    assert torch.equal(TorchFile(path, start=6, length=len(inner.getvalue())).value.view(), torch.arange(5.0))
