"""What is learned from the answers of a data set, on a real rank: against transformers' own numbers."""

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from tests.controller.controller_tiny import one_rank, tiny_config, tiny_model
from verl_core.batch import Trajectory, collate
from verl_core.config.catalogue import entry, implementation
from verl_core.config.effective import trained_roles
from verl_core.config.schema import RlxConfig
from verl_core.controller.roles import Role
from verl_core.controller.run import Run
from verl_core.data.examples import ExampleDataset, form_of
from verl_core.models.builtin import PAD
from verl_core.models.pretrained import load_tokenizer
from verl_core.tracking.records import RunRecords
from verl_core.tracking.timing import Timer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def groups_of(config: RlxConfig, model: Path, count: int) -> list[list[Trajectory]]:
    tokenizer = load_tokenizer(config.model, str(model))
    form = form_of(entry("algorithm", config.algorithm.name).needs)
    data = ExampleDataset("builtin:show-your-work", config.data, tokenizer, "train", 0, form)
    return [data.group(row) for row in data.take(range(count))]


def learn(config: RlxConfig, model: Path, steps: int) -> tuple[list[dict], list[dict], dict[str, object]]:
    """What the flow measures before each step and after the last one, each step's metrics, and the ranks' engines."""
    batch = collate(groups_of(config, model, 8))
    with one_rank(config, model) as group:
        flow = implementation("algorithm", config.algorithm.name)(
            config, {name: Role(name, group) for name in trained_roles(config)}
        )

        async def work() -> tuple[list[dict], list[dict]]:
            measured, metrics = [await flow.measure(batch, Timer())], []
            for step in range(1, steps + 1):
                metrics.append(await flow.update(await flow.prepare(batch, Timer()), step, Timer()))
                measured.append(await flow.measure(batch, Timer()))
            return measured, metrics

        return *asyncio.run(work()), dict(group.worker.engines)


def config_of(profile: str, *keys: str) -> RlxConfig:
    """One mini-batch of eight rows a step, lengths checked when they are looked at."""
    few = ("data.train_batch_size=8", "actor.ppo_mini_batch_size=8", "data.truncation=left")
    return tiny_config(profile, *few, "actor.optim.lr_scheduler_type=constant", "actor.optim.lr_warmup_steps=0", *keys)


def test_supervised_loss_is_transformers_own_and_falls(model: Path):
    config = config_of("smoke-sft")
    measured, metrics, engines = learn(config, model, 3)
    reference = AutoModelForCausalLM.from_pretrained(model)
    summed, count = 0.0, 0
    for (t,) in groups_of(config, model, 8):
        ids = torch.tensor([t.ids])
        labels = ids.where(torch.tensor([t.mask]).bool(), -100)
        with torch.no_grad():
            summed += float(reference(input_ids=ids, labels=labels).loss) * sum(t.mask)
        count += sum(t.mask)
    assert measured[0]["loss"] == pytest.approx(summed / count, rel=1e-5)
    assert metrics[0]["actor/loss"] == pytest.approx(measured[0]["loss"], rel=1e-5)
    assert measured[3]["loss"] < measured[1]["loss"] < measured[0]["loss"]
    assert list(engines) == ["actor"] and engines["actor"].updates == 3


def test_a_reward_is_the_value_head_at_the_last_token(model: Path):
    config = config_of("smoke-rm", "actor.optim.lr=1e-2")
    measured, metrics, engines = learn(config, model, 4)
    assert measured[0] == {"loss": pytest.approx(0.6931472), "acc": 0.0, "margin": 0.0}  # the head begins with zeros
    assert metrics[0]["reward_model/loss"] == pytest.approx(0.6931472, rel=1e-5)
    reference = AutoModelForTokenClassification.from_pretrained(model, num_labels=1)
    reference.load_state_dict(engines["reward_model"].state().weights)
    reference.eval()
    gaps = []
    for group in groups_of(config, model, 8):
        with torch.no_grad():
            chosen, rejected = (float(reference(input_ids=torch.tensor([t.ids])).logits[0, -1, 0]) for t in group)
        gaps.append(chosen - rejected)
    assert measured[4]["margin"] == pytest.approx(sum(gaps) / 8, rel=1e-4)
    assert measured[4]["acc"] == sum(gap > 0 for gap in gaps) / 8
    assert measured[4]["loss"] < measured[0]["loss"]
    assert list(engines) == ["reward_model"] and engines["reward_model"].updates == 4


def test_micro_batches_of_any_size_give_the_same_step(model: Path):
    """Pairs stay whole in each."""
    seen = [
        learn(config_of("smoke-rm", f"actor.ppo_micro_batch_size_per_gpu={size}"), model, 2)[1][1] for size in (2, 6)
    ]
    for name in ("reward_model/loss", "reward_model/grad_norm"):
        assert seen[0][name] == pytest.approx(seen[1][name], rel=2e-4), name


def test_a_model_that_does_not_stop_where_the_answers_end_is_a_warning(model: Path, tmp_path: Path):
    """Base models often stop at another token than the one that ends their chat template's turns."""
    base = Path(shutil.copytree(model, tmp_path / "base"))
    for name, told in (("generation_config.json", {"eos_token_id": 0}), ("tokenizer_config.json", {"eos_token": PAD})):
        (base / name).write_text(json.dumps(json.loads((base / name).read_text()) | told))
    said: dict[Path, list[str]] = {model: [], base: []}
    for folder, lines in said.items():
        run = Run(config_of("smoke-sft"), RunRecords(tmp_path), str(folder), False, False, lambda: False)
        run._compare_ends(run.generation.prompts("train"), lines.append)
    assert said[model] == []
    assert re.search(r"end with <\|im_end\|>, at which this model does not stop: set rollout.stop", said[base][0])
