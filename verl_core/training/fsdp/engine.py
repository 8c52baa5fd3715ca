"""The FSDP2 engine: `TrainEngine` on a transformers model, from one CPU core in float32 or one GPU in bf16 (plain
modules, no hooks) to many GPUs (sharded parameters, gradients and optimizer state)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from verl_core.algorithms.loss import Loss, Metric, Need, Totals, keeps_groups
from verl_core.batch import Batch
from verl_core.config.schema import ActorConfig, CriticConfig, ModelConfig, OptimConfig
from verl_core.models.adapter import Adapter, base_name
from verl_core.models.joint import join_projections
from verl_core.models.liger import apply_liger
from verl_core.models.packing import sent
from verl_core.models.pretrained import ValueModel, load_causal_lm, load_value_model
from verl_core.planning.roles import GATHERED_SHARE, GRADIENT_SHARE
from verl_core.platforms import Platform
from verl_core.platforms.profiling import part
from verl_core.training.fsdp import memory, metrics
from verl_core.training.fsdp.activation import offload_layers, recompute_layers
from verl_core.training.fsdp.compiling import compile_layers
from verl_core.training.fsdp.cutting import with_last
from verl_core.training.fsdp.half import HalfCopies
from verl_core.training.fsdp.layout import arrange
from verl_core.training.fsdp.network import HALF, TokenNetwork, on_tokens
from verl_core.training.fsdp.optim import build_optimizers, clip_and_step, needs_total_steps, set_learning_rates
from verl_core.training.fsdp.packed_input import PackedInput
from verl_core.training.fsdp.reference import with_reference
from verl_core.training.fsdp.rows import Rows
from verl_core.training.fsdp.shard import fsdp_modules, full, reduces_in_backward, reshard, shard
from verl_core.training.fsdp.state import check_names, copy_into, load_optimizers, optimizer_steps, optimizer_tensors
from verl_core.training.protocol import EngineState, MicroBatching

EVERYTHING = frozenset({"params", "optimizer"})


class FsdpEngine:
    """See `TrainEngine`. Metrics of `step` carry the role: `<role>/loss`, `grad_norm`, `lr`, `skipped_steps`."""

    def __init__(
        self,
        model: ModelConfig,
        settings: ActorConfig | CriticConfig,
        *,
        role: str,
        platform: Platform,
        micro: MicroBatching,
        seed: int = 0,
        path: str | Path | None = None,
        total_steps: int | None = None,
        kind: Literal["causal_lm", "value"] | None = None,
        group: dist.ProcessGroup | None = None,
        weights: bool = True,
        share_prompt: bool = False,
        frozen: bool = False,
    ):
        """Loads `path` (None: model.path) and shards it over `group` (None: all ranks, or this process alone).

        `kind` None: a value model for a CriticConfig, else a language model. `total_steps` spans the learning-rate
        schedule; `set_total_steps` may give it later. `micro` cuts mini-batches, and forwards that name no other rule;
        ranks that split their rows (`ulysses_sequence_parallel_size`) have it together, and are all given the same
        sequences.
        weights=False: the folder's config is enough; parameters are not initialised before `load_state`. A base below
        an adapter (`model.lora_rank`) is read all the same, as no checkpoint holds it.
        share_prompt: what the sequences of a group begin with alike is computed once a micro-batch.
        frozen: never trained, so stored in the type of computing.
        """
        self.role, self.platform, self.micro, self.group = role, platform, micro, group
        self.grad_clip = settings.grad_clip
        self.world = dist.get_world_size(group) if dist.is_initialized() else 1
        self.total_steps, self.per_training_step = total_steps, 1
        fsdp = settings.fsdp_config
        stored = getattr(torch, fsdp.model_dtype)
        self.compute_dtype = getattr(torch, fsdp.dtype) if fsdp.dtype else platform.compute_dtype
        sharded = self.world > 1

        if isinstance(settings, CriticConfig):
            path = path or settings.model.path
            checkpointing = settings.model.enable_gradient_checkpointing
            if checkpointing is not None:
                model = replace(model, enable_gradient_checkpointing=checkpointing)
        kind = kind or ("value" if isinstance(settings, CriticConfig) else "causal_lm")
        load = load_value_model if kind == "value" else load_causal_lm
        adapts = model.lora_rank > 0 and kind == "causal_lm"
        reads = (weights or adapts) and (not dist.is_initialized() or dist.get_rank(group) == 0)
        # what is not trained needs no better copy than it computes in
        dtype = self.compute_dtype if adapts or frozen else stored
        self.model = load(model, path, dtype=dtype, device="cpu" if sharded else platform.device, weights=reads)
        transformer = self.model.body if isinstance(self.model, ValueModel) else self.model
        if model.use_liger:
            apply_liger(transformer, platform.device)
        self.adapter = Adapter(transformer, model, base_name(model, path), stored, seed) if adapts else None
        self.network = TokenNetwork(self.model)
        self.layout = arrange(self.network, self.model.config, settings, role, platform, group)
        self.split = self.layout.split if self.layout else None
        flash = platform.name == "cuda" and self.compute_dtype in HALF
        self.compiled = flash if fsdp.use_torch_compile is None else fsdp.use_torch_compile
        if model.enable_gradient_checkpointing:
            recompute_layers(self.network, model.recompute_granularity, self.model.config, self.compiled)
        if self.compiled:
            join_projections(self.network)
            compile_layers(self.network, dynamic=micro.tokens is None)
        self.rows = Rows(platform, self.split, group, self.compiled, share_prompt)
        if model.enable_activation_offload:
            offload_layers(self.network, platform.device)
        gathered = sum(p.numel() for p in self.network.parameters()) * self.compute_dtype.itemsize
        large = gathered > GATHERED_SHARE * platform.memory_bytes()
        between = fsdp.reshard_between_micro_batches
        self.reshard_between = large if between is None else between
        self.reduce_each = False
        if self.layout:
            after_forward = fsdp.reshard_after_forward and self.reshard_between
            meshes, division = self.layout.meshes, self.layout.division
            shard(self.network, meshes, division, self.compute_dtype, after_forward, platform.device)
            whole = 4 * sum(p.numel() for p in self.network.parameters() if p.requires_grad)
            large = whole > GRADIENT_SHARE * platform.memory_bytes()
            asked = large if fsdp.reduce_gradients is None else fsdp.reduce_gradients == "each"
            self.reduce_each = asked and meshes.whole.size(-1) > 1
        self.halves = HalfCopies(self.network, self.compute_dtype, platform.device) if not sharded else None
        platform.seed_all(seed)  # of dropout, if the model has any

        self.set_optimizer(settings.optim)
        self.snapshots: dict[str, memory.Snapshot | None] = {}  # None: the model without its adapter
        self.away: frozenset[str] = frozenset()  # what is in host memory instead of on the device

    # --- what the schedule and the optimizer are ------------------------------------------------------------------

    def set_optimizer(self, optim: OptimConfig, total_steps: int | None = None) -> None:
        """Starts a fresh optimizer and schedule on the present weights (a new supervised phase, for instance)."""
        self.optim = optim
        self.total_steps = total_steps if total_steps is not None else self.total_steps
        self.updates = 0  # optimizer steps taken or skipped: the place in the schedule
        self.optimizers: list[Optimizer] = build_optimizers(self.network, optim)

    def set_total_steps(self, total_steps: int, per_training_step: int = 1) -> None:
        """Optimizer steps the schedule spans, and those of a training step, in which warm-up is counted."""
        self.total_steps, self.per_training_step = total_steps, per_training_step

    # --- computing ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(
        self,
        batch: Batch,
        want: frozenset[Need],
        temperature: float = 1.0,
        micro: MicroBatching | None = None,
        k: int = 0,
    ) -> dict[Need, Tensor]:
        self._bring_back(frozenset({"params"}))
        batch, ref_head = with_reference(self, batch, want, micro)
        self.network.eval()
        out = {need: self.network.column(need, batch, k, self.compute_dtype, self.platform.device) for need in want}
        with self._computing():
            for x in self._to_compile(batch, micro, want):
                self.network(x, want, temperature, k, ref_head)
            for index, x in self._inputs(batch, micro, want):
                with part("micro_batch"):
                    found = on_tokens(self.network(x, want, temperature, k, ref_head), x, want)
                    if index is not None:
                        place_N = sent(batch.token_index(torch.tensor(index)), self.platform.device)
                        for need, value_N in out.items():
                            value_N.index_copy_(0, place_N.to(value_N.device), found[need].to(value_N))
        reshard(self.network)
        return {need: value_N.cpu() for need, value_N in out.items()}

    def step(self, batch: Batch, loss: Loss, totals: Totals) -> dict[str, float]:
        self._bring_back(EVERYTHING)
        read, ref_head = with_reference(self, batch, loss.needs)
        self.network.train()
        try:
            with self._computing():
                parts = self._accumulate(batch, loss, totals, read, ref_head)
            with part("optimizer"):
                lr = self._schedule()
                if self.layout:
                    self.layout.add_up_over_parts(self.network)
                norm = clip_and_step(self.network, self.optimizers, self.grad_clip)
        finally:  # after an error, too, the next step starts from nothing
            self._forget_gradients()
        own_parts = metrics.join(parts if self.leads else [])
        joined = metrics.values(metrics.across_ranks(own_parts, self.group, self.world))
        own = {"grad_norm": norm, "lr": lr, "skipped_steps": float(not math.isfinite(norm))}
        return joined | {f"{self.role}/{name}": value for name, value in own.items()}

    def _computing(self) -> AbstractContextManager[None]:
        """The parameters in the type that the network computes in; FSDP2 sees to that by itself."""
        return self.halves or nullcontext()

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for those that split its rows: they all compute the same loss and quantities."""
        return self.split is None or self.split.rank == 0

    def _accumulate(
        self, batch: Batch, loss: Loss, totals: Totals, read: Batch, ref_head: Mapping[str, Tensor] | None
    ) -> list[dict[str, Metric]]:
        """Forward, on the micro-batches of `read`, and backward; gradients are reduced over ranks in each one's
        backward, or in the last one's."""
        parts: list[dict[str, Metric]] = []
        for x in self._to_compile(read, None, loss.needs):
            self._expect_backward(last=True)
            _zero(self.network(x, loss.needs, loss.temperature, ref_head=ref_head)).backward()
            self._forget_gradients()
        for (index, x), last in with_last(self._inputs(read, None, loss.needs, keeps_groups(loss))):
            self._expect_backward(last)
            with part("micro_batch"):
                out = self.network(x, loss.needs, loss.temperature, ref_head=ref_head)
                if index is None:
                    _zero(out).backward()
                    continue
                mini = batch.select(index).to(self.platform.device)
                share, logged = loss(on_tokens(out, x, loss.needs), mini, totals)
                (share if share.requires_grad else _zero(out)).backward()
                if self.halves:
                    self.halves.collect_gradients()
                parts.append({f"{self.role}/loss": Metric(share.detach(), how="sum"), **logged})
        return parts

    def _expect_backward(self, last: bool) -> None:
        """Before the backward pass of a micro-batch, the last one of its mini-batch or not."""
        reduces_in_backward(self.network, last or self.reduce_each, last)
        for module in fsdp_modules(self.network):
            module.set_reshard_after_backward(last or self.reshard_between, recurse=False)

    def _forget_gradients(self) -> None:
        for p in self.network.parameters():
            p.grad = None

    def _schedule(self) -> float:
        """Sets the learning rate of this optimizer step, be it taken or skipped, and returns it."""
        if needs_total_steps(self.optim) and self.total_steps is None:
            raise ValueError(f"{self.role}: the learning-rate schedule needs set_total_steps")
        span = self.total_steps or 0, self.per_training_step
        set_learning_rates(self.optimizers, self.optim, self.updates, *span)
        self.updates += 1
        return self.optimizers[-1].param_groups[0]["lr"]

    def _inputs(
        self,
        batch: Batch,
        micro: MicroBatching | None,
        needs: frozenset[Need] = frozenset(),
        whole_groups: bool = False,
    ) -> Iterator[tuple[list[int] | None, PackedInput]]:
        """See `Rows.inputs`."""
        return self.rows.inputs(batch, self._rule(micro), needs, whole_groups)

    def _to_compile(self, batch: Batch, micro: MicroBatching | None, needs: frozenset[Need]) -> Iterator[PackedInput]:
        """See `Rows.to_compile`."""
        code = self.network.training, self.adapter is not None and self.adapter.active
        return self.rows.to_compile(batch, self._rule(micro), needs, code)

    def _rule(self, micro: MicroBatching | None) -> MicroBatching:
        return micro if micro is not None and micro != MicroBatching() else self.micro

    # --- weights --------------------------------------------------------------------------------------------------

    def _parameters(self) -> dict[str, Tensor]:
        """Trained tensors by Hugging Face name, an adapter's by peft's; tied ones once."""
        return dict(self.adapter.trained() if self.adapter else self.model.named_parameters())

    def parameter_counts(self) -> tuple[int, int]:
        """Trained ones, and all."""
        counts = [(p.numel(), p.requires_grad) for p in self.model.parameters()]
        return sum(n for n, trained in counts if trained), sum(n for n, _ in counts)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        self._bring_back(frozenset({"params"}))
        if self.adapter:
            yield from self.adapter.folded(full)
            return
        for name, p in self._parameters().items():
            yield name, full(p).detach()

    def named_shards(self) -> Iterator[tuple[str, Tensor]]:
        for name, p in self._parameters().items():
            yield name, p.detach()

    def snapshot(self, name: str) -> None:
        """Of a model with an adapter "ref" is the base, which needs no copy."""
        self.snapshots[name] = None if self.adapter and name == "ref" else memory.take(self._parameters())

    def use(self, name: str) -> AbstractContextManager[None]:
        snapshot = self.snapshots[name]
        if snapshot is None:
            assert self.adapter is not None
            return self.adapter.off()
        return memory.swapped(self._parameters(), snapshot)

    def drop(self, name: str) -> None:
        del self.snapshots[name]

    def offload(self, to: Literal["cpu", "device"], what: frozenset[str] = EVERYTHING) -> None:
        """Moves parameters and optimizer state (gradients do not outlive a step) to host memory or back."""
        device = self.platform.device if to == "device" else torch.device("cpu")
        if "params" in what:
            self.network.to(device)
        if "optimizer" in what:
            memory.move_optimizer(self.optimizers, device)
        self.away = self.away - what if to == "device" else self.away | what
        self.platform.empty_cache()

    def _bring_back(self, what: frozenset[str]) -> None:
        if missing := self.away & what:
            self.offload("device", missing)

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def state(self) -> EngineState:
        names = {p: name for name, p in self._parameters().items()}
        scalars: dict[str, Any] = {"updates": self.updates, "steps": optimizer_steps(self.optimizers, names)}
        adapter = self.adapter.config if self.adapter else None
        return EngineState(dict(self.named_shards()), optimizer_tensors(self.optimizers, names), scalars, adapter)

    def load_state(self, state: EngineState) -> None:
        parameters = self._parameters()
        check_names(parameters, state.weights)
        for name, p in parameters.items():
            copy_into(p.detach(), state.weights[name])
        names = {p: name for name, p in parameters.items()}
        load_optimizers(self.optimizers, names, state.optimizer, state.scalars["steps"])
        self.updates = state.scalars["updates"]


def _zero(out: Mapping[Need, Tensor]) -> Tensor:
    """A loss of 0 that depends on every quantity: ranks run equally many backward passes, whatever their shares."""
    return torch.stack([v.sum() for v in out.values()]).sum() * 0.0
