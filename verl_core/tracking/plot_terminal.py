"""The same curves as text, for a terminal (plotext)."""

from collections.abc import Sequence
from typing import Any

import plotext

from verl_core.tracking.curves import FLAT_MARGIN, Curve, Panel, Run, headline, is_flat, panels

PANEL_HEIGHT = 13
TICKS = 6
WIDE_ENOUGH = 100  # columns from which two panels stand side by side


def terminal_text(runs: Sequence[Run], width: int, colour: bool) -> str:
    """The panels that have data, in `width` columns, without a newline at the end. Several runs are told apart by their
    number, so that no colour is needed."""
    shown = [p for p in panels(runs) if any(r.curve(p.metric) for r in runs)]
    columns = 2 if width >= WIDE_ENOUGH else 1
    pictures = [_panel(panel, runs, width // columns) for panel in shown]
    rows = [pictures[i : i + columns] for i in range(0, len(pictures), columns)]
    blocks = [headline(runs) if len(runs) == 1 else "   ".join(f"{i} {r.name}" for i, r in enumerate(runs, 1))]
    for row in rows:
        block = row[0] if len(row) == 1 else row[0].hstack(row[1])
        blocks.append(block.string(colorless=not colour).rstrip("\n"))
    return "\n".join(blocks)


def _panel(panel: Panel, runs: Sequence[Run], width: int) -> Any:
    """One diagram as plotext's matrix of characters."""
    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, PANEL_HEIGHT)
    held_out = runs[0].held_out(panel.held_out) if len(runs) == 1 else None
    title = f"{panel.title}, {panel.unit}" if panel.unit else panel.title
    figure.title(f"{title} (o held out)" if held_out else title)
    for number, run in enumerate(runs, 1):
        _draw(run.curve(panel.metric), "braille" if len(runs) == 1 else str(number), line=True)
        if held_out:
            _draw(held_out, "o", line=False)
    _rulers([run.curve(panel.metric) for run in runs] + ([held_out] if held_out else []))
    return figure.build().copy()


def _draw(curve: Curve, marker: str, line: bool) -> None:
    if curve:
        plotext.figure.draw(plotext.figure.signal(curve.steps, curve.values, marker=marker).lines(line))


def _rulers(curves: Sequence[Curve]) -> None:
    """Whole steps on the x axis, and no magnified rounding on the y axis."""
    steps = [s for c in curves for s in c.steps]
    first, last = min(steps), max(steps)
    count = min(TICKS, last - first + 1)
    plotext.figure.ruler("x").ticks(
        sorted({first + round(i * (last - first) / max(1, count - 1)) for i in range(count)})
    )
    low, high = min(v for c in curves for v in c.values), max(v for c in curves for v in c.values)
    if is_flat(low, high):
        plotext.figure.ruler("y").lim(low - FLAT_MARGIN, high + FLAT_MARGIN)
