"""What teachers and PRIME's reward model say of a batch, on a real rank: against transformers' own numbers."""

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.controller.controller_tiny import answers, one_rank, tiny_config, tiny_model
from verl_core.config.catalogue import implementation
from verl_core.config.compose import resolve
from verl_core.config.effective import effective, role_pools, trained_roles
from verl_core.config.errors import UserError
from verl_core.config.schema import RlxConfig
from verl_core.controller.eval_job import _generation_only
from verl_core.controller.job import find_frozen
from verl_core.controller.roles import Role
from verl_core.data.builtin import builtin_corpus
from verl_core.models.builtin import write_builtin
from verl_core.models.tokenizer import load_tokenizer
from verl_core.tracking.timing import Timer

TEACHER = "distillation.teacher_models"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of the student's family with weights of their own, not warmed up either."""
    folders = [tmp_path_factory.mktemp("teacher") / name for name in ("one", "two")]
    for seed, folder in enumerate(folders, 1):
        write_builtin(folder, builtin_corpus("builtin:show-your-work", 0), seed)
    return folders


def batch_of_two_sources():
    batch = answers(4, 2)
    for s, t in enumerate(batch["trajectory_blob"]):
        t.meta |= {"data_source": "sums" if batch.group_S[s] % 2 else "words", "acc": t.reward}
    return batch


def on_a_rank(config: RlxConfig, model: Path, work):
    """What the coroutine `work(flow)` returns, with real roles."""
    with one_rank(config, model) as group:
        roles = {name: Role(name, group) for name in role_pools(config) if name != "rollout"}
        flow = implementation("algorithm", config.algorithm.name)(config, roles)
        flow.old_from_rollout = False
        flow.vocabulary = 256
        return asyncio.run(work(flow))


async def one_step(flow):
    batch = await flow.prepare(batch_of_two_sources(), Timer())
    return batch, flow.advantage(batch) | await flow.update(batch, 1, Timer())


def logits_of(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    """Log-probs [T, V] of the tokens, each from those before it; the first row is nothing."""
    network = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        return network(input_ids=ids[None]).logits[0].log_softmax(-1).roll(1, 0)


def test_each_row_is_judged_by_the_teacher_of_its_source(model: Path, teachers: list[Path]):
    one, two = teachers
    config = tiny_config(
        "smoke", "algorithm.name=opd", "distillation.coef=0.5",
        f"{TEACHER}.a.model_path={one}", f"{TEACHER}.a.key=words",
        f"{TEACHER}.b.model_path={two}", f"{TEACHER}.b.key=sums",
    )  # fmt: skip
    batch, metrics = on_a_rank(config, model, one_step)
    for s, t in enumerate(batch["trajectory_blob"]):
        own = (batch.seq_N == s) & batch["mask_N"]
        ids = batch["ids_N"][batch.seq_N == s]
        logp_TV = logits_of(one if t.meta["data_source"] == "words" else two, ids)
        expected = logp_TV.gather(1, ids[:, None])[:, 0][batch["mask_N"][batch.seq_N == s]]
        torch.testing.assert_close(batch["teacher_logp_N"][own], expected, rtol=1e-4, atol=1e-4)
        gain = 0.5 * (batch["teacher_logp_N"][own] - batch["old_logp_N"][own])
        torch.testing.assert_close(batch["advantages_N"][own], gain)
    both = metrics["distillation/reverse_kl/a"], metrics["distillation/reverse_kl/b"]
    assert min(both) < metrics["distillation/reverse_kl"] < max(both)
    assert metrics["actor/grad_norm"] > 0 and list(trained_roles(config)) == ["actor"]


def test_its_likeliest_tokens_are_what_the_student_is_drawn_to(model: Path, teachers: list[Path]):
    words = ["distillation.loss_mode=forward_kl_topk", "distillation.use_policy_gradient=false", "distillation.topk=3"]
    config = tiny_config("smoke", "algorithm.name=opd", f"{TEACHER}.a.model_path={teachers[0]}", *words)

    async def twice(flow):
        flow.vocabulary = 200  # as if the last ids were padding of a larger output layer
        batch, first = await one_step(flow)
        return batch, first, await flow.update(batch, 2, Timer())

    batch, first, second = on_a_rank(config, model, twice)
    assert not batch["advantages_N"].any() and first["actor/pg_loss"] == 0
    at = int(batch["mask_N"].nonzero()[0, 0])
    s = int(batch.seq_N[at])
    logp_V = logits_of(teachers[0], batch["ids_N"][batch.seq_N == s])[int(batch.position_N[at])]
    top = logp_V.topk(3)
    padding = top.indices >= 200
    assert batch["teacher_ids_NK"][at].tolist() == top.indices.masked_fill(padding, 0).tolist()
    torch.testing.assert_close(
        batch["teacher_topk_logp_NK"][at], top.values.masked_fill(padding, -torch.inf), rtol=1e-4, atol=1e-4
    )
    assert second["distillation/loss"] < first["distillation/loss"]
    assert first["actor/loss"] == pytest.approx(first["distillation/loss"], rel=1e-5)


def test_k1_as_an_advantage_and_k2_back_propagated_are_the_same_first_step(model: Path, teachers: list[Path]):
    opd = ["algorithm.name=opd", f"{TEACHER}.a.model_path={teachers[0]}", "actor.grad_clip=1e9"]
    norms = [
        on_a_rank(tiny_config("smoke", *opd, *words), model, one_step)[1]["actor/grad_norm"]
        for words in ([], ["distillation.loss_mode=k2", "distillation.use_policy_gradient=false"])
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_a_teacher_is_stored_as_it_computes(model: Path, teachers: list[Path]):
    words = ["algorithm.name=opd", f"{TEACHER}.a.model_path={teachers[0]}", "actor.fsdp_config.dtype=bfloat16"]
    with one_rank(tiny_config("smoke", *words), model) as group:
        stored = {name: {p.dtype for p in e.model.parameters()} for name, e in group.worker.engines.items()}
    assert stored == {"actor": {torch.float32}, "teacher_a": {torch.bfloat16}}


def test_task_rewards_are_added_when_asked_for(model: Path, teachers: list[Path]):
    words = ["algorithm.adv_estimator=grpo", "distillation.use_task_rewards=true"]
    seen = {}
    for more in ([], words):
        config = tiny_config("smoke", "algorithm.name=opd", f"{TEACHER}.a.model_path={teachers[0]}", *more)
        batch, _ = on_a_rank(config, model, one_step)
        seen[bool(more)] = batch["advantages_N"]
    sign_N = torch.where(batch["reward_S"][batch.seq_N] > 0.5, 1.0, -1.0)
    task_N = (0.5 / (0.5**0.5 + 1e-6)) * sign_N * batch["mask_N"]
    torch.testing.assert_close(seen[True] - seen[False], task_N, rtol=1e-4, atol=1e-4)


def test_a_teacher_of_other_words_and_rows_without_a_teacher_are_refused(model: Path, teachers: list[Path], tmp_path):
    write_builtin(tmp_path / "other", ["an altogether different corpus " * 20], 0)
    config = tiny_config("smoke", "algorithm.name=opd", f"{TEACHER}.a.model_path={tmp_path / 'other'}")

    def checked(config: RlxConfig, sources: set[str]) -> None:
        roles = {name: Role(name, None) for name in role_pools(config)}  # type: ignore[arg-type]
        flow = implementation("algorithm", "opd")(config, roles)
        flow.check(str(model), load_tokenizer(config.model, model), sources)

    with pytest.raises(UserError, match=r"tokenizers of student builtin:show-your-work and teacher .*other differ"):
        checked(config, {"words"})
    config = tiny_config(
        "smoke", "algorithm.name=opd", f"{TEACHER}.a.model_path={teachers[0]}", f"{TEACHER}.a.key=words"
    )
    checked(config, {"words"})
    with pytest.raises(UserError, match="no teacher for rows of sums"):
        checked(config, {"words", "sums"})
    likeliest = ["distillation.loss_mode=forward_kl_topk", "distillation.use_policy_gradient=false"]
    config = tiny_config(
        "smoke", "algorithm.name=opd", f"{TEACHER}.a.model_path={teachers[0]}", *likeliest, "distillation.topk=100000"
    )
    with pytest.raises(UserError, match=r"distillation.topk=100000: the tokenizer knows \d+ tokens"):
        checked(config, {"words"})


@pytest.mark.parametrize("words", [["algorithm.name=prime"], ["algorithm.name=opd", f"{TEACHER}.a.model_path=far"]])
def test_evaluation_starts_nobody_but_who_answers(words):
    asked = resolve("smoke", words).config
    assert {*role_pools(effective(asked))} > {"actor", "rollout"} == {*role_pools(_generation_only(asked, None))}


def test_the_reward_model_learns_from_outcomes_what_tokens_are_worth(model: Path):
    config = tiny_config("smoke", "algorithm.name=prime", "algorithm.prime.beta=0.5", "algorithm.prime.optim.lr=1e-3")

    async def twice(flow):
        first, metrics = await one_step(flow)
        second, again = await one_step(flow)
        return first, metrics, second, again, await flow.prepare(batch_of_two_sources(), Timer())

    first, metrics, second, again, third = on_a_rank(config, model, twice)
    assert trained_roles(config) == ("actor", "reward_model")
    assert not first["process_reward_N"].any() and metrics["reward_model/loss"] == pytest.approx(0.6931472)
    assert metrics["reward_model/kept_prompts"] == 1 and metrics["reward_model/process_reward"] == 0
    assert second["process_reward_N"][second["mask_N"]].any() and again["reward_model/loss"] < 0.6931472
    total_S = third.sum_S(third["process_reward_N"] * third["mask_N"])
    assert total_S[third["outcome_S"] == 1].mean() > total_S[third["outcome_S"] == 0].mean()
    torch.testing.assert_close(third["reward_ref_logp_N"], first["reward_ref_logp_N"])


def test_prompts_that_are_always_answered_rightly_teach_nothing(model: Path):
    config = tiny_config("smoke", "algorithm.name=prime")

    async def all_right(flow):
        batch = batch_of_two_sources()
        for t in batch["trajectory_blob"]:
            t.meta["acc"] = 1.0
        await flow.prepare(batch, Timer())
        flow.advantage(batch)
        return await flow.update(batch, 1, Timer())

    assert on_a_rank(config, model, all_right) == {"reward_model/kept_prompts": 0}


def test_a_teacher_that_is_not_there_is_missed_before_the_student_is_warmed_up(tmp_path: Path):
    config = effective(resolve("smoke-opd", [f"{TEACHER}.skilled.model_path={tmp_path / 'nobody'}"]).config)
    with pytest.raises(UserError, match=rf"^{TEACHER}\.skilled\.model_path: .*nobody"):
        find_frozen(config)
