"""Buckets that two processes of one machine see: CUDA memory by its IPC handle, host memory by a file in
memory."""

from __future__ import annotations

from typing import IO, Any

import torch
from torch import Tensor

from verl_core.config.errors import MachineError
from verl_core.rollout.child.memory import memory_file, path_of


class SharedBuffer:
    """`tensor`: flat uint8 of `size` bytes on `device`; `handle`: JSON by which another process opens it."""

    def __init__(self, device: torch.device, size: int):
        self._file: IO[bytes] | None = None
        self.handle: dict[str, Any]
        if device.type == "cuda":
            self.tensor = torch.empty(size, dtype=torch.uint8, device=device)
            self.handle = {"uuid": _uuid(self.tensor.device), "cuda": _cuda_handle(self.tensor)}
            return
        self._file = memory_file(2 * size)  # there are two of them, and neither takes memory before it is written
        path = path_of(self._file)
        self.tensor = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
        self.handle = {"path": path, "size": size}

    def forget(self) -> None:
        """Once the other process has opened it: the handle is of no use then."""
        if self._file is not None:
            self._file.close()


def opened(handle: dict[str, Any], device: torch.device) -> Tensor:
    """The same memory in another process. Raises MachineError when it lies on another GPU."""
    if "path" in handle:
        return torch.from_file(handle["path"], shared=True, size=handle["size"], dtype=torch.uint8)
    here = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    if (mine := _uuid(here)) != handle["uuid"]:
        raise MachineError(
            f"weights.type=ipc: the trainer's GPU is {handle['uuid']}, the engine's {mine}",
            "weights.type=broadcast serves an engine on other GPUs",
        )
    arguments = [bytes.fromhex(a[4:]) if isinstance(a, str) else a for a in handle["cuda"]]
    storage = torch.UntypedStorage._new_shared_cuda(here.index, *arguments[1:])
    return torch.empty(0, dtype=torch.uint8, device=here).set_(storage)  # type: ignore[call-overload]


def _cuda_handle(tensor: Tensor) -> list[Any]:
    """torch's own description of a storage for another process, with its byte strings as text."""
    return [f"hex:{a.hex()}" if isinstance(a, bytes) else a for a in tensor.untyped_storage()._share_cuda_()]


def _uuid(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)
