"""When keys of the reward change nothing, and the switch that would give them effect."""

from verl_core.config.effective import uses_rollout
from verl_core.config.idle_rule_kinds import Rule
from verl_core.config.model_roles import scores_by_model
from verl_core.config.reward_parts import TASK, uses_rules
from verl_core.config.sandbox_checks import runs_programs, runs_remotely

REWARD_RULES = [
    Rule(
        ("reward.overlong_buffer.len", "reward.overlong_buffer.penalty_factor"),
        lambda c: not c.reward.overlong_buffer.enable,
        "reward.overlong_buffer.enable=true",
    ),
    Rule(
        ("reward.length_shaping.weight",),
        lambda c: c.reward.length_shaping.form is None,
        "reward.length_shaping.form=cosine or another",
    ),
    Rule(
        tuple(f"reward.length_shaping.{key}" for key in ("right", "wrong", "exceeded")),
        lambda c: c.reward.length_shaping.form not in ("linear", "cosine"),
        "reward.length_shaping.form=cosine or linear",
    ),
    Rule(
        ("reward.length_shaping.form",),
        lambda c: c.reward.length_shaping.form == "group" and c.rollout.n < 2,
        "rollout.n=2 or more: the group form compares the answers to one prompt",
    ),
    Rule(
        ("reward.num_workers", "reward.timeout_s", "reward.cpu_s", "reward.memory_mb", "reward.max_queue"),
        lambda c: uses_rollout(c) and not uses_rules(c.reward),
        "reward.scorers={task: 1} or another with a rule",
    ),
    Rule(
        ("reward.custom_reward_function.", "reward.reward_kwargs."),
        lambda c: uses_rollout(c) and bool(c.reward.scorers) and TASK not in c.reward.scorers,
        "reward.scorers={task: 1} or another with task in it",
    ),
    Rule(
        ("reward.custom_reward_function.name",),
        lambda c: c.reward.custom_reward_function.path is None,
        "reward.custom_reward_function.path",
    ),
    Rule(
        ("reward.reward_model.",),
        lambda c: uses_rollout(c) and not scores_by_model(c),
        "reward.scorers={task: 1, reward_model: 1} or another that names it",
    ),
    Rule(
        ("reward.judge.",),
        lambda c: uses_rollout(c) and "judge" not in c.reward.scorers,
        "reward.scorers={task: 1, judge: 1} or another that names it",
    ),
    Rule(("reward.judge.scale",), lambda c: bool(c.reward.judge.labels), "reward.judge.labels={}"),
    Rule(
        ("reward.judge.instruction",),
        lambda c: c.reward.judge.instruction_file is not None,
        "reward.judge.instruction_file=null",
    ),
    Rule(
        ("reward.judge.retries", "reward.judge.max_requests", "reward.judge.extra_body"),
        lambda c: c.reward.judge.engine is not None,
        "reward.judge.engine=null and reward.judge.url",
    ),
    Rule(
        ("reward.sandbox.",),
        lambda c: c.reward.custom_reward_function.path is not None and not runs_programs(c),
        "reward.scorers={task: 1, code: 1} or another that names the rule code",
        also=("reward.custom_reward_function.path",),
    ),
    Rule(
        tuple(f"reward.sandbox.{key}" for key in ("url", "max_concurrent", "retries")),
        lambda c: c.reward.sandbox.type not in ("auto", "remote"),
        "reward.sandbox.type=remote",
    ),
    Rule(
        ("reward.sandbox.max_concurrent", "reward.sandbox.retries"),
        lambda c: c.reward.sandbox.url is None,
        "reward.sandbox.url",
    ),
    Rule(("reward.sandbox.tmp_mb",), lambda c: runs_remotely(c.reward.sandbox), "reward.sandbox.type=bubblewrap"),
]
