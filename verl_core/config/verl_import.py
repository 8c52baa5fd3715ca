"""From a script that launches veRL to an `rlx.yaml` that asks for the same, and a report of every word."""

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_core.config.catalogue import entry, names
from verl_core.config.compose import load_tree, profile_names, resolve
from verl_core.config.effective import effective
from verl_core.config.errors import ConfigError, EnvError, UserError
from verl_core.config.idle_rule_kinds import Rule
from verl_core.config.idle_rules import RULES
from verl_core.config.keys import Target, translate
from verl_core.config.merge import assign, interpolate
from verl_core.config.schema import FACTS, RlxConfig
from verl_core.config.typed import MISSING, leaf_types, leaves, plain, steps
from verl_core.config.unbuilt import unbuilt
from verl_core.config.verl_defaults import DISTILLATION_DEFAULTS, MEGATRON_CONFIGS, PARTS, PPO_DEFAULTS, SFT_DEFAULTS
from verl_core.config.verl_file import write_file
from verl_core.config.verl_report import Item, Report
from verl_core.config.verl_script import Script, read_script
from verl_core.config.verl_script.hydra import Words, read_words
from verl_core.config.verl_script.launch import Launch
from verl_core.config.verl_script.text import Text
from verl_core.config.verl_script.variables import LOGIN
from verl_core.config.verl_settings import Setting, Settings

_NAMES = ("trainer.project_name", "trainer.experiment_name")
"""Names of a run; one that the script does not give is the profile's."""
_BY_ESTIMATOR = {"gae": "ppo", "grpo": "grpo", "rloo": "rloo", "reinforce_plus_plus": "reinforce_plus_plus"}


@dataclass
class Imported:
    text: str
    """The `rlx.yaml`."""
    report: Report


def import_script(
    text: str, name: str, given: Mapping[str, str] | None = None, extends: str | None = None, launch: int = 1
) -> Imported:
    """Reads a launch of veRL out of a shell script.

    `name` is what the report calls the script; `given` are variables it expects from outside; `extends` a profile in
    place of the nearest; `launch` counts the script's launches from 1. Raises UserError when there is no such launch.
    """
    script = read_script(text, given)
    chosen = _choose(script, name, launch)
    report = Report(name, chosen.line, chosen.module)
    words = read_words(chosen.arguments)
    _remarks(script, chosen, words, report)
    _only_what_is_known(words, report)
    settings = Settings(words.overrides, chosen.kind, report).found
    _from_the_launcher(chosen, words, settings, report)
    undecided = {item.ours or _ours(item.key) for item in report.undecided}
    wanted = _configuration(settings, chosen, undecided)
    report.extends, base = _nearest(wanted, extends)
    for key in _surplus(base, _leaves(wanted)):
        report.breaks.append(
            f"{key}={base[key]!r} comes from {extends} and not from the script: extend another profile"
        )
    file = {key: value for key, value in _leaves(wanted).items() if base.get(key, MISSING) != value}
    file = {key: value for key, value in file.items() if key in settings or key not in _NAMES}
    file = {key: value for key, value in file.items() if not _preset_says_so(key, value, wanted, base)}
    _drop_idle(file, wanted, settings, report)
    for key in (key for key in file if key in settings and not settings[key].key):
        report.defaults.append(Item(key, file[key], text="veRL's default"))
    tree: dict[str, Any] = {}
    for key in sorted(file, key=_place):
        assign(tree, steps(key), file[key])
    comments = {key: "veRL's default" if not setting.key else "" for key, setting in settings.items()}
    comments |= {item.ours: item.key for item in report.renamed if item.ours in comments and item.ours != item.key}
    result = write_file(tree, dict.fromkeys(file, "") | {k: v for k, v in comments.items() if k in file}, report)
    _check(result, report)
    return Imported(result, report)


def _choose(script: Script, name: str, number: int) -> Launch:
    launches = script.launches
    if not launches:
        raise UserError(
            f"{name} starts no trainer of veRL", "name the script that has `python3 -m verl.trainer.main_ppo`"
        )
    if not 1 <= number <= len(launches):
        where = ", ".join(f"line {launch.line}" for launch in launches)
        raise UserError(
            f"{name} has {len(launches)} launches ({where}), not a number {number}", "give --launch 1 or more"
        )
    if launches[number - 1].kind == "other":
        what = launches[number - 1]
        raise UserError(f"{name}, line {what.line}: {what.module} trains nothing", "`rlx eval` scores a model or a run")
    return launches[number - 1]


def _remarks(script: Script, chosen: Launch, words: Words, report: Report) -> None:
    """What was not followed, and what was taken to be so."""
    report.notes += [f"line {note.line}: {note.text}" for note in script.notes]
    others = [str(launch.line) for launch in script.launches if launch is not chosen]
    if others:
        report.notes.append(f"line {chosen.line} was read; there are launches in line {', '.join(others)} (--launch N)")
    if chosen.doubt:
        report.notes.append(f"line {chosen.line}: the launch is not surely reached: {chosen.doubt}")
    for variable in sorted(script.assumed_unset):
        shown = f"${variable}" if variable.isdigit() else variable
        report.notes.append(f"{shown} is taken as not set from outside; --set {variable}=VALUE sets it")
    if not chosen.module.startswith("verl.trainer."):
        report.notes.append(f"{chosen.module} has code of its own, which was not read: its keys are taken for veRL's")
    if words.config_name and words.config_name not in (
        "ppo_trainer",
        "sft_trainer",
        "sft_trainer_engine",
        *MEGATRON_CONFIGS,
    ):
        where = f" of {words.config_path.text}" if words.config_path else ""
        report.notes.append(
            f"the configuration file {words.config_name}{where} was not read: only the script's words were"
        )
    report.environment += [
        Item(key, value.text, text="; ".join(value.unknown)) for key, value in script.exports.items() if key.isupper()
    ]


def _only_what_is_known(words: Words, report: Report) -> None:
    """Leaves the overrides whose value is known; the rest is reported as not decided."""
    known = []
    for word in words.overrides:
        missing = [name for name in word.text.outside if name not in LOGIN]
        why = list(word.text.unknown) or [
            f"{name} is not set in the script: give it with --set {name}=VALUE" for name in missing
        ]
        why = why or ([word.problem] if word.problem else [])
        if why:
            report.undecided.append(Item(word.key, word.text.text, text="; ".join(why)))
        else:
            known.append(word)
    report.undecided += [
        Item(_name(word), text="; ".join(word.unknown) or "not a key=value word") for word in words.strange
    ]
    words.overrides = known


def _name(word: Text) -> str:
    return " ".join(word.text.split()) or "''"


def _from_the_launcher(chosen: Launch, words: Words, settings: dict[str, Setting], report: Report) -> None:
    """What options say beside the overrides: Megatron's configuration file, torchrun's ranks."""
    if words.config_name in MEGATRON_CONFIGS and "actor.strategy" not in settings:
        settings["actor.strategy"] = Setting("megatron", f"--config-name={words.config_name}")
        report.renamed.append(Item(f"--config-name={words.config_name}", ours="actor.strategy", text="megatron"))
    for option, ours in (("nnodes", "cluster.nnodes"), ("nproc_per_node", "cluster.n_gpus_per_node")):
        text = chosen.ranks.get(option)
        if text is None or chosen.kind != "sft":
            continue
        if text.text.isdigit():
            settings[ours] = Setting(int(text.text), f"--{option}")
            report.renamed.append(Item(f"--{option}", int(text.text), ours))
        else:
            report.undecided.append(
                Item(f"--{option}", text.text, ours, "; ".join(text.unknown) or "not a whole number")
            )


def _ours(key: str) -> str:
    """rlx's name of a veRL key."""
    target = translate(key, MISSING)
    return target.path or "" if isinstance(target, Target) else ""


def _configuration(settings: dict[str, Setting], chosen: Launch, undecided: set[str]) -> dict[str, Any]:
    """The whole configuration that veRL would run, as rlx's keys; adds veRL's defaults to `settings`."""
    wanted = plain(RlxConfig())
    usual = SFT_DEFAULTS if chosen.kind == "sft" else PPO_DEFAULTS
    for key in (key for key in usual if key not in undecided):
        settings.setdefault(key, Setting(usual[key], ""))
    if chosen.kind == "sft":
        settings["algorithm.name"] = Setting("sft", chosen.module)
        if batch := settings.get("data.train_batch_size"):  # absent where the script does not decide it
            settings.setdefault("actor.ppo_mini_batch_size", Setting(batch.value, ""))
    else:
        _parts(settings, undecided)
    for key, setting in settings.items():
        assign(wanted, steps(key), setting.value)
    return wanted


def _parts(settings: dict[str, Setting], undecided: set[str]) -> None:
    """Names the algorithm whose preset is nearest to the parts that veRL has, and unsets those the preset brings. Parts
    that the script does not decide are left to the preset; an estimator that it does not decide is veRL's default."""
    for key in (key for key in PARTS if key not in undecided or key == "algorithm.adv_estimator"):
        settings.setdefault(key, Setting(PARTS[key], ""))
    low, high = (settings.get(f"actor.clip_ratio_{side}") for side in ("low", "high"))
    if low and high and low.value == high.value == settings.get("actor.clip_ratio", Setting(0.2, "")).value:
        low.value = high.value = None
    distils = settings.get("algorithm.name", Setting(None, "")).value == "opd"
    best = "opd" if distils else _by_estimator(settings)
    if best is None:
        return
    if distils:
        for key in (key for key in DISTILLATION_DEFAULTS if key not in undecided):
            settings.setdefault(key, Setting(DISTILLATION_DEFAULTS[key], ""))
    else:
        settings["algorithm.name"] = Setting(best, settings["algorithm.adv_estimator"].key)
    for key, value in entry("algorithm", best).options.items():
        if key in settings and settings[key].value == value:
            settings[key].value = None
        elif key in settings and settings[key].value is None:
            settings[key].value = settings["actor.clip_ratio"].value if "actor.clip_ratio" in settings else 0.2


def _by_estimator(settings: dict[str, Setting]) -> str | None:
    """Of the algorithms with the script's estimator the one that agrees best; None when there is none."""
    estimator = settings["algorithm.adv_estimator"].value
    presets = {name: entry("algorithm", name).options or {} for name in names("algorithm")}
    agreeing = {
        name: sum(settings[key].value == value for key, value in preset.items() if key in settings)
        for name, preset in presets.items()
        if preset.get("algorithm.adv_estimator") == estimator
    }
    if not agreeing:
        return None
    return max(agreeing, key=lambda name: (agreeing[name], name == _BY_ESTIMATOR.get(str(estimator))))


def _nearest(wanted: dict[str, Any], extends: str | None) -> tuple[str | None, dict[str, Any]]:
    """The profile from which the fewest keys differ, with its leaves; rlx's own defaults when none is nearer."""
    leaves_wanted = _leaves(wanted)

    def lines(base: dict[str, Any]) -> float:
        if _surplus(base, leaves_wanted):
            return math.inf
        return sum(base.get(key, MISSING) != value for key, value in leaves_wanted.items())

    if extends is not None:
        return extends, _leaves(plain(resolve(extends).config))
    bases: dict[str | None, dict[str, Any]] = {None: _leaves(plain(RlxConfig()))}
    bases |= {name: _leaves(plain(resolve(name).config)) for name in profile_names()}
    best = min(bases, key=lambda name: lines(bases[name]))
    return best, bases[best]


def _surplus(base: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Items of a profile's free mappings that no file over it can take away."""
    return [key for key in base if key not in wanted and key not in leaf_types()]


def _leaves(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in leaves(tree) if key not in FACTS}


def _place(key: str) -> int:
    """Where in the schema's order a key stands."""
    order = list(leaf_types())
    return next((i for i, leaf in enumerate(order) if key == leaf or key.startswith(f"{leaf}.")), len(order))


def _preset_says_so(key: str, value: Any, wanted: dict[str, Any], base: dict[str, Any]) -> bool:
    """A profile that writes down what the algorithm's preset says agrees with a key left to the preset."""
    name = wanted["algorithm"]["name"]
    options = entry("algorithm", name).options if name in names("algorithm") else {}
    return value is None and key in (options or {}) and base.get(key) == options[key]


def _drop_idle(file: dict[str, Any], wanted: dict[str, Any], settings: dict[str, Setting], report: Report) -> None:
    """Takes keys out of the file that change nothing, as `config check` would refuse them."""
    try:
        e = effective(load_tree(interpolate(wanted)[0], "import"))
    except UserError:  # the check of the whole file names what is wrong
        return
    for rule in (rule for rule in RULES if _is_idle(rule, e)):
        for key in [key for key in file if rule.covers(key)]:
            del file[key]
        for key in [key for key, setting in settings.items() if setting.key and rule.covers(key)]:
            given = settings.pop(key).key
            moved = [item for item in report.carried + report.renamed if item.key == given]
            report.carried = [item for item in report.carried if item.key != given]
            report.renamed = [item for item in report.renamed if item.key != given]
            text = f"without effect; for that set {rule.switch}"
            report.idle += [Item(given, item.value, item.ours, text) for item in moved]


def _is_idle(rule: Rule, e: RlxConfig) -> bool:
    """Whether the rule's keys have no effect; not when that hangs on a name rlx does not know."""
    try:
        return rule.idle(e)
    except UserError:
        return False


@contextmanager
def _temporary(text: str) -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "rlx.yaml"
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise EnvError(
                f"temporary files cannot be written: {error.strerror}", "free some space, or set TMPDIR=/another/folder"
            ) from None
        yield path


def _check(text: str, report: Report) -> None:
    """Says what `rlx config check` will find in the file. EnvError when there is no room for temporary files."""
    with _temporary(text) as path:
        try:
            resolved = resolve(None, file=path)
        except ConfigError as error:
            report.breaks += [problem.replace(str(path), "rlx.yaml") for problem in error.problems]
            return
    report.breaks += [line.replace(str(path), "rlx.yaml") for line in resolved.warnings]
    report.later += unbuilt(effective(resolved.config))
