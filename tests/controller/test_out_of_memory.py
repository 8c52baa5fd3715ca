"""Memory that runs out is a failed run (exit 5) with the keys to lower, under both executors."""

import pytest
import torch

from verl_core.controller.out_of_memory import out_of_memory


def cpu_error() -> RuntimeError:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    return caught.value


@pytest.mark.parametrize("error", [cpu_error(), MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried ...")])
def test_it_is_told_with_what_to_lower(error):
    told = out_of_memory(error)
    assert told is not None and told.exit_code == 5
    assert told.message.startswith("out of memory: ") and "\n" not in told.message
    assert "rollout.max_num_seqs" in told.hint


def test_other_errors_are_none_of_its_business():
    assert out_of_memory(RuntimeError("shape mismatch")) is None
    assert out_of_memory(ValueError("DefaultCPUAllocator")) is None
