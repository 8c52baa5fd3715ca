"""Which rank holds what. FSDP: replicas x shards of the whole model, neighbouring shards with parts of its
layers (tensor) or some of its experts. Megatron: tensor, context, expert, data and
pipeline ranks in that order, tensor fastest (Megatron-Core's default order "tp-cp-ep-dp-pp")."""

from dataclasses import dataclass
from functools import cached_property

from verl_core.config.schema import ActorConfig, CriticConfig, PoolConfig
from verl_core.planning.shapes import ModelShape


@dataclass(frozen=True)
class Stage:
    """Consecutive layers that a pipeline rank holds; the first stage has the embedding, the last the output layer."""

    index: int
    layers: range
    first: bool
    last: bool


@dataclass(frozen=True)
class Coordinates:
    rank: int
    tp: int
    cp: int
    ep: int
    dp: int
    pp: int

    def __str__(self) -> str:
        return f"rank {self.rank} (tp {self.tp}, cp {self.cp}, ep {self.ep}, dp {self.dp}, pp {self.pp})"


@dataclass(frozen=True)
class Mesh:
    """Parallel sizes of one role on a pool. `shards` ranks share a copy of FSDP's parameters, `tp` or `ep` of them with
    a part each; Megatron's are 1."""

    ranks: int
    per_node: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    chunks: int = 1
    """Virtual stages a pipeline rank holds."""
    shards: int = 1
    sp: int = 1
    """Ulysses: ranks that share their sequences."""
    megatron: bool = False

    @property
    def split(self) -> int:
        """Ranks that divide a sequence's tokens among them."""
        return self.sp * self.cp

    @property
    def dp(self) -> int:
        """Ranks, or groups of ranks, that hold different sequences."""
        return max(1, self.ranks // (self.tp * self.pp * self.cp * self.sp))

    @property
    def optimizer_ranks(self) -> int:
        """Ranks that hold the same dense parameters: a distributed optimizer spreads over them."""
        return max(1, self.ranks // (self.tp * self.pp))

    @property
    def expert_optimizer_ranks(self) -> int:
        """Ranks that hold the same experts."""
        return max(1, self.ranks // (self.ep * self.etp * self.pp))

    def stages(self, shape: ModelShape) -> list[Stage]:
        """Layers by stage. Where they do not divide, embedding and output layer count as a layer each, and what is
        still over goes to the stages in the middle."""
        sizes = stage_sizes(shape.layers, self.pp)
        starts = [sum(sizes[:i]) for i in range(self.pp)]
        return [
            Stage(i, range(start, start + size), i == 0, i == self.pp - 1)
            for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
        ]

    @cached_property
    def coordinates(self) -> list[Coordinates]:
        """Every rank's place."""
        dense, stage = self.tp * self.cp, self.ranks // self.pp
        return [
            Coordinates(
                rank,
                tp=rank % self.tp,
                cp=rank // self.tp % self.cp,
                ep=rank % stage // self.etp % self.ep,
                dp=rank % stage // dense,
                pp=rank // stage,
            )
            for rank in range(self.ranks)
        ]


def stage_sizes(layers: int, stages: int) -> list[int]:
    """How many layers each stage gets; see `Mesh.stages`."""
    if stages == 1 or layers % stages == 0:
        return [layers // stages] * stages
    ends = 1 if layers + 2 >= 2 * stages else 0  # with a layer a stage they would be left without any
    each, over = divmod(layers + 2 * ends, stages)
    sizes = [each] * stages
    middle = sorted(range(stages), key=lambda i: (abs(2 * i - stages + 1), i))
    for i in middle[:over]:
        sizes[i] += 1
    sizes[0] -= ends
    sizes[-1] -= ends
    return sizes


def mesh_of(settings: ActorConfig | CriticConfig, pool: PoolConfig, shape: ModelShape) -> Mesh:
    """The mesh of a role's settings on its pool, for sizes that divide (see divisions.py)."""
    ranks, per_node = pool.nodes * pool.gpus, pool.gpus
    if settings.strategy == "megatron":
        m = settings.megatron
        return Mesh(
            ranks,
            per_node,
            tp=m.tensor_model_parallel_size,
            pp=m.pipeline_model_parallel_size,
            cp=m.context_parallel_size,
            ep=m.expert_model_parallel_size if shape.experts else 1,
            etp=(m.expert_tensor_parallel_size or 1) if shape.experts else 1,
            chunks=m.virtual_pipeline_model_parallel_size or 1,
            megatron=True,
        )
    fsdp = settings.fsdp_config
    return Mesh(
        ranks,
        per_node,
        tp=fsdp.tensor_parallel_size,
        ep=fsdp.expert_parallel_size if shape.experts else 1,
        shards=ranks if fsdp.fsdp_size == -1 else fsdp.fsdp_size,
        sp=settings.ulysses_sequence_parallel_size,
    )
