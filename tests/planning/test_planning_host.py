"""Host memory of a machine."""

import pytest

from tests.planning.planning_examples import config_of
from verl_core.config.effective import effective
from verl_core.planning import gpus
from verl_core.planning.estimate import estimate
from verl_core.planning.plan import shapes_of


@pytest.mark.parametrize(("gpu", "times"), [(gpus.named("H200"), 2), (gpus.cpu(), 1)], ids=["GPU", "CPU"])
def test_a_reference_in_the_actor_is_pinned_beside_a_gpu(gpu, times):
    """In powers of two: at most twice what is asked for."""
    plans = []
    for kl in ("true", "false"):
        e = effective(config_of("gsm8k-grpo", "actor.fsdp_config.dtype=float32", f"actor.use_kl_loss={kl}"))
        plans.append(estimate(e, shapes_of(e), gpu))
    with_reference, without = plans
    stored = next(p for p in without.phases if (p.role, p.phase) == ("actor", "update")).memory.parameters
    assert with_reference.pools[0].host - without.pools[0].host == pytest.approx(times * stored)
