"""Shows that make_megatron_checkpoints.py fills megatron-core's network as tests say: logits as in transformers.

Run by hand in that script's environment, on one rank: `python check_megatron_names.py`.
"""

import contextlib
import os
import tempfile

os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}

import make_megatron_checkpoints as maker
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

EPSILON = 1e-5  # of megatron-core's layer norms


def main() -> None:
    """Raises AssertionError where the logits differ by more than rounding."""
    maker.RANKS = 1
    CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()  # dropout is off, and there is no GPU to ask
    torch.cuda.current_device = lambda: torch.device("cpu")
    dist.init_process_group("gloo", rank=0, world_size=1)
    ids, positions = torch.arange(1, 11)[None], torch.arange(10)[None]
    hidden = torch.triu(torch.ones(10, 10, dtype=torch.bool), 1)[None, None]
    for name, (config, _, by_layer) in maker.CASES.items():
        config.rms_norm_eps, config.norm_topk_prob = EPSILON, True
        maker.CASES[name] = (config, torch.float32, by_layer)
        parallel_state.initialize_model_parallel(1, expert_model_parallel_size=1, expert_tensor_parallel_size=1)
        network = maker.network(config, torch.float32)
        truth = maker.filled(network, name)
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            config.save_pretrained(folder)
            save_file(truth, f"{folder}/model.safetensors", metadata={"format": "pt"})
            expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(ids).logits
            got = network.eval()(ids, positions, hidden)[..., : maker.VOCABULARY]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        print(f"{name}: largest difference {(got - expected).abs().max():.1e} of {expected.abs().max():.1f}")
        parallel_state.destroy_model_parallel()


if __name__ == "__main__":
    main()
