"""The parts that a GPU's memory is split into."""

from dataclasses import dataclass, fields, replace

CONTEXT = 0.6e9  # CUDA context and loaded kernels of a process
FRAGMENTATION = 0.15  # of what a phase allocates and frees: 15 % on average, 33 % at worst (arXiv 2401.08156)


@dataclass(frozen=True)
class Components:
    """Bytes on one GPU in one phase."""

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    """Logits, their gradient and what the loss keeps."""
    kv_cache: float = 0.0
    communication: float = 0.0
    """Gathered parameters, buffers of collectives, NCCL's own."""
    reserve: float = 0.0
    """CUDA context, CUDA graphs and fragmentation."""
    others: float = 0.0
    """What other roles leave on the GPU meanwhile."""

    @property
    def total(self) -> float:
        return sum(getattr(self, f.name) for f in fields(self))

    def with_reserve(self, on_cpu: bool) -> "Components":
        """With the context, and fragmentation of what comes and goes."""
        moving = self.activations + self.logits + self.communication + self.gradients
        return replace(self, reserve=self.reserve + (0.0 if on_cpu else CONTEXT) + FRAGMENTATION * moving)


NAMES = tuple(f.name for f in fields(Components))
