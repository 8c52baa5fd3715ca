"""Dockerfiles for rlx: one that makes its environments, one on top of an image that has torch and an engine."""

import re
import sys
from collections.abc import Iterable, Sequence

from rlx import templates
from rlx.env import lockfile
from verl_core.config.errors import UserError

IMAGE = re.compile(r"[\w][\w.\-/:@]*")  # host:port/path:tag@digest


def own(environments: Iterable[Sequence[str]], words: Sequence[str]) -> str:
    """The Dockerfile of an image with these environments (sets of extras); `words` repeat the command in its head."""
    shown = dict.fromkeys(",".join(extras) for extras in environments)
    values = {
        "environments": " ".join(shown),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "uv": _uv_version(),
        "words": _after_a_blank(words),
    }
    return templates.fill("docker/Dockerfile", values)


def vendor(image: str, extras: Iterable[str], words: Sequence[str]) -> str:
    """The Dockerfile on top of `image`. Its engine is the image's own: extras that exclude others are left out.

    Raises UserError for a name that is no image's.
    """
    if not IMAGE.fullmatch(image):
        raise UserError(
            f"--vendor {image!r} is not the name of an image", "for example --vendor vllm/vllm-openai:v0.26.0"
        )
    added = [extra for extra in extras if not lockfile.excludes(extra)]
    values = {"image": image, "extras": ",".join(added), "uv": _uv_version(), "words": _after_a_blank(words)}
    return templates.fill("docker/Dockerfile.vendor", values)


def _uv_version() -> str:
    return lockfile.locked_version("uv")[-1]


def _after_a_blank(words: Sequence[str]) -> str:
    return f" {templates.shell_words(words)}" if words else ""
