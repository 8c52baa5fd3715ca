"""Weights through a folder that trainer and engines share: safetensors, for engines on machines that no fast network
joins. A version is a folder with a manifest; it gets its name when all of it is on the disk."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from verl_core.config.errors import RunError, UserError
from verl_core.training.protocol import TrainEngine
from verl_core.weights.buckets import BUCKET_BYTES, Piece, cast, dtype_name
from verl_core.weights.hashing import Hasher
from verl_core.weights.inbox import Room
from verl_core.weights.sending import Clock, Delivery, Sent, Tell, answers_of, drained

MANIFEST = "manifest.json"
_PARTIAL = ".partial_"  # and a version: a folder until it is whole
_LOOK_EVERY_S = 0.05  # shared file systems tell nobody that a file has come


class DiskSender:
    """The first rank of the trainer writes. The latest version stays for an engine that starts again, an older one goes
    when every engine has taken its successor.

    Args:
        folder: where versions are written; made when it is missing. Engines see it under the same path.
        file_bytes: tensors are collected in host memory up to this size, then written as one file.
        tells, dtype, verify, timeout_s: as of BroadcastSender.

    Raises:
        UserError: the folder cannot be made.
    """

    def __init__(
        self,
        tells: Sequence[Tell],
        *,
        folder: str | Path,
        dtype: torch.dtype | None = None,
        file_bytes: int = 4 * BUCKET_BYTES,
        verify: bool = False,
        timeout_s: float = 300.0,
    ):
        self._tells, self._folder, self._dtype, self._file_bytes = tells, Path(folder).absolute(), dtype, file_bytes
        self._verify, self._timeout_s = verify, timeout_s
        self._writer = uuid.uuid4().hex  # stands in every manifest: two runs in one folder notice each other
        if tells:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f"weights.folder={self._folder} cannot be made: {error.strerror}", "name another folder"
                ) from error
            self._drop_partial()
            answers_of([tell("weights_open", type="disk", timeout_s=timeout_s) for tell in tells], timeout_s)

    def send(self, engine: TrainEngine, version: int) -> Sent:
        clock = Clock()
        with drained(cast(engine.named_weights(), self._dtype)) as stream:
            if not self._tells:
                return Sent(version)
            try:
                place, size = self._write(stream, version)
            except (OSError, SafetensorError) as error:
                self._drop_partial()
                raise RunError(
                    f"weights of version {version} could not be written below {self._folder}: {error}",
                    "free space there, or choose another weights.type",
                ) from error
        message = {"version": version, "verify": self._verify, "folder": str(place), "writer": self._writer}
        delivery = Delivery(self._tells, message, lambda: None)
        delivery.finish(self._timeout_s)
        for old in self._folder.glob("version_*"):
            if old != place:
                shutil.rmtree(old, ignore_errors=True)
        return Sent(version, size, clock.seconds)

    def _write(self, stream: Iterator[tuple[str, Tensor]], version: int) -> tuple[Path, int]:
        place = self._folder / f"version_{version}"
        partial = self._folder / f"{_PARTIAL}{version}"
        shutil.rmtree(place, ignore_errors=True)
        partial.mkdir()
        hasher = Hasher()
        files: dict[str, int] = {}
        for tensors in _collected(hasher.watch(stream) if self._verify else stream, self._file_bytes):
            name = f"weights-{len(files):05d}.safetensors"
            save_file(tensors, partial / name)
            _to_disk(partial / name)
            files[name] = (partial / name).stat().st_size
        manifest = {"version": version, "writer": self._writer, "files": files, "hashes": hasher.hashes()}
        (partial / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        for path in (partial / MANIFEST, partial):
            _to_disk(path)
        partial.rename(place)
        _to_disk(self._folder)
        return place, sum(files.values())

    def _drop_partial(self) -> None:
        """What a write that failed, or a trainer that was killed, has left."""
        for left_over in self._folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(left_over, ignore_errors=True)

    def close(self) -> None:
        """The latest version stays on the disk."""


class DiskReceiver:
    def __init__(self, device: torch.device, timeout_s: float):
        self._device, self._timeout_s = device, timeout_s
        self.hashes: dict[str, int] = {}

    def stream(self, message: dict[str, Any], room: Room | None) -> Iterator[tuple[str, Tensor]]:
        folder = Path(message["folder"])
        manifest = self._manifest(folder, message["version"], message["writer"])
        for name, size in manifest["files"].items():
            found = (folder / name).stat().st_size if (folder / name).exists() else 0
            if found != size:
                raise RunError(f"{folder / name} has {found} bytes, its manifest says {size}")
        for file in manifest["files"]:
            with safe_open(folder / file, framework="pt", device=str(self._device)) as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a mapping
                    tensor = tensors.get_tensor(name)
                    if room is not None:
                        piece = Piece(name, dtype_name(tensor.dtype), tuple(tensor.shape), 0, 0, tensor.nbytes)
                        tensor = room(piece).copy_(tensor)
                    yield name, tensor
        self.hashes = manifest["hashes"]

    def _manifest(self, folder: Path, version: int, writer: str) -> dict[str, Any]:
        deadline = time.monotonic() + self._timeout_s
        while not (folder / MANIFEST).exists():
            if time.monotonic() > deadline:
                raise RunError(
                    f"{folder / MANIFEST} did not appear within {self._timeout_s:g} s",
                    "weights.type=disk needs a folder that trainer and engines see under one path",
                )
            time.sleep(_LOOK_EVERY_S)
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["version"] != version:
            raise RunError(f"{folder} holds version {manifest['version']}, not {version}")
        if manifest["writer"] != writer:
            raise RunError(f"{folder} was written by another run", "give each run a weights.folder of its own")
        return manifest

    def close(self) -> None:
        pass


def _collected(stream: Iterator[tuple[str, Tensor]], limit: int) -> Iterator[dict[str, Tensor]]:
    """Copies in host memory, at least one tensor at a time. A tied tensor becomes two: a file stores no ties."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in stream:
        if tensors and sum(t.nbytes for t in tensors.values()) + tensor.nbytes > limit:
            yield tensors
            tensors = {}
        tensors[name] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    if tensors:
        yield tensors


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
