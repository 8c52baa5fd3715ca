"""What runs on one rank: the engines of the roles placed there, and the calls the controller makes to them. The same
class serves every executor; it knows its rank and nothing of the other pools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from verl_core.algorithms.loss import Loss, Need, Totals
from verl_core.batch import Batch
from verl_core.checkpoint.pieces import Piece
from verl_core.checkpoint.reference import REFERENCE
from verl_core.config.effective import learner, uses_reference
from verl_core.config.errors import MachineError
from verl_core.config.model_roles import (
    SCORING,
    frozen,
    model_of,
    role_settings,
    shares_prompts,
    trains_process_rewards,
)
from verl_core.config.schema import FsdpConfig, RlxConfig
from verl_core.config.user_module import declare_module
from verl_core.controller import addresses
from verl_core.controller.computing import prepare_computing
from verl_core.controller.engine_logs import engine_log
from verl_core.controller.engines import BesideTrainer, Seat, make_seat, served_adapter
from verl_core.controller.phases import CHECKPOINT, PUSH, ROLLOUT, Phases, forward_phase, update_phase
from verl_core.controller.rank_checkpoints import RankCheckpoints
from verl_core.controller.spans import Span
from verl_core.platforms import Platform, profiling
from verl_core.platforms.profiling import Profile
from verl_core.rollout.child.engine import ChildEngine
from verl_core.rollout.child.errors import EngineLost
from verl_core.rollout.parts import Interrupted, Part
from verl_core.rollout.protocol import Completion, TokenRequest
from verl_core.training.fsdp import FsdpEngine
from verl_core.training.protocol import MicroBatching, TrainEngine
from verl_core.weights.adapter_only import AdapterOnly
from verl_core.weights.courier import Courier
from verl_core.weights.sending import Tell


class Worker:
    def __init__(
        self, rank: int, world: int, config: RlxConfig, roles: Sequence[str], model_folder: str, blank: bool = False
    ):
        """`blank`: the folder gives architecture and tokenizer only; weights come from a checkpoint, by `load`."""
        if config.algorithm.module:  # a process of its own has yet to hear of it
            declare_module(config.algorithm.module)
        self.blank = blank
        self.rank, self.world, self.config, self.roles = rank, world, config, tuple(roles)
        self.model_folder = model_folder
        self.engines: dict[str, FsdpEngine] = {}
        ranks_here = min(world, max(pool.gpus for pool in config.cluster.pools.values()))
        self.checkpoints = RankCheckpoints(config, model_folder, rank == 0, ranks_here)
        self.seat: Seat | None = None
        self.span: Span  # of a rank that has, or shares, a rollout engine
        self.courier: Courier | None = None
        self.profile: Profile | None = None
        self.platform: Platform
        self.phases: Phases
        if config.trainer.profile_steps:
            profiling.prepare()

    def free_address(self) -> str:
        """host:port at which rank 0 can be met."""
        return addresses.free_address(self.config.cluster.ray_address)

    def start(self, master: str | None) -> None:
        """Joins the process group and builds the engines of this rank's roles."""
        c = self.config
        disable_progress_bar()  # of transformers: the run has its own
        self.platform = prepare_computing(c.trainer)
        self.phases = Phases(self.platform, self.rank)
        if master is not None:
            self.platform.set_device(0)
            self._join(master)
        with self.phases.phase("start"):
            self._build()

    def _join(self, master: str) -> None:
        """Raises MachineError where the ranks cannot meet: another process was given rank 0's port meanwhile, say."""
        try:
            torch.distributed.init_process_group(
                self.platform.comm_backend, init_method=f"tcp://{master}", rank=self.rank, world_size=self.world
            )
        except torch.distributed.DistNetworkError as error:
            taken = "EADDRINUSE" in str(error)
            why = "another process has taken that port" if taken else str(error).splitlines()[0]
            raise MachineError(
                f"rank {self.rank} cannot meet the other ranks at {master}: {why}",
                "start again: a free port is chosen each time" if taken else "look at firewalls between the nodes",
            ) from error

    def _build(self) -> None:
        c = self.config
        for role in self.roles:
            if role == "rollout":
                self.span = Span(c, self.rank, self.platform)
                with self.span.starting():
                    self.seat = self._new_seat() if self.span.has_engine else None
            else:
                self.engines[role] = self._train_engine(role)
        for role in set(self.roles) & set(frozen(c)):
            with self._resident(role):
                pass  # and back to where it waits for its turn
        if "reward_model" in self.engines and trains_process_rewards(c):
            self.engines["reward_model"].snapshot(REFERENCE)
        if "actor" in self.engines and uses_reference(c) and c.ref.pool == c.actor.pool:
            self.engines["actor"].snapshot(REFERENCE)

    def _train_engine(self, role: str) -> FsdpEngine:
        c = self.config
        settings, never_trained = role_settings(c, role), role in frozen(c)
        model = c.model if role == "actor" else replace(c.model, lora_rank=0)  # the reference is the base
        if never_trained:  # another architecture: what is overridden is the actor's
            model = replace(model, override_config={}, enable_gradient_checkpointing=False)
        return FsdpEngine(
            model,
            settings,
            role=role,
            frozen=never_trained,
            kind="value" if role == SCORING or role == learner(c) == "reward_model" else None,
            path=model_of(c, role, self.model_folder),  # a builtin model.path stands for what its warm-up made
            platform=self.platform,
            micro=MicroBatching(settings.ppo_micro_batch_size_per_gpu, settings.ppo_max_token_len_per_gpu),
            seed=c.trainer.seed,
            weights=never_trained or not self.blank,
            share_prompt=shares_prompts(c, role),
        )

    @property
    def _rollout_dtype(self) -> torch.dtype:
        named = self.config.rollout.dtype
        return getattr(torch, named) if named else self.platform.compute_dtype

    def dtypes(self) -> tuple[str, str]:
        """Names of the dtypes that the actor computes in and the rollout engine generates in."""
        trainer, engine = (
            str(d).removeprefix("torch.") for d in (self.engines["actor"].compute_dtype, self._rollout_dtype)
        )
        return trainer, engine

    # --- training ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _resident(self, role: str, with_optimizer: bool = False) -> Iterator[FsdpEngine]:
        """The engine on its device for the length of a call, and back in host memory after it where the role says."""
        engine, fsdp = self.engines[role], self._fsdp(role)
        moved = {name for name, on in (("params", fsdp.param_offload), ("optimizer", fsdp.optimizer_offload)) if on}
        if not with_optimizer:
            moved -= {"optimizer"}
        if moved:
            engine.offload("device", frozenset(moved))
        try:
            yield engine
        finally:
            if moved:
                engine.offload("cpu", frozenset(moved))
                self.phases.offloaded()

    def _fsdp(self, role: str) -> FsdpConfig:
        return role_settings(self.config, role).fsdp_config

    def plan_schedule(self, role: str, optimizer_steps: int, per_training_step: int) -> None:
        """Tells the role's learning-rate schedule how many optimizer steps the run has, and a training step."""
        self.engines[role].set_total_steps(optimizer_steps, per_training_step)

    def forward(
        self,
        role: str,
        batch: Batch,
        want: frozenset[Need],
        temperature: float,
        micro: MicroBatching | None,
        snapshot: str | None,
        k: int = 0,
    ) -> dict[Need, Tensor]:
        with (
            self.phases.phase(forward_phase(role, snapshot)),
            self._resident(role) as engine,
            engine.use(snapshot) if snapshot else nullcontext(),
        ):
            out = engine.forward(batch, want, temperature, micro, k)
        return out if engine.leads else {}  # what one of the ranks that split the rows says, all of them would

    def step(self, role: str, batch: Batch, loss: Loss, totals: Totals) -> dict[str, float]:
        with self.phases.phase(update_phase(role)), self._resident(role, with_optimizer=True) as engine:
            metrics = engine.step(batch, loss, totals)
            self.checkpoints.expect(role, engine)
        return metrics

    def renew_reference(self, role: str) -> None:
        """The role's present weights are its reference from now on."""
        with self.phases.phase("ref"), self._resident(role) as engine:
            engine.snapshot(REFERENCE)
        self.checkpoints.renewed.add(role)

    # --- generation -------------------------------------------------------------------------------------------------

    def _new_seat(self) -> Seat:
        where, log = self.span.environment, engine_log(self.config.trainer, self.rank)
        return make_seat(self.config, self.platform, self.model_folder, self._rollout_dtype, where, log)

    def connect(self, tells: Sequence[Tell]) -> None:
        """Tells a rank of the trainer of the engines on another pool; the first rank alone gets them, the others none.
        Called on all ranks."""
        self.courier = Courier(
            self.config.weights,
            tells,
            device=self.platform.device,
            dtype=self._rollout_dtype,
            address=addresses.own_host(self.config.cluster.ray_address),
        )

    def tell_inbox(self, method: str, message: dict[str, Any]) -> Any:
        """Calls a method of the weight inbox that stands beside the engine of this rank."""
        assert self.seat is not None and isinstance(self.seat.engine, ChildEngine)
        return self.seat.engine.call(method, **message).result()

    def push_weights(self, version: int, engines: Sequence[int]) -> dict[int, EngineLost]:
        """Gives the engines of these ranks the actor's weights. Called on all ranks of the trainer, because gathering a
        sharded weight needs them. Returns the engines that were lost meanwhile."""
        with self.phases.phase(PUSH), self._resident("actor") as engine:
            trainer: TrainEngine = engine if served_adapter(self.config) is None else AdapterOnly(engine)
            if self.courier is not None:
                return self.courier.push(trainer, version, engines)
            if self.rank not in engines:
                for _ in trainer.named_weights():
                    pass
                return {}
            assert isinstance(self.seat, BesideTrainer)
            try:
                self.seat.push(trainer, version)
            except EngineLost as error:
                return {self.rank: error}
        return {}

    def generate(self, requests: Sequence[TokenRequest]) -> list[Completion] | Interrupted:
        """Answers in the order of the requests, or what there is of them when the engine was lost."""
        assert self.seat is not None
        parts: list[Part] = []
        engine = self.seat.engine
        with self.phases.phase(ROLLOUT):
            if not isinstance(engine, ChildEngine):  # only one in a process of its own can be lost
                return engine.generate(requests)
            try:
                return engine.generate(requests, on_parts=parts.extend)
            except EngineLost as error:
                return Interrupted(parts, error)

    def tell_engine(self, method: str, *args: Any) -> Any:
        """Calls a method of the rollout engine."""
        assert self.seat is not None
        return getattr(self.seat.engine, method)(*args)

    def trim(self) -> None:
        """After a generation that was larger than those of training."""
        assert self.seat is not None
        self.seat.trim()

    def free_memory(self) -> None:
        """Gives back what this rank's allocator keeps for later: an engine that starts counts the memory that is free,
        on the GPU of each rank of its span."""
        self.platform.empty_cache()

    def restart_engine(self) -> None:
        """Replaces an engine that was lost by one without weights. Returns when it is ready for them."""
        self.close_engine()
        self.seat = self._new_seat()

    def close_engine(self) -> None:
        """Ends the engine; calls that are open raise EngineLost. May be called twice."""
        if self.seat is not None:
            self.seat.close()

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def save(self, role: str, folder: str, behind: bool = False) -> None:
        """This rank's share of <folder>/<role>: written, or (`behind`) taken, for `write_saved`."""
        with self.phases.phase(CHECKPOINT), self._resident(role, with_optimizer=True) as engine:
            self.checkpoints.save(role, engine, folder, behind)
            self.platform.synchronize()  # copies to pinned memory

    def write_saved(self) -> dict[str, Piece]:
        """See `RankCheckpoints.write`."""
        return self.checkpoints.write()

    def load(self, role: str, folder: str) -> None:
        with self.phases.phase(CHECKPOINT), self._resident(role, with_optimizer=True) as engine:
            self.checkpoints.load(role, engine, folder)

    def state_bytes(self, role: str) -> int:
        """Size of the role's checkpoint over all ranks."""
        return self.checkpoints.state_bytes(role, self.engines[role])

    def parameter_counts(self, role: str) -> tuple[int, int]:
        """How many parameters the role trains, and has."""
        return self.engines[role].parameter_counts()

    # --- accounting -------------------------------------------------------------------------------------------------

    def hardware(self) -> str:
        return self.platform.hardware

    def memory(self) -> dict[str, float]:
        """Of the phases since the last call, see `Phases.report`."""
        return self.phases.report()

    def start_profile(self, wanted: bool) -> None:
        """Starts a trace of what runs on this rank until `stop_profile`, where one is wanted of it."""
        if wanted:
            self.profile = Profile(self.platform, self.config.trainer.profile_memory)
            self.profile.start()

    def stop_profile(self, file: str) -> None:
        """Writes the trace, if one was started."""
        if self.profile is not None:
            self.profile.stop(Path(file))
            self.profile = None

    def close(self) -> None:
        self.engines.clear()
        if self.courier is not None:
            self.courier.close()
            self.courier = None
        if self.seat is not None:
            self.seat.close()
            self.seat = None
        if self.world > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
