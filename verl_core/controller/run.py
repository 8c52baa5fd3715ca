"""A run's parts, built once and in order: data, ranks, sources, validation, checkpoints, trackers."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from verl_core.batch import Batch
from verl_core.checkpoint.place import saves_of
from verl_core.checkpoint.retention import Retention
from verl_core.checkpoint.saves import Saves
from verl_core.config.catalogue import implementation
from verl_core.config.effective import role_pools, settled, total_ranks, trained_roles, uses_rollout
from verl_core.config.model_roles import shares_prompts
from verl_core.config.schema import FilterGroupsConfig, RlxConfig
from verl_core.config.urls import checkpoints_url
from verl_core.controller import parity
from verl_core.controller.accounting import Accounts, costs_of
from verl_core.controller.buffer import ReplayBuffer
from verl_core.controller.collecting import Collector
from verl_core.controller.flows import Flow, PolicyFlow, schedule_span
from verl_core.controller.generation import Generation
from verl_core.controller.profiler import Profiler
from verl_core.controller.rollouts import Rollout
from verl_core.controller.saving import Progress, Saver
from verl_core.controller.sources import DatasetSource, RolloutSource, Source
from verl_core.controller.validate import ExampleValidator, Validator
from verl_core.data.dataset import PromptDataset
from verl_core.data.examples import ExampleDataset
from verl_core.data.loader import PromptLoader
from verl_core.platforms import current
from verl_core.tracking.records import RunRecords
from verl_core.tracking.timing import Timer
from verl_core.tracking.trackers import Trackers, build_trackers

log = logging.getLogger(__name__)


class Run:
    """Everything `train` works with."""

    def __init__(
        self,
        config: RlxConfig,
        records: RunRecords,
        model_folder: str,
        resume: bool,
        json_mode: bool,
        stop: Callable[[], bool],
    ):
        self.config, self.resume, self.json_mode = config, resume, json_mode
        self.records, self.run_dir = records, records.run_dir
        self.timer = Timer()
        self.generation = Generation(config, model_folder, timer=self.timer, run_dir=self.run_dir)
        self.progress = Progress()
        self.buffer = ReplayBuffer()
        self.logged: dict[str, float | None] = {}  # the last line of metrics
        self._stop = stop
        self._trackers: Trackers | None = None

    async def start(self, stack: AsyncExitStack, say: Callable[[str], None]) -> None:
        """Reads the data, starts the ranks, restores the checkpoint, opens the trackers, holds the parity gate.
        Raises UserError, MachineError or RunError; nothing is trained before all of it is well."""
        c = self.config
        dataset = self.generation.prompts("train")
        loader = PromptLoader(dataset, c.data, settled(c.data.seed))
        self.total_steps = c.trainer.total_training_steps or c.trainer.total_epochs * loader.steps_per_epoch
        each = f" x {c.rollout.n}" if self.generates else ""
        say(f"{len(dataset)} training {dataset.what}, {self.total_steps} steps of {c.data.train_batch_size}{each}")

        if isinstance(dataset, ExampleDataset) and "actor" in role_pools(c):
            self._compare_ends(dataset, say)

        held_out = self.generation.val_prompts()
        prompts = {"train": dataset} | ({"val": held_out} if held_out is not None else {})

        await self.generation.start(stack)
        if self.generates:
            for part in prompts.values():
                self.generation.scorers.check(part.data_sources)
        self.rollout = self.generation.rollout
        pools, roles = self.generation.groups, self.generation.roles
        self.accounts = Accounts(list(roles.values()), pools)
        for role in self.accounts.roles:
            role.costs = costs_of(c, role.name, self.generation.model_folder)
            role.share_prompt = shares_prompts(c, role.name)
        self.profiler = Profiler(c.trainer, pools, self.run_dir)
        trained = [roles[name] for name in trained_roles(c)]
        for role in trained:
            await role.plan_schedule(*schedule_span(c, self.total_steps, role.name))
            trains, has = await role.parameter_counts()
            log.info(told := f"the {role.name} trains {trains:,} of its {has:,} parameters")
            if trains < has:
                say(told)

        self.flow: Flow = (implementation("algorithm", c.algorithm.name) or PolicyFlow)(c, roles)
        self.flow.check(self.generation.model_folder, self.generation.tokenizer, dataset.data_sources)
        self.source: Source = self._source(loader, dataset)
        stack.push_async_callback(self.source.close)
        filters = c.algorithm.filter_groups if self.generates else FilterGroupsConfig()  # what is read is all alike
        self.collector = Collector(self.source, self.buffer, c.data.train_batch_size, filters, self._stop)
        self.validator = self._validator(held_out) if held_out is not None else None
        best = c.trainer.keep_best
        keep = Retention(c.trainer.max_ckpt_to_keep, best.metric, best.mode)
        store = saves_of(c.trainer, self.run_dir, keep)
        self.saver = Saver(store, trained, loader, self.buffer, self.flow)
        stack.push_async_exit(self.saver.close)
        resume_step = await self._restore(store, say)

        if self.generates:
            await self.rollout.push_weights(self.progress.version)
            self.flow.old_from_rollout = await self._hold_parity(dataset)
        await self.accounts.start()
        hashes = {k: p.content_hash() for k, p in prompts.items()}
        self.records.start(self._hardware(), hashes, resume_step, checkpoints_url(c.trainer))
        self._trackers = build_trackers(
            c.trainer, self.run_dir, resume_step, self.json_mode, self.total_steps, dataclasses.asdict(c)
        )

    @property
    def generates(self) -> bool:
        """Whether answers are generated and scored, or read."""
        return uses_rollout(self.config)

    def _compare_ends(self, dataset: ExampleDataset, say: Callable[[str], None]) -> None:
        """A base model may stop at another token than its chat template's turns end with."""
        if not self.generation.stops_at(token := dataset.last_id):
            end = self.generation.tokenizer.convert_ids_to_tokens(token)
            log.warning(
                told := f"the answers end with {end}, at which this model does not stop: set rollout.stop=['{end}'] "
                f"where it generates, or add {token} to eos_token_id in its generation_config.json"
            )
            say(f"warning: {told}")

    def _source(self, loader: PromptLoader, dataset: PromptDataset) -> Source:
        if isinstance(dataset, ExampleDataset):
            return DatasetSource(loader, dataset, self.buffer)
        return RolloutSource(self.config, loader, self.generation.maker, self.buffer, self.generation.demonstrations())

    def _validator(self, held_out: PromptDataset) -> Validator | ExampleValidator:
        if isinstance(held_out, ExampleDataset):
            return ExampleValidator(held_out, self.flow, self.timer)
        return self.generation.validator(held_out)

    @property
    def stop_requested(self) -> bool:
        return self._stop()

    async def _restore(self, store: Saves[Any], say: Callable[[str], None]) -> int | None:
        """Step of the checkpoint the run goes on from; -1 when --resume found none; None for a new run."""
        if not self.resume:
            return None
        store.recover()
        folder = store.latest()
        if folder is None:
            log.warning("no whole checkpoint in %s: the run starts from the beginning", store.folder)
            self.records.cut_back(-1)
            return -1
        for slot in await self.saver.load(folder, self.progress):
            self.source.start(slot)
        self.records.cut_back(self.progress.step)
        say(f"resumed from {folder.name}")
        if self.progress.step >= self.total_steps:
            say(
                f"nothing left to do: {self.progress.step} of {self.total_steps} steps are done; a larger "
                "trainer.total_training_steps goes on"
            )
        return self.progress.step

    async def _hold_parity(self, dataset: PromptDataset) -> bool:
        """Runs the gate and says whether old log-probs are the engine's."""
        c, g = self.config, self.generation
        assert isinstance(g.rollout, Rollout)
        dtypes = await g.rollout.dtypes()
        measured = None
        if c.trainer.parity != "off":
            measured = await parity.measure(c, dataset, g.client.generate, g.actor, dtypes)
            parity.enforce(measured, c)
        return parity.engine_serves(c, dtypes, measured, self.flow.old_from_rollout)

    def _hardware(self) -> dict[str, Any]:
        platform = current(self.config.trainer.device)
        return {
            "device": platform.name,
            "name": platform.hardware,
            "ranks": {k: g.size for k, g in self.generation.groups.items()},
        }

    def keep_rollouts(self, batch: Batch, step: int) -> None:
        rows = [
            {
                "group": t.group, "sample": t.sample, "reward": t.reward, "reward_parts": t.reward_parts,
                "finish": t.finish, "tokens": sum(t.mask),
                **{name: value for name, value in t.meta.items() if name != "demonstration"},
            }
            for t in batch["trajectory_blob"]
        ]  # fmt: skip
        self.records.write_rollouts(step, rows, self.config.trainer.log_rollouts)

    async def log(self, metrics: dict[str, float], batch: Batch | None = None) -> None:
        """One line of metrics for the step the run has reached."""
        assert self._trackers is not None
        tokens, produced = (batch.N, int(batch["mask_N"].sum())) if batch else (0, 0)
        ranks = total_ranks(self.config)
        place = {"training/global_step": self.progress.step, "training/epoch": self.source.loader.epoch}
        place |= self.source.loader.metrics()
        engines = {"rollout/restarts": float(self.rollout.restarts)} if self.generates else {}
        memory = await self.accounts.memory()
        timing = self.timer.end_step(tokens, produced, ranks)
        used = self.accounts.utilisation(timing)
        self.logged = {**metrics, **place, **engines, **memory, **timing, **used}
        self._trackers.log(self.progress.step, self.logged)

    def finish(self, exit_code: int, reason: str) -> dict[str, Any]:
        """Closes the trackers and writes summary.json; returns the summary."""
        if self._trackers is not None:
            self._trackers.finish(exit_code)
        return self.records.finish(reason, self.timer.unlogged())
