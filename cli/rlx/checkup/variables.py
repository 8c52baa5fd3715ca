"""Environment variables that change a run without saying so."""

import os
from collections.abc import Iterator
from pathlib import Path

from rlx.checkup.finding import Finding, State, Subject
from verl_core.config.effective import has_nvidia_driver

SHADOWED = ("torch", "transformers", "ray", "vllm", "sglang", "numpy")
"""Packages that a folder on PYTHONPATH would replace, in every environment."""
LIBRARIES = ("libnccl.so*", "libcudart.so*", "libcudnn.so*", "libtorch.so*", "libstdc++.so*")
"""Libraries that a folder on LD_LIBRARY_PATH would put in place of the environment's own."""


def variables(subject: Subject) -> Iterator[Finding]:
    """One finding a variable, or that there is none."""
    found = [*_no_gpu_visible(subject), *_shadows(), *_preloads(), *_libraries(), *_blocking()]
    yield from found or [Finding("variables", "ok", "none set that changes a run")]


def _no_gpu_visible(subject: Subject) -> Iterator[Finding]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None and named.strip() in ("", "-1") and subject.uses_gpu and has_nvidia_driver():
        state: State = "fail" if subject.device == "cuda" else "warn"
        yield Finding(
            "variables", state, f"CUDA_VISIBLE_DEVICES={named!r} hides every GPU", "unset CUDA_VISIBLE_DEVICES"
        )


def _shadows() -> Iterator[Finding]:
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        for name in SHADOWED:
            if (Path(folder) / name).is_dir() or (Path(folder) / f"{name}.py").is_file():
                found = f"PYTHONPATH holds {folder}, whose {name} takes the place of the environment's"
                yield Finding("variables", "warn", found, "unset PYTHONPATH, or leave that folder out")


def _preloads() -> Iterator[Finding]:
    if named := os.environ.get("LD_PRELOAD"):
        yield Finding(
            "variables", "warn", f"LD_PRELOAD={named} goes into every job", "unset LD_PRELOAD unless it is meant"
        )


def _libraries() -> Iterator[Finding]:
    for folder in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)):
        names = sorted({path.name.split(".so")[0] for pattern in LIBRARIES for path in Path(folder).glob(pattern)})
        if names:
            found = f"LD_LIBRARY_PATH holds {folder} with {', '.join(names)}, which the environment's may give way to"
            yield Finding("variables", "warn", found, "leave that folder out unless it is meant")


def _blocking() -> Iterator[Finding]:
    if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        yield Finding(
            "variables", "warn", "CUDA_LAUNCH_BLOCKING=1 makes every kernel wait", "unset CUDA_LAUNCH_BLOCKING"
        )
