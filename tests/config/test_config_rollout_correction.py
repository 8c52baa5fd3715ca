"""algorithm.rollout_correction: its texts, what is refused, what has no effect, and veRL's names for it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.config.compose import resolve
from verl_core.config.errors import UserError
from verl_core.config.rollout_correction import (
    RULES,
    Rejection,
    RolloutCorrectionConfig,
    Weights,
    rejections_of,
    weights_of,
)
from verl_core.config.verl_import import import_script

SECTION = "algorithm.rollout_correction"


def words(**keys: object) -> list[str]:
    return [f"{SECTION}.{name}={value}" for name, value in keys.items()]


def asked(*given: str, profile: str = "smoke") -> RolloutCorrectionConfig:
    return resolve(profile, list(given), strict=True).config.algorithm.rollout_correction


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [("2", (None, 2.0)), ("0.5_5.0", (0.5, 5.0)), ("1e-1_2", (0.1, 2.0)), ("'3.5'", (None, 3.5)), ("1_1", (1.0, 1.0))],
)
def test_a_number_cuts_and_two_keep(threshold, expected):
    cfg = asked(*words(rollout_is="sequence", rollout_is_threshold=threshold))
    assert weights_of(cfg) == Weights("sequence", *expected, False)


def test_rules_with_one_threshold_or_one_each():
    cfg = asked(*words(rollout_rs="token_k1,seq_max_k2", rollout_rs_threshold="0.5_2,0.3"))
    assert rejections_of(cfg) == (
        Rejection("token_k1", math.log(0.5), math.log(2)),
        Rejection("seq_max_k2", -math.inf, 0.3),
    )
    cfg = asked(*words(rollout_rs="seq_mean_k1, token_k3, token_k3", rollout_rs_threshold=4))
    assert [(r.name, r.level, r.divergence) for r in rejections_of(cfg)] == [
        ("seq_mean_k1", "seq_mean", "k1"),
        ("token_k3", "token", "k3"),
    ]
    assert rejections_of(cfg)[0].low == -rejections_of(cfg)[0].high == -math.log(4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            words(rollout_is="token", rollout_is_threshold="5_0.5"),
            "'5_0.5' is neither a number above 0 nor two of them",
        ),
        (words(rollout_is="token", rollout_is_threshold="1_2_3"), "'1_2_3' is neither"),
        (words(rollout_is="token", rollout_is_threshold="a"), "'a' is neither"),
        (words(rollout_is="token", rollout_is_threshold="'-1'"), "'-1' is neither"),
        (words(rollout_is="token", rollout_is_threshold="'inf'"), "'inf' is neither"),
        (words(rollout_is="token", rollout_is_threshold="0"), r"rollout_is_threshold=0.0 .* not in \(0, inf\)"),
        (words(rollout_is="tokens"), "expected one of token, sequence"),
        (words(rollout_rs="token_k4", rollout_rs_threshold=2), "no rule 'token_k4'; there are token_k1"),
        (words(rollout_rs="seq_max_k1", rollout_rs_threshold=2), "no rule 'seq_max_k1'"),
        (words(rollout_rs="token_k1,", rollout_rs_threshold=2), "no rule ''"),
        (words(rollout_rs="token_k1"), "set algorithm.rollout_correction.rollout_rs_threshold too"),
        (words(rollout_rs="token_k2", rollout_rs_threshold="0.1_1"), "token_k2 is never negative and takes one upper"),
        (words(rollout_rs="token_k1,token_k2", rollout_rs_threshold="1,2,3"), "2 rules, but 3 thresholds"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given, message):
    with pytest.raises(UserError, match=message):
        asked(*given)


@given(st.sampled_from(RULES), st.text("0123456789._-e,ainf ", max_size=8))
def test_every_threshold_is_two_ordered_numbers_or_refused(rule, text):
    try:
        (found,) = rejections_of(RolloutCorrectionConfig(rollout_rs=rule, rollout_rs_threshold=text))
    except ValueError:
        return
    assert -math.inf <= found.low <= found.high < math.inf or (rule.endswith("k1") and 0 < float(text) < 1)


@pytest.mark.parametrize(
    ("given", "switch"),
    [
        (words(rollout_is_threshold=3), f"{SECTION}.rollout_is=token or sequence"),
        (words(rollout_is_batch_normalize="true"), f"{SECTION}.rollout_is=token or sequence"),
        (words(rollout_rs_threshold=3), f"{SECTION}.rollout_rs=token_k1 or another rule"),
        (["rollout.old_log_prob=rollout", *words(rollout_is="token")], "rollout.old_log_prob=auto or recompute"),
        (["algorithm.name=sft", *words(rollout_is="token")], "algorithm.name=grpo or another"),
    ],
)
def test_keys_without_effect_name_the_switch(given, switch):
    key = given[-1].split("=")[0]
    (warning,) = (line for line in resolve("smoke", given).warnings if key in line)
    assert warning.partition("for that set ")[2].startswith(switch)


def test_weights_need_the_trainers_pass_so_its_micro_batches_have_an_effect():
    """Without them the float32 hf engine's log-probs would serve."""
    resolve("smoke", ["rollout.log_prob_micro_batch_size_per_gpu=2", *words(rollout_is="token")], strict=True)


def test_verls_names_are_read():
    resolved = resolve("smoke", [f"{SECTION}.bypass_mode=True", f"{SECTION}.loss_type=ppo_clip"], strict=True)
    assert resolved.config.rollout.old_log_prob == "rollout"
    assert f"{SECTION}.bypass_mode=true is rollout.old_log_prob=rollout here" in resolved.notes
    assert resolve("smoke", [f"{SECTION}.bypass_mode=false"]).config.rollout.old_log_prob == "recompute"
    for old, new in (("token", "token_k1"), ("sequence", "seq_sum_k1"), ("geometric", "seq_mean_k1")):
        assert asked(*words(rollout_rs=old, rollout_rs_threshold=2)).rollout_rs == new
    with pytest.raises(UserError, match=r"the loss is actor\.policy_loss\.loss_mode"):
        resolve("smoke", [f"{SECTION}.loss_type=reinforce"])
    with pytest.raises(UserError, match=r"set algorithm\.rollout_correction"):
        resolve("smoke", ["actor_rollout_ref.actor.policy_loss.rollout_correction.rollout_is=token"])


def test_a_launch_script_brings_its_correction(tmp_path):
    script = (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=vllm "
        "actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
        f"{SECTION}.rollout_is=sequence {SECTION}.rollout_is_threshold=0.5_5.0 {SECTION}.bypass_mode=False "
        f"'{SECTION}.rollout_rs=\"token_k1,seq_max_k2\"' '{SECTION}.rollout_rs_threshold=\"2.0,0.5\"'"
    )
    (tmp_path / "rlx.yaml").write_text(import_script(script, "run.sh").text)
    config = resolve(None, file=tmp_path / "rlx.yaml", strict=True).config
    cfg = config.algorithm.rollout_correction
    assert weights_of(cfg) == Weights("sequence", 0.5, 5.0) and config.rollout.old_log_prob == "recompute"
    assert [(r.name, r.high) for r in rejections_of(cfg)] == [("token_k1", math.log(2)), ("seq_max_k2", 0.5)]
