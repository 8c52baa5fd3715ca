"""What preference learning asks of a configuration."""

import re

import pytest

from verl_core.config.catalogue import entry, names
from verl_core.config.compose import resolve
from verl_core.config.effective import effective, uses_reference, uses_rollout
from verl_core.config.errors import UserError

SECTION = "algorithm.preference"
DPO, ONLINE = "smoke-dpo", "smoke-online-dpo"


@pytest.mark.parametrize(
    ("profile", "words", "message"),
    [
        (DPO, [f"{SECTION}.loss=dop"], r"expected one of dpo.*did you mean dpo"),
        (DPO, ["algorithm.name=simpo", f"{SECTION}.loss=ipo"], r"preference.loss=ipo .*simpo .*has no reference"),
        (DPO, ["algorithm.name=kto", f"{SECTION}.loss=dpo"], r"kto .*may read answers without a partner"),
        ("smoke", ["algorithm.name=orpo", f"{SECTION}.loss=simpo"], rf"set {SECTION}.beta: .*orpo"),
        ("smoke-sppo", [f"{SECTION}.loss=dpo"], r"sppo .*compares all answers of a group; online_dpo"),
        (ONLINE, ["rollout.n=1"], r"rollout.n=1 .*online_dpo compares"),
        ("smoke-spin", ["rollout.n=4"], r"rollout.n=4 .*sets one answer against the demonstration"),
        ("smoke-spin", ["algorithm.filter_groups.enable=true"], r"rollout.n=1 .*dynamic sampling compares"),
        (ONLINE, [f"{SECTION}.ref_update_freq=5", "model.lora_rank=8"], r"ref_update_freq=5 .*lora_rank=8 .*exclude"),
        (
            ONLINE,
            [f"{SECTION}.ref_update_freq=5", "ref.pool=other", "cluster.pools={main: {gpus: 1}, other: {gpus: 1}}"],
            r"ref_update_freq=5 .*ref.pool=other .*exclude",
        ),
        (ONLINE, ["critic.enable=true"], r"critic.enable=true .*no use for a critic"),
        (DPO, [f"{SECTION}.beta=0"], r"beta=0.0 .*is not in \(0, inf\)"),
        (DPO, [f"{SECTION}.label_smoothing=0.6"], r"label_smoothing=0.6 .*is not in \[0, 0.5\]"),
    ],
)
def test_refused(profile: str, words: list[str], message: str):
    with pytest.raises(UserError) as error:
        resolve(profile, words)
    assert re.search(message, str(error.value).replace("'", "")), error.value


@pytest.mark.parametrize(
    ("profile", "words", "keys"),
    [
        ("smoke", [f"{SECTION}.beta=0.2"], f"{SECTION}.beta"),
        (DPO, [f"{SECTION}.simpo_gamma=1"], f"{SECTION}.simpo_gamma"),
        (DPO, [f"{SECTION}.loss=ipo", f"{SECTION}.label_smoothing=0.1"], f"{SECTION}.label_smoothing"),
        ("smoke-sppo", [f"{SECTION}.ref_update_freq=5"], f"{SECTION}.ref_update_freq"),
        (DPO, ["algorithm.name=simpo", f"{SECTION}.ref_update_freq=5"], f"{SECTION}.ref_update_freq"),
        (ONLINE, ["actor.clip_ratio=0.3"], "actor.clip_ratio"),
        (ONLINE, ["actor.use_kl_loss=true"], "actor.use_kl_loss"),
        (ONLINE, ["algorithm.use_kl_in_reward=true"], "algorithm.use_kl_in_reward"),
        (ONLINE, ["rollout.old_log_prob=recompute"], "rollout.old_log_prob"),
        ("smoke-sppo", ["ref.log_prob_micro_batch_size_per_gpu=4"], "ref.log_prob_micro_batch_size_per_gpu"),
    ],
)
def test_without_effect(profile: str, words: list[str], keys: str):
    warnings = resolve(profile, words).warnings
    assert [w for w in warnings if w.startswith(keys)] == warnings != []


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (DPO, [f"{SECTION}.loss=kto", f"{SECTION}.desirable_weight=2"]),
        (DPO, [f"{SECTION}.loss=sppo", f"{SECTION}.sppo_eta=2"]),
        (ONLINE, [f"{SECTION}.loss=simpo", f"{SECTION}.beta=2"]),
        (ONLINE, [f"{SECTION}.ref_update_freq=10", "ref.log_prob_micro_batch_size_per_gpu=4"]),
        ("smoke-sppo", ["rollout.old_log_prob=recompute"]),
    ],
)
def test_accepted_without_a_word(profile: str, words: list[str]):
    assert resolve(profile, words).warnings == []


def test_who_has_a_reference():
    preferring = [n for n in names("algorithm") if f"{SECTION}.loss" in (entry("algorithm", n).options or {})]
    configs = {
        n: effective(resolve(DPO, [f"algorithm.name={n}", "rollout.n=2" if n != "spin" else "rollout.n=1"]).config)
        for n in preferring
    }
    assert {n for n, c in configs.items() if uses_reference(c)} == {"dpo", "ipo", "kto", "online_dpo", "spin"}
    assert {n for n, c in configs.items() if uses_rollout(c)} == {"online_dpo", "sppo", "spin"}
    assert not uses_reference(effective(resolve(DPO, [f"{SECTION}.loss=simpo", f"{SECTION}.beta=2"]).config))
