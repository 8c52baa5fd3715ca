"""A run, or several in comparison, as one picture (matplotlib)."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from verl_core.config.errors import UserError
from verl_core.tracking.curves import FLAT_MARGIN, Panel, Run, headline, is_flat, panels
from verl_core.tracking.summary import VAL_PREFIX

# Okabe and Ito's palette: told apart with every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, GRID = "#333333", "#e6e6e6"


def draw(runs: Sequence[Run], out: Path) -> None:
    """Writes the picture; its format follows the ending (png, svg, pdf, ...). Raises UserError for an ending that
    matplotlib does not know, or a place that cannot be written."""
    figure = Figure(figsize=(12, 6.4), dpi=150, layout="constrained")
    kinds = figure.canvas.get_supported_filetypes()
    if out.suffix[1:].lower() not in kinds:
        raise UserError(
            f"--out {out}: unknown picture format {out.suffix or '(no ending)'}", f"endings: {', '.join(sorted(kinds))}"
        )
    figure.suptitle(headline(runs), fontsize=13, fontweight="bold", color=INK)
    for axes, panel in zip(figure.subplots(2, 3).flat, panels(runs), strict=True):
        _panel(axes, panel, runs)
    if len(runs) > 1:
        handles = [Line2D([], [], color=_colour(i), linewidth=2, label=run.name) for i, run in enumerate(runs)]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(runs), 4), frameon=False)
    try:
        figure.savefig(out)
    except OSError as e:
        raise UserError(f"cannot write {out}: {e.strerror}", "choose another --out") from e


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _panel(axes: Axes, panel: Panel, runs: Sequence[Run]) -> None:
    alone = len(runs) == 1
    drawn = False
    for index, run in enumerate(runs):
        curve = run.curve(panel.metric)
        axes.plot(
            curve.steps, curve.values, color=_colour(index), linewidth=1.6, marker="." if len(curve.steps) == 1 else ""
        )
        drawn |= bool(curve)
        if held_out := run.held_out(panel.held_out):
            colour = _colour(1) if alone else _colour(index)
            axes.plot(
                held_out.steps, held_out.values, color=colour, linewidth=1.2, linestyle="--", marker="o", markersize=4
            )
            drawn = True
        if panel.metric.startswith("warmup/") and alone:
            for step in run.phase_starts:
                axes.axvline(step + 0.5, color=INK, linewidth=0.8, linestyle=":")
    if any(run.held_out(panel.held_out) for run in runs):
        shades = (_colour(0), _colour(1)) if alone else (INK, INK)
        training = "training, sampled" if panel.held_out == VAL_PREFIX else "training"
        axes.legend(
            handles=[
                Line2D([], [], color=shades[0], linewidth=1.6, label=training),
                Line2D(
                    [], [], color=shades[1], linewidth=1.2, linestyle="--", marker="o", markersize=4, label="held out"
                ),
            ],
            frameon=False,
            fontsize=9,
            loc="best",
        )
    if not drawn:
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color="#888888")
    _style(axes, panel)


def _style(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, fontsize=11, loc="left", color=INK)
    axes.set_xlabel(panel.x, fontsize=9, color=INK)
    axes.set_ylabel(panel.unit, fontsize=9, color=INK)
    axes.tick_params(labelsize=9, colors=INK, length=3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#aaaaaa")
    axes.margins(x=0.02)
    low, high = axes.get_ylim()
    if is_flat(low, high):
        axes.set_ylim(low - FLAT_MARGIN, high + FLAT_MARGIN)
    if panel.unit in ("tokens", "seconds") and low >= 0:
        axes.set_ylim(0, 1.05 * high)
