"""Host memory of a machine, and what a checkpoint takes on disk."""

from verl_core.planning import engine_memory, memory
from verl_core.planning.mesh import Stage
from verl_core.planning.roles import Role
from verl_core.planning.system import System

PROCESS = 2.5e9  # of Python, torch and CUDA in a rank's process, and in an engine's
PINNED = 2  # at most, of what is asked for: torch pins host memory in powers of two (CachingHostAllocator, torch 2.11)
SCORER = 0.1e9  # a scorer process
CHECKPOINT_BLOCK = 64 << 20  # of a tensor that goes from a GPU to a file: SLAB_BYTES of verl_core/checkpoint


def host_of_pool(system: System, pool: str, stage_of: dict[str, Stage]) -> float:
    """Bytes that the machine of a pool needs which needs most: processes, what waits there for the GPU, and the larger
    of reading the model at the start (FSDP's rank 0 reads it whole) and writing a checkpoint."""
    c, roles, engine = system.config, system.on(pool), system.engine_on(pool)
    gpus = c.cluster.pools[pool].gpus
    per_gpu = PROCESS if roles else 0.0
    if engine:
        per_gpu += engine_memory.host_bytes(engine) + (PROCESS if engine.kind != "hf" else 0.0)
    for role in roles:
        stage = stage_of[role.name]
        per_gpu += memory.activations_in_host(role, stage, role.update)
        per_gpu += memory.parameters(role, stage) if role.param_offload else 0.0
        per_gpu += memory.optimizer(role, stage) if role.trained and role.optimizer_offload else 0.0
        if role.full_kl:  # the reference's hidden states of all tokens of a pass
            tokens = max(micro.tokens * micro.count for micro in (role.update, role.forward))
            per_gpu += role.compute * role.shape.hidden * tokens
        if role.trained and role.optimizer == "adamw_host":  # copies of weights and gradients, and two moments
            per_gpu += 4 * role.stored * role.trained / role.mesh.shards
        judges = role.name == "reward_model" and not role.value_head  # PRIME's, against where it started
        if judges or (role.name == "actor" and system.reference_in_actor and not role.adapter):
            # the snapshot, or the present weights while it is used
            per_gpu += (1 if system.gpu.is_cpu else PINNED) * memory.parameters(role, stage)
    reading = max((role.stored_bytes for role in roles if not role.mesh.megatron), default=0.0)
    written = sum(_written(role, stage_of[role.name]) for role in roles if role.trained)
    writing = gpus * (written if c.trainer.async_save else min(CHECKPOINT_BLOCK, written))
    return gpus * per_gpu + max(reading, writing) + SCORER * c.reward.num_workers * (system.actor in roles)


def checkpoint_bytes(role: Role) -> float:
    """Weights and optimizer state, each once; a frozen role is not written."""
    if not role.trained:
        return 0.0
    if role.mesh.megatron:
        return (2 + 12) * role.params
    matrices = role.trained if role.adapter else role.shape.layers_params
    return role.stored * (3 * role.trained - (matrices if role.optimizer == "muon" else 0))


def _written(role: Role, stage: Stage) -> float:
    return memory.saved_parameters(role, stage) + memory.optimizer(role, stage)
