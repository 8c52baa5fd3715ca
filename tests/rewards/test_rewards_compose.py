"""Rewards of several parts: one definition (case R18), failures apart, what `reward.scorers` may say."""

import asyncio
from statistics import fmean

import pytest

from verl_core.batch import Trajectory
from verl_core.config.compose import resolve
from verl_core.config.errors import RunError, UserError
from verl_core.config.keys import translate
from verl_core.config.reward_parts import RewardPart, reward_parts
from verl_core.config.schema import CustomRewardConfig, RewardConfig
from verl_core.controller.scoring import refuse_broken_scorer, scoring
from verl_core.controller.sources import _judgement
from verl_core.rewards.compose import Scorers, check_named_rules, composed
from verl_core.rewards.verdict import ScoreRequest, Verdict, failed

RIGHT, WRONG = "<think>2 + 2</think><answer>\n#### 4</answer>", "#### 5"


def requests(*answers):
    return [ScoreRequest("openai/gsm8k", text, "4") for text in answers]


def trajectories(verdicts):
    rows = [Trajectory([], [], [], [], [], "", i, meta=_judgement(v)) for i, v in enumerate(verdicts)]
    for row, verdict in zip(rows, verdicts, strict=True):
        row.reward, row.reward_parts = verdict.reward, verdict.parts
    return rows


class Model:
    """A part outside the pool, with what it is to say of each answer."""

    def __init__(self, *verdicts):
        self.verdicts, self.closed = verdicts, False

    def check(self, data_sources):
        if "rlx/show-your-work" in data_sources:
            raise UserError("refused by the model")

    async def score(self, requests):
        await asyncio.sleep(0.01)
        return list(self.verdicts[: len(requests)])

    def close(self):
        self.closed = True


def test_rules_and_a_model_add_up_by_their_weights():
    cfg = RewardConfig(scorers={"task": 1, "format": {"weight": 0.5}, "qa_f1": 0, "judge": 2})
    model = Model(Verdict(0.25), failed("no reply"))
    with Scorers(cfg, {"judge": model}) as scorers:
        scorers.check(["openai/gsm8k"])
        right, wrong = asyncio.run(scorers.score(requests(RIGHT, WRONG)))
        with pytest.raises(UserError, match="refused by the model"):
            scorers.check(["rlx/show-your-work"])
    assert model.closed
    assert right.reward == 1 + 0.5 + 0 + 2 * 0.25 and right.acc == 1 and right.pred == "4" and right.error is None
    assert (right.parts["task"], right.parts["format"], right.parts["judge"]) == (1, 1, 0.25)
    assert "qa_f1" in right.parts
    assert wrong.reward == 0 and wrong.error is None
    assert wrong.failures == {"task": None, "format": None, "qa_f1": None, "judge": "no reply"}


def test_what_is_logged_is_what_is_trained_on():
    """Case R18: weights 1 and 0, and a scorer that fails: one definition, failures counted."""
    parts = {"task": RewardPart(1), "format": RewardPart(0), "judge": RewardPart(0.5)}
    told = [
        {"task": Verdict(1.0, acc=1.0), "format": Verdict(1.0), "judge": Verdict(0.5)},
        {"task": Verdict(0.0, acc=0.0), "format": Verdict(1.0), "judge": failed("timeout: 1 s")},
        {"task": failed("ValueError: x"), "format": Verdict(0.0), "judge": Verdict(1.0)},
    ]
    rows = trajectories([composed(parts, verdicts) for verdicts in told])
    metrics = scoring(rows)
    assert [t.reward for t in rows] == [1.25, 0.0, 0.5]
    by_parts = sum(part.weight * metrics[f"reward/{name}/mean"] for name, part in parts.items())
    assert fmean(t.reward for t in rows) == pytest.approx(by_parts)
    assert [metrics[f"reward/{name}/failed"] for name in parts] == [1, 0, 1]
    assert metrics["reward/failed"] == 0
    assert [t.meta["acc"] for t in rows] == [1.0, 0.0, None]


def test_an_answer_is_not_scored_when_all_parts_with_a_weight_failed():
    parts = {"task": RewardPart(1), "format": RewardPart(0.0), "judge": RewardPart(-1)}
    verdict = composed(parts, {"task": failed("a"), "format": Verdict(1.0), "judge": failed("b")})
    assert (verdict.reward, verdict.error) == (0.0, "task: a; judge: b")
    assert verdict.parts == {"task": 0.0, "format": 1.0, "judge": 0.0}


def test_further_numbers_keep_apart_and_accuracy_comes_from_who_has_one():
    parts = {"format": RewardPart(0.2), "task": RewardPart(1), "math": RewardPart(1)}
    verdicts = {
        "format": Verdict(1.0, parts={"tags": 1.0}, pred="x"),
        "task": Verdict(0.5, parts={"format": 0.0, "shown": 1.0}),
        "math": Verdict(1.0, acc=1.0, pred="4", reason="right"),
    }
    verdict = composed(parts, verdicts)
    assert verdict.parts == {"format": 1.0, "task": 0.5, "math": 1.0, "format/tags": 1.0, "shown": 1.0}
    assert (verdict.acc, verdict.pred, verdict.reason) == (1.0, "4", "right")


def test_without_composition_a_verdict_is_the_rules_own():
    with Scorers(RewardConfig(reward_kwargs={"method": "flexible"})) as scorers:
        (verdict,) = asyncio.run(scorers.score(requests("it is 4")))
    assert verdict == Verdict(1.0, {"format": 0.0}, 1.0, "4", verdict.reason)


def test_a_part_that_hangs_or_dies_costs_only_itself(tmp_path):
    """The parts before it keep their scores, and those behind it are computed by another process."""
    file = tmp_path / "reward.py"
    file.write_text(
        "import os\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    while solution_str == 'loop': pass\n"
        "    if solution_str == 'die': os._exit(3)\n"
        "    return 1.0"
    )
    cfg = RewardConfig(CustomRewardConfig(str(file)), timeout_s=0.5, scorers={"gsm8k": 1, "task": 1, "repetition": 0.0})
    with Scorers(cfg) as scorers:
        verdicts = asyncio.run(scorers.score(requests("#### 4", "loop", "die", "#### 4")))
    assert [v.reward for v in verdicts] == [2, 0, 0, 2]
    assert [v.failures["task"] for v in verdicts] == [
        None,
        "timeout: no score within 0.5 s",
        "crash: the scorer process ended with status 3",
        None,
    ]
    assert all(v.error is None and v.failures["gsm8k"] is None and v.failures["repetition"] is None for v in verdicts)


def test_a_part_that_fails_on_all_first_answers_is_refused():
    rows = trajectories(
        [Verdict(1.0, failures={"task": None, "judge": "ConnectionError: no"}, acc=1.0) for _ in range(3)]
    )
    with pytest.raises(RunError, match=r"the part judge of the reward failed on all 3 .*ConnectionError"):
        refuse_broken_scorer(rows)
    rows[1].meta["failures"] = {"task": None, "judge": None}
    refuse_broken_scorer(rows)


def test_weights_and_keywords_are_read():
    cfg = RewardConfig(
        reward_kwargs={"method": "boxed"}, scorers={"format": 0.5, "task": {"weight": 2, "x": 1}, "qa": {}}
    )
    assert reward_parts(cfg) == {
        "format": RewardPart(0.5),
        "task": RewardPart(2.0, {"method": "boxed", "x": 1}),
        "qa": RewardPart(1.0),
    }
    assert reward_parts(RewardConfig()) == {"task": RewardPart(1.0)}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["reward.scorers={task: 0, format: 0}"], "no part with a weight other than 0"),
        (["reward.scorers={tsk: 1}"], "reward.scorers.tsk: no such scorer; did you mean task"),
        (["reward.scorers={aime*: 1}"], r"reward.scorers.aime\*: no such scorer"),
        (["reward.scorers={task: yes please}"], "reward.scorers.task: its weight is 'yes please'"),
        (["reward.scorers={task: true}"], "reward.scorers.task: its weight is True"),
        (["reward.scorers={task: .nan}"], "reward.scorers.task: its weight is nan, not a finite"),
        (
            ["reward.scorers={gsm8k: {weight: 1, methood: flexible}}"],
            "gsm8k.methood: no such keyword; it takes weight, m",
        ),
        (["reward.scorers.format={weigth: 1}"], "format.weigth: no such keyword"),
        (["reward.scorers={task: 1, judge: {model: x}}"], "its settings are the keys of reward.judge, not model"),
        (["reward.memory_mb=10"], "reward.memory_mb=10"),
        (["reward.cpu_s=0"], "reward.cpu_s=0"),
    ],
)
def test_what_is_wrong_with_parts_is_told_before_anything_starts(settings, said):
    with pytest.raises(UserError, match=said):
        resolve("smoke", settings)


def test_values_of_named_rules_are_checked_before_a_model_is_made():
    check_named_rules(RewardConfig(scorers={"task": 1, "repetition": {"weight": 0.5, "n": 3}}))
    for keywords, said in (({"n": 0}, "n is 0"), ({"unit": "lines"}, r"unit='lines': expected")):
        with pytest.raises(UserError, match=f"^reward.scorers.repetition: {said}"):
            check_named_rules(RewardConfig(scorers={"task": 1, "repetition": keywords}))


def test_keys_that_composition_leaves_without_effect_are_told():
    idle = resolve("smoke", ["reward.scorers={gsm8k: 1}", "reward.reward_kwargs={method: boxed}"]).warnings
    assert any("reward.reward_kwargs" in warning and "task" in warning for warning in idle)
    judged = ["reward.scorers={judge: 1}", "reward.judge.url=http://host/v1", "reward.judge.model=m", "reward.cpu_s=1"]
    assert any("reward.cpu_s" in warning for warning in resolve("smoke", judged).warnings)
    assert not any("reward." in w for w in resolve("smoke", ["reward.scorers={task: 1, format: 0.1}"]).warnings)


def test_verls_reward_managers_are_what_is_done_anyway_or_refused_with_a_way():
    """gdpo reads rewards by name, as algorithm.gdpo_reward_keys does here from any scorer."""
    for name in ("naive", "dapo", "gdpo"):
        assert translate("reward.reward_manager.name", name).path is None
    assert "reward.scorers" in translate("reward.reward_manager.name", "prime").text


def test_a_missing_reward_file_is_told_before_any_model_is_made():
    with pytest.raises(UserError, match="no such reward file"):
        check_named_rules(RewardConfig(custom_reward_function=CustomRewardConfig(path="nowhere.py")))
