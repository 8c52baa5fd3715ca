"""`rlx rewards`: the rules that score answers, from the catalogue alone."""

import textwrap
from dataclasses import dataclass
from typing import Any

import typer

from rlx import ui
from rlx.arguments import JSON_OPTION
from rlx.commands.config_schema import WIDTH
from verl_core.config.catalogue import Entry, entry, names
from verl_core.config.reward_parts import MODEL_PARTS, keywords_of
from verl_core.config.scorers import scorer_of

app = typer.Typer(
    help="List the scorers of answers, show what one takes and serves.",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
)


@dataclass(frozen=True)
class Rule:
    """A scorer under all of its names."""

    entry: Entry
    data_sources: tuple[str, ...]
    """Other names it has in the catalogue; one that ends in * stands for all that begin so."""

    def plain(self) -> dict[str, Any]:
        e = self.entry
        serves = list(self.data_sources)
        return {"name": e.name, "doc": e.doc, "keywords": keywords_of(e.name), "data_sources": serves}


@app.command()
def ls(as_json: bool = JSON_OPTION) -> None:
    """List the rules, with the data sources whose rows each of them scores.

    A reward is put together from these names in reward.scorers.
    """
    rules = _rules()
    if as_json:
        ui.out_json([*(rule.plain() for rule in rules), *map(_model, MODEL_PARTS)])
        return
    for rule in rules:
        served = f" Rows of {', '.join(rule.data_sources)}." if rule.data_sources else ""
        _line(rule.entry.name, rule.entry.doc + served)
    for name, doc in MODEL_PARTS.items():
        _line(name, doc)


@app.command()
def show(
    name: str = typer.Argument(..., metavar="NAME", help="A name that `rlx rewards ls` lists, or a data source."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Show a rule, or the one that scores the rows of a data source."""
    if name in MODEL_PARTS:
        if as_json:
            ui.out_json(_model(name))
        else:
            ui.pairs([("scorer", name), ("about", MODEL_PARTS[name]), ("chosen by", f"reward.scorers={{{name}: 1}}")])
        return
    where = scorer_of(name).where
    rule = next(rule for rule in _rules() if rule.entry.where == where)
    if as_json:
        ui.out_json(rule.plain())
        return
    lines = [("scorer", rule.entry.name), ("about", rule.entry.doc)]
    lines += [("keyword", keyword) for keyword in keywords_of(rule.entry.name)]
    lines += [("data source", source) for source in rule.data_sources]
    lines.append(("chosen by", f"the row's data_source, or reward.scorers={{{rule.entry.name}: 1}}"))
    ui.pairs(lines)


def _rules() -> list[Rule]:
    """The first name of a rule is its short one."""
    found: dict[Any, list[Entry]] = {}
    for each in (entry("scorer", name) for name in names("scorer")):
        found.setdefault(each.where, []).append(each)
    return [Rule(first, tuple(other.name for other in others)) for first, *others in found.values()]


def _model(name: str) -> dict[str, Any]:
    return {"name": name, "doc": MODEL_PARTS[name], "keywords": [], "data_sources": []}


def _line(name: str, text: str) -> None:
    ui.out(textwrap.fill(f"{name:<20} {text}", WIDTH, subsequent_indent=" " * 21))
