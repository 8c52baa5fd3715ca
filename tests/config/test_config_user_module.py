"""`algorithm.module`: what a user's file registers is known from its text, and refused in a line."""

from pathlib import Path

import pytest
import torch

from rlx import templates
from verl_core.algorithms.advantages import compute_advantage
from verl_core.algorithms.loss import Need, Totals
from verl_core.algorithms.losses import PolicyLoss
from verl_core.batch import Batch
from verl_core.config import write
from verl_core.config.catalogue import entry, implementation
from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.config.errors import UserError

TORCHLESS = """
import package_that_no_environment_has
import verl_core.config.catalogue as catalogue

@catalogue.register("advantage", "own_advantage", needs=("critic",), keys=("algorithm.gamma",), doc="Mine.")
def estimate(batch, config): ...

@catalogue.register("policy_loss", "own_loss")
def loss(tokens, options): ...

catalogue.register("algorithm", "own", options={"algorithm.adv_estimator": "own_advantage",
                                                "actor.policy_loss.loss_mode": "own_loss"})
"""


def write_module(folder: Path, text: str) -> Path:
    (folder / "my.py").write_text(text)
    return folder / "my.py"


def config_of(folder: Path, text: str, *words: str):
    return effective(resolve("smoke", [f"algorithm.module={write_module(folder, text)}", *words]).config)


def test_names_needs_and_presets_are_known_without_importing_the_file(tmp_path: Path):
    config = config_of(tmp_path, TORCHLESS, "algorithm.name=own")
    assert config.critic.enable and config.algorithm.adv_estimator == "own_advantage"
    assert config.actor.policy_loss.loss_mode == "own_loss" and config.actor.loss_agg_mode == "token-mean"
    assert entry("advantage", "own_advantage").where == f"{tmp_path / 'my.py'}:estimate"
    with pytest.raises(UserError, match=r"fails at import: ModuleNotFoundError: .*\(my.py:2\)"):
        implementation("policy_loss", "own_loss")


def test_what_the_file_registers_can_be_called_and_a_changed_file_replaces_it(tmp_path: Path):
    text = (
        "from verl_core.config.catalogue import register\n"
        "@register('policy_loss', 'own_second', formula='-A')\n"
        "def second(tokens, options):\n    return 7\n"
    )
    assert config_of(tmp_path, text, "actor.policy_loss.loss_mode=own_second").actor.policy_loss.loss_mode
    assert implementation("policy_loss", "own_second")(None, None) == 7
    config_of(tmp_path, text.replace("-A", "A"), "actor.policy_loss.loss_mode=own_second")
    assert entry("policy_loss", "own_second").formula == "A"


@pytest.mark.parametrize(
    "text, told",
    [
        ("def f(:", "line 1: invalid syntax"),
        ("x = 1", "registers nothing"),
        ("register('engine', 'x')", r"line 1: register\('engine', ...\): a module brings algorithm, advantage"),
        ("register('advantage', 'x')", "decorates a function, or nothing computes it"),
        ("name = 'x'\n@register('advantage', name)\ndef f(): ...", "line 2: register takes a kind and a name, and lit"),
        ("@register('advantage', 'x', where='y')\ndef f(): ...", "register has no where="),
        ("@register('advantage', 'grpo')\ndef f(): ...", "advantage 'grpo' of .*my.py:f is taken"),
        ("@register('advantage', 'x', needs=('group'))\ndef f(): ...", r"line 1: needs= takes a tuple.* not 'group'"),
        ("register('algorithm', 'own_third')", "'own_third' names no algorithm.adv_estimator in options"),
        ("register('algorithm', 'own_4', options={'algorithm.adv_estimator': 'no'})", "no advantage named 'no'"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_its_line(tmp_path: Path, text: str, told: str):
    with pytest.raises(UserError, match=told):
        config_of(tmp_path, text)


def test_a_flow_of_ones_own_has_what_its_estimator_needs(tmp_path: Path):
    text = (
        "from verl_core.config.catalogue import register\n"
        "@register('algorithm', 'own_flow', options={'algorithm.adv_estimator': 'gae'})\n"
        "class OwnFlow: ...\n"
    )
    words = ["algorithm.name=own_flow", "algorithm.adv_estimator=decoupled_gae"]
    (tmp_path / "my.py").write_text(text)
    resolved = resolve("smoke-ppo", [f"algorithm.module={tmp_path / 'my.py'}", *words])
    assert not resolved.warnings and effective(resolved.config).critic.enable


def test_a_file_that_is_not_there_is_a_line(tmp_path: Path):
    with pytest.raises(UserError, match=r"no\.py cannot be read: .*No such file"):
        resolve("smoke", [f"algorithm.module={tmp_path / 'no.py'}"])


def test_the_template_is_an_algorithm_in_under_twenty_lines(tmp_path: Path):
    text = templates.fill("project/algorithm.py", {})
    config = config_of(tmp_path, text, "algorithm.name=mine")
    assert config.algorithm.adv_estimator == "above_median" and not config.critic.enable
    code = text.split('"""', 2)[2]
    assert len([line for line in code.splitlines() if line.strip()]) < 20


FAULTY = """
from verl_core.config.catalogue import register

@register("advantage", "own_none")
def nothing(batch, config): ...

@register("advantage", "own_short")
def short(batch, config):
    import torch
    return {"advantages_N": torch.zeros(3)}

@register("policy_loss", "own_typo")
def typo(tokens, options):
    return tokens.advantages, {}

@register("policy_loss", "own_scalar")
def scalar(tokens, options):
    return tokens.logp_M.sum(), {}
"""


@pytest.mark.parametrize(
    "name, told",
    [
        ("own_none", "advantage 'own_none' returned None, not columns with advantages_N"),
        ("own_short", "advantage 'own_short': column advantages_N has 3 entries, its axis has 2"),
    ],
)
def test_an_advantage_that_returns_something_else_is_named(tmp_path: Path, name: str, told: str):
    config = config_of(tmp_path, FAULTY, "rollout.n=2")
    columns = {"mask_N": torch.ones(2, dtype=torch.bool), "reward_S": torch.zeros(1)}
    with pytest.raises(UserError, match=told):
        compute_advantage(name, Batch(torch.tensor([2]), torch.tensor([0]), columns), config.algorithm)


@pytest.mark.parametrize(
    "name, told",
    [
        ("own_typo", r"'own_typo' of .*my.py fails: AttributeError: .*advantages.*\(my.py:14\)"),
        ("own_scalar", r"'own_scalar' returned torch.Size\(\[\]\), not \(2 losses of tokens, diagnostics\)"),
    ],
)
def test_a_policy_loss_that_fails_is_the_files_fault(tmp_path: Path, name: str, told: str):
    config_of(tmp_path, FAULTY)
    columns = {"mask_N": torch.ones(2, dtype=torch.bool), "old_logp_N": torch.zeros(2), "advantages_N": torch.zeros(2)}
    batch = Batch(torch.tensor([2]), torch.tensor([0]), columns)
    with pytest.raises(UserError, match=told):
        PolicyLoss(name, want_entropy=False)({Need.LOGP: torch.zeros(2)}, batch, Totals.of(batch))


def test_a_run_has_its_own_copy_where_the_file_is_gone(tmp_path: Path):
    config = resolve("smoke", [f"algorithm.module={write_module(tmp_path, TORCHLESS)}", "algorithm.name=own"]).config
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(write.dump(config))
    (tmp_path / "my.py").rename(run / "algorithm.py")
    assert write.load(run / "config.yaml").algorithm.module == str(run / "algorithm.py")
