"""Which rlx key and value each override of a veRL launch stands for, by the table and by veRL's own rules."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_core.config import keys
from verl_core.config.schema import TrainerConfig
from verl_core.config.typed import MISSING, Problem, fields_of, near_keys, steps, type_at
from verl_core.config.verl_defaults import LOGGERS, SFT_AS_PPO, SFT_DATA, SFT_TOKEN_BUDGET, TOKEN_BUDGETS
from verl_core.config.verl_report import Item, Report
from verl_core.config.verl_script.hydra import Word

_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_TEACHER_ENGINE = re.compile(r"distillation\.teacher_models\.[^.]+\.(inference|num_replicas)(\.|$)")
_REWARD_MODEL = ("reward.reward_model.enable", "reward_model.enable")
_OWN_REWARD = ("reward.custom_reward_function.path", "custom_reward_function.path")
_HOME = "${oc.env:HOME}/"
_PATHS = ("data.train_files", "data.val_files", "model.path", "reward.custom_reward_function.path")
_MEGATRON_LINEAR = {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}
_COUNTS = {  # veRL's switch: (count of sequences, token budget, whose switch it follows when it is not set)
    "actor.use_dynamic_bsz": ("actor.ppo_micro_batch_size_per_gpu", "actor.ppo_max_token_len_per_gpu"),
    "critic.use_dynamic_bsz": ("critic.ppo_micro_batch_size_per_gpu", "critic.ppo_max_token_len_per_gpu"),
    "ref.log_prob_use_dynamic_bsz": ("ref.log_prob_micro_batch_size_per_gpu", "ref.log_prob_max_token_len_per_gpu"),
    "rollout.log_prob_use_dynamic_bsz": (
        "rollout.log_prob_micro_batch_size_per_gpu",
        "rollout.log_prob_max_token_len_per_gpu",
    ),
}


@dataclass
class Setting:
    value: Any
    key: str
    """veRL's key as the script has it; empty: veRL's default."""


class Settings:
    """Collects rlx's keys with their values; what does not become one goes to the report."""

    def __init__(self, overrides: list[Word], kind: str, report: Report):
        self.report, self.kind = report, kind
        self.found: dict[str, Setting] = {}
        self.given: dict[str, Word] = {}
        """veRL's keys without prefix; of a key given twice the last holds."""
        for word in overrides:
            self.given[_as_ppo(word.key.removeprefix(keys.PREFIX), kind)] = word
        self._micro_batches()
        for path, word in self.given.items():
            self._read(path, word)

    def value(self, path: str, otherwise: Any) -> Any:
        """What the script sets a veRL key to."""
        return self.given[path].value if path in self.given else otherwise

    def _read(self, path: str, word: Word) -> None:
        if word.key.startswith(("hydra.", "hydra/")):
            self._without(word, "rlx does not use Hydra; the run directory is trainer.default_local_dir")
        elif "/" in word.key or "@" in word.key:
            self._without(word, "chooses a file of veRL's configuration; set the keys of that file that matter")
        elif word.sign == "~":
            self._without(word, "removes a key; here null unsets one")
        elif self.kind == "sft" and path.startswith("data.") and path.removeprefix("data.") not in SFT_DATA:
            self._without(word, "rows have data.messages_key, or data.prompt_key and data.response_key")
        elif path == "trainer.logger":
            self._logger(word)
        elif self._as_the_actor(path, word):
            pass
        elif path == "data.train_batch_size" and self.kind == "sft":
            self._set("data.train_batch_size", word)
            self.found["actor.ppo_mini_batch_size"] = Setting(word.value, word.key)
        elif path == "distillation.enabled" and word.value is True:
            self._set("algorithm.name", word, "opd")
        elif path in _REWARD_MODEL and word.value is True:
            self._reward_model(word)
        elif _TEACHER_ENGINE.match(path):
            self._without(word, "a teacher needs no engine: its pass is like the reference's, by the keys of teacher")
        elif path == "reward.reward_kwargs.max_resp_len" or path.endswith("reward_kwargs.max_resp_len"):
            longest = self.value("data.max_response_length", 512)
            same = word.value == longest
            text = "the length limit is data.max_response_length"
            (self._always if same else self._without)(word, text)
        elif path == "model.lora.target_modules" and set(_listed(word.value)) == _MEGATRON_LINEAR:
            self.found["model.target_modules"] = Setting("all-linear", word.key)
            self.report.renamed.append(Item(word.key, word.value, "model.target_modules", "all-linear"))
        else:
            self._by_table(path, word)

    def _reward_model(self, word: Word) -> None:
        """It alone scores, unless there is a function of the user's: then that does."""
        if any(self.value(path, None) for path in _OWN_REWARD):
            both = "{task: 1, reward_model: 1}"
            self._without(word, f"in veRL a function of one's own scores alone; reward.scorers={both} adds the two up")
        else:
            self._set("reward.scorers.reward_model", word, 1.0)

    def _by_table(self, path: str, word: Word) -> None:
        target = keys.translate(path, word.value)
        if isinstance(target, Problem):
            self._without(word, target.text.removeprefix("veRL's key has no counterpart here: "))
        elif target.path is None:
            self._always(word, (target.note or "").partition(": ")[2])
        elif type_at(steps(target.path)) is MISSING:
            near = near_keys(target.path)
            question = f"; near it: {', '.join(near)}" if near else ""
            self._without(word, f"no such key here{question}")
        else:
            self._set(target.path, word, target.value)

    def _set(self, ours: str, word: Word, value: Any = MISSING) -> None:
        value = word.value if value is MISSING else value
        try:
            value = _references(value, ours)
        except ValueError as error:
            self.report.undecided.append(Item(word.key, word.text.text, ours, str(error)))
            return
        if type_at(steps(ours)) in (str, str | None) and isinstance(value, int | float) and not isinstance(value, bool):
            value = word.text.text  # a name like 007 is text
        self.found[ours] = Setting(value, word.key)
        unchanged = value in (word.value, [word.value])
        same = unchanged and word.key.removeprefix(keys.PREFIX) == ours
        text = "" if unchanged else f"{value}"
        place = self.report.carried if same else self.report.renamed
        place.append(Item(word.key, word.value, "" if same else ours, text))

    def _micro_batches(self) -> None:
        """veRL packs to the token budget when use_dynamic_bsz says so, and else counts sequences; here the key that is
        set says which."""
        dynamic = self.value("actor.use_dynamic_bsz", self.kind == "sft")
        for switch, (count, budget) in _COUNTS.items():
            chosen = self.value(switch, dynamic)
            idle, why = (count, f"{switch} is true") if chosen is True else (budget, f"{switch} is not true")
            role = switch.partition(".")[0]
            if idle in self.given:
                dropped = self.given.pop(idle)
                self.report.idle.append(Item(dropped.key, dropped.value, text=f"veRL does not read it: {why}"))
            if switch in self.given and chosen is True:
                word = self.given.pop(switch)
                self.report.renamed.append(Item(word.key, True, budget, "set, so sequences are packed to it"))
            if chosen is True and budget not in self.given and (role in TOKEN_BUDGETS or dynamic is not True):
                usual = SFT_TOKEN_BUDGET if self.kind == "sft" else TOKEN_BUDGETS.get(role, TOKEN_BUDGETS["actor"])
                self.found[budget] = Setting(usual, "")

    def _as_the_actor(self, path: str, word: Word) -> bool:
        """The reference is the actor's snapshot: what veRL is told about it again needs no setting when it agrees."""
        head, _, rest = path.partition(".")
        if head != "ref" or type_at(steps(path)) is not MISSING or type_at(["actor", *steps(rest)]) is MISSING:
            return False
        default = {"strategy": "fsdp", "fsdp_config.fsdp_size": -1}.get(rest, 1)
        if word.value != self.value(f"actor.{rest}", default):
            return False
        self._always(word, f"the reference runs as the actor does, and actor.{rest} is the same")
        return True

    def _logger(self, word: Word) -> None:
        known = fields_of(TrainerConfig)["logger"].__args__[0].__args__
        wanted = [LOGGERS.get(name, name) if isinstance(name, str) else name for name in _listed(word.value)]
        for name in wanted:
            if name not in known:
                self._without(word, f"no tracker {name} here: {', '.join(known)} are there")
        self._set("trainer.logger", word, [name for name in wanted if name in known])

    def _always(self, word: Word, text: str) -> None:
        self.report.always.append(Item(word.key, word.value, text=text))

    def _without(self, word: Word, text: str) -> None:
        self.report.without.append(Item(word.key, word.value, text=text))


def _as_ppo(path: str, kind: str) -> str:
    """A supervised trainer's key by the PPO trainer's name."""
    if kind != "sft":
        return path
    old = next((old for old in SFT_AS_PPO if path == old or path.startswith(f"{old}.")), None)
    return SFT_AS_PPO[old] + path[len(old) :] if old else path


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _references(value: Any, ours: str) -> Any:
    """A value with `${veRL key}` as `${rlx key}`, and the home folder as `~` in paths. Raises ValueError."""
    if isinstance(value, list):
        return [_references(item, ours) for item in value]
    if isinstance(value, Mapping):
        return {name: _references(item, ours) for name, item in value.items()}
    if not isinstance(value, str) or "${" not in value:
        return value
    if ours in _PATHS and value.startswith(_HOME):
        value = "~/" + value.removeprefix(_HOME)
    for name in re.findall(r"\$\{([^}]*)", value):
        if name.startswith("oc.env:"):
            continue
        target = keys.translate(name, "") if re.fullmatch(r"[A-Za-z_][\w.]*", name) else None
        if not isinstance(target, keys.Target) or target.path is None or type_at(steps(target.path)) is MISSING:
            raise ValueError(f"${{{name}}} has no counterpart here")
        value = value.replace(f"${{{name}}}", f"${{{target.path}}}")
    return value
