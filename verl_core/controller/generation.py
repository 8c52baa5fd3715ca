"""What turns prompts into scored answers: ranks, engines and scorers, started together."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

from verl_core.config.catalogue import entry
from verl_core.config.effective import engines_apart, ranks_per_sequence, role_pools, settled, uses_rollout
from verl_core.config.model_roles import role_settings
from verl_core.config.prompt_files import training_files
from verl_core.config.schema import RlxConfig
from verl_core.controller.executors import Executor, WorkerGroup
from verl_core.controller.executors.base import placements
from verl_core.controller.executors.local import LocalExecutor
from verl_core.controller.model_rewards import check_models, model_parts
from verl_core.controller.roles import Role
from verl_core.controller.rollouts import NoRollout, Rollout
from verl_core.controller.sources import GroupMaker, val_sampling
from verl_core.controller.validate import Validator
from verl_core.data.dataset import PromptDataset
from verl_core.data.examples import ExampleDataset, form_of
from verl_core.models.pretrained import eos_ids, load_generation_config, load_hf_config, load_tokenizer
from verl_core.rewards.compose import Scorers
from verl_core.rollout.agent_loop import SingleTurn
from verl_core.rollout.client import RolloutClient
from verl_core.tracking.timing import Timer


def make_executor(config: RlxConfig) -> Executor:
    """The executor an effective configuration names."""
    if config.cluster.executor == "ray":
        from verl_core.controller.executors.ray import RayExecutor

        return RayExecutor()
    return LocalExecutor()


class Generation:
    """Shared by training and evaluation."""

    def __init__(
        self,
        config: RlxConfig,
        model_folder: str,
        blank: bool = False,
        timer: Timer | None = None,
        run_dir: Path | None = None,
    ):
        """`timer`: of the passes of a reward model. `run_dir`: where a judge's verdicts are kept."""
        self.config, self.model_folder, self.blank = config, model_folder, blank
        self.timer, self.run_dir = timer or Timer(), run_dir
        self.tokenizer = load_tokenizer(config.model, model_folder)

    async def start(self, stack: AsyncExitStack) -> None:
        """Starts everything; `stack` ends it again, also after a failure half-way."""
        c = self.config
        check_models(c)
        if uses_rollout(c):
            self.scorers = Scorers(c.reward)
            stack.callback(self.scorers.close)
        executor = make_executor(c)
        stack.push_async_callback(executor.close)
        self.groups: dict[str, WorkerGroup] = await executor.start(c, placements(c), self.model_folder, self.blank)
        self.roles = {
            name: Role(name, self.groups[pool], ranks_per_sequence(role_settings(c, name)))
            for name, pool in role_pools(c).items()
            if name != "rollout"
        }
        self.rollout: Rollout | NoRollout = NoRollout()
        if uses_rollout(c):
            for name, model in model_parts(c, self.roles, self.timer, self.run_dir).items():
                self.scorers.attach(name, model)
            await self._start_generating(stack)

    async def _start_generating(self, stack: AsyncExitStack) -> None:
        c = self.config
        if engines_apart(c):
            trainer, tells = self.groups[c.actor.pool], self.groups[settled(c.rollout.pool)].tells()
            await trainer.scatter("connect", [(tells,), *[((),)] * (trainer.size - 1)])
        self.rollout = Rollout(self.groups[settled(c.rollout.pool)], self.groups[c.actor.pool], c)
        stack.push_async_callback(self.rollout.close)
        self.client = RolloutClient(self.rollout.generate)
        self.maker = GroupMaker(SingleTurn(), self.client.generate, self.scorers, self.tokenizer, c.trainer.seed)

    @property
    def actor(self) -> Role:
        return self.roles["actor"]

    def val_prompts(self) -> PromptDataset | None:
        """The held-out prompts; None where the configuration names none. Needs no ranks."""
        return self.prompts("val") if self.config.data.val_files else None

    def prompts(self, split: Literal["train", "val"]) -> PromptDataset:
        """Those of a split, with their answers where the algorithm learns from these. Needs no ranks."""
        c, tokenizer = self.config, self.tokenizer
        files = training_files(c.data) if split == "train" else c.data.val_files or []
        # This seed splits the builtin problems (held out of warm-up and training alike); the loader's orders them.
        if uses_rollout(c):
            return PromptDataset(files, c.data, tokenizer, split, c.trainer.seed)
        form = form_of(entry("algorithm", c.algorithm.name).needs)
        return ExampleDataset(files, c.data, tokenizer, split, c.trainer.seed, form)

    def demonstrations(self) -> ExampleDataset | None:
        """Those of the training prompts, where the algorithm sets its own answers against them. Needs no ranks."""
        c = self.config
        if "demonstration" not in entry("algorithm", c.algorithm.name).needs:
            return None
        return ExampleDataset(training_files(c.data), c.data, self.tokenizer, "train", c.trainer.seed, "demonstrations")

    def stops_at(self, token: int) -> bool:
        """Whether an answer of the model ends with this id."""
        model, folder = self.config.model, self.model_folder
        return token in eos_ids(self.tokenizer, load_generation_config(folder), load_hf_config(model, folder))

    def validator(self, dataset: PromptDataset) -> Validator:
        return Validator(dataset, self.maker, val_sampling(self.config), self.config.rollout.val_kwargs.n)
