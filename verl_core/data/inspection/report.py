"""What `rlx data` prints for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

BAR = 40  # characters of the fullest bin
_LONG = ("prompt", "messages", "answers", "learned")
"""Fields that get lines of their own, below the short ones."""


def rows(found: Sequence[dict[str, Any]]) -> str:
    """Each row: its short fields, then the texts as they are."""
    return "\n\n".join(_row(row) for row in found) if found else "no rows"


def figures(found: dict[str, Any]) -> str:
    unit = found["unit"]
    lines = [
        f"{found['rows']:,} rows ({found['form']}), {found['duplicates']:,} duplicates, {found['broken']:,} broken"
    ]
    lines += [f"  {name}: {count:,}" for name, count in found["data_sources"].items()]
    for name in ("prompt_length", "answer_length"):
        if name in found:
            lines += ["", *_summary(f"{name.replace('_', ' ')}, {unit}", found[name])]
    lines.append("")
    if unit == "tokens":
        lines.append(
            f"over max_prompt_length={found['max_prompt_length']}: {found['overlong']:,} prompts, "
            f"{found['overlong_share']:.2%}"
        )
        if found["refused_by_template"]:
            lines.append(f"the chat template refuses {found['refused_by_template']:,} rows: see `rlx data check`")
    if against := found.get("against"):
        shared = f"{against['shared']:,} prompts, {against['shared_share']:.2%}"
        lines.append(f"also among the other {against['rows']:,} rows: {shared}")
    return "\n".join(lines).rstrip()


def faults(found: dict[str, Any]) -> str:
    """A line for each fault, and the sum of them."""
    lines = [f"{f['file']} row {f['row']}: {f['kind']}: {f['said']}" for f in found["faults"]]
    checked = " and ".join(f"{count:,} {split}" for split, count in found["rows"].items())
    counts = ", ".join(f"{count:,} {kind}" for kind, count in found["counts"].items()) or "nothing wrong"
    return "\n".join([*lines, f"{checked} rows: {counts}"])


def _row(row: dict[str, Any]) -> str:
    short = [f"{name}: {_plain(value)}" for name, value in row.items() if name not in _LONG]
    long = [f"--- {name}\n{part}" for name in _LONG if name in row for part in _texts(row[name])]
    return "\n".join([*short, *long])


def _texts(value: Any) -> list[str]:
    return [_plain(part) for part in value] if isinstance(value, list) else [_plain(value)]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)


def _summary(name: str, s: dict[str, Any]) -> list[str]:
    most = max(count for _, _, count in s["histogram"])
    width = len(str(s["max"]))
    return [
        f"{name}: min {s['min']}, median {s['median']}, p95 {s['p95']}, max {s['max']}",
        *(
            f"  {low:>{width}}-{high:<{width}} {'#' * round(BAR * count / most):<{BAR}} {count:,}"
            for low, high, count in s["histogram"]
        ),
    ]
