"""Mixtures of experts under packing: tokens are routed one by one, whatever else lies in the row and however the
library computes the experts."""

import pytest
import torch
from models_tiny import write_model
from transformers import AutoModelForCausalLM

from verl_core.config.schema import ModelConfig
from verl_core.models.packing import Packing
from verl_core.models.pretrained import load_causal_lm

CPU = torch.device("cpu")
LENGTHS = (7, 1, 12, 3)
TAILS = (12, 5)  # sequences of padding behind the row


def run(model, ids_N: torch.Tensor, lengths: tuple[int, ...]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Log-probs of the first sum(LENGTHS) tokens' whole vocabulary, and the gradients of a sum over them."""
    position_N = torch.cat([torch.arange(n) for n in lengths])
    model.zero_grad()
    packing = Packing(lengths, CPU)
    logits = model(input_ids=ids_N[None], position_ids=position_N[None], use_cache=False, packing=packing).logits[0]
    logp = logits[: sum(LENGTHS)].log_softmax(-1)
    (logp * torch.linspace(-1, 1, logp.numel()).view_as(logp)).sum().backward()
    return logp.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.fixture
def deterministic():
    """As trainer.deterministic=true; with several threads batched_mm adds up its gradient in any order else."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("experts", ["eager", "batched_mm", "grouped_mm"])
def test_packing_and_padding_lose_nothing(tmp_path, experts):
    folder = write_model(tmp_path, "qwen3_moe")
    model = load_causal_lm(ModelConfig(path=str(folder)), dtype=torch.float32)
    assert "experts" in dict(model.named_modules())["model.layers.0.mlp"]._modules
    model.set_experts_implementation(experts)
    ids_N = torch.randint(0, 61, (sum(LENGTHS),))
    logp, grads = run(model, ids_N, LENGTHS)

    alone = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager")
    want = torch.cat([alone(input_ids=ids[None], use_cache=False).logits[0] for ids in ids_N.split(LENGTHS)])
    torch.testing.assert_close(logp, want.log_softmax(-1), rtol=0, atol=1e-5)

    again, same_grads = run(model, ids_N, LENGTHS)
    assert torch.equal(again, logp) and all(torch.equal(same_grads[name], g) for name, g in grads.items())

    padded = torch.cat([ids_N, torch.zeros(sum(TAILS), dtype=torch.int64)])
    logp_padded, grads_padded = run(model, padded, (*LENGTHS, *TAILS))
    torch.testing.assert_close(logp_padded, logp, rtol=0, atol=1e-5)
    for name, g in grads.items():
        torch.testing.assert_close(grads_padded[name], g, rtol=0, atol=1e-5 * float(g.abs().max()), msg=name)
