"""Shared prompts and soft caps in bf16 on a GPU, against float32. Run where there is a GPU: pytest tests/gpu."""

import pytest
import torch

from tests.models.models_tiny import write_model
from tests.training.training_tiny import SMOOTH, NllEntropy, totals
from verl_core.algorithms.loss import Need
from verl_core.batch import Batch
from verl_core.config.schema import ActorConfig, FsdpConfig, ModelConfig
from verl_core.models import attention, cudnn_ragged
from verl_core.models.attention import packed_attention
from verl_core.models.packing import Packing
from verl_core.models.shared_prompt import SharedPacking
from verl_core.platforms import current
from verl_core.training.fsdp import FsdpEngine
from verl_core.training.protocol import MicroBatching

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
PROMPTS, ANSWERS = (300, 1, 517), (40, 129, 7, 200, 33, 1, 64, 90)
PROMPT_OF = (0, 0, 0, 1, 1, 2, 2, -1)
BF16 = 1e-2  # relative distance that bf16 is allowed from float32, in outputs and gradients of one attention


def far(got, want):
    """Relative distance."""
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def attend(packing, qkv, dtype, **options):
    """Output and gradients of packed_attention in a dtype."""
    inputs = [x.detach().to(dtype).requires_grad_() for x in qkv]
    out, _ = packed_attention(torch.nn.Identity(), *inputs, None, packing=packing, **options)
    weight = torch.linspace(-1, 1, out.numel(), device=CUDA, dtype=torch.float32).view_as(out)
    return out, *torch.autograd.grad((out.float() * weight).sum(), inputs)


@pytest.mark.parametrize("cudnn", [True, False], ids=["cudnn", "varlen"])
@pytest.mark.parametrize(("heads", "kv_heads", "D"), [(14, 2, 64), (12, 2, 128)])
@pytest.mark.parametrize("window", [None, 100])
def test_kernels_see_the_prompt_and_their_own_answer(cudnn, heads, kv_heads, D, window):
    if cudnn and not cudnn_ragged.usable(CUDA):
        pytest.fail("this GPU or environment has no cuDNN ragged attention")
    torch.manual_seed(0)
    packing = SharedPacking(PROMPTS, ANSWERS, PROMPT_OF, CUDA)
    packing.cudnn = cudnn
    N = sum(PROMPTS) + sum(ANSWERS)
    qkv = [torch.randn(1, h, N, D, device=CUDA).bfloat16().float() for h in (heads, kv_heads, kv_heads)]
    got = attend(packing, qkv, torch.bfloat16, sliding_window=window)
    want = attend(packing, qkv, torch.float32, sliding_window=window)
    assert all(far(a, b) < BF16 for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("window", [None, 100])
def test_soft_caps_through_flex_attention(shared, window, monkeypatch):
    torch.manual_seed(0)
    packing = SharedPacking(PROMPTS, ANSWERS, PROMPT_OF, CUDA) if shared else Packing((*PROMPTS, *ANSWERS), CUDA)
    N = sum(PROMPTS) + sum(ANSWERS)
    qkv = [torch.randn(1, h, N, 256, device=CUDA).bfloat16().float() for h in (8, 4, 4)]
    options = {"sliding_window": window, "softcap": 3.0, "scaling": 0.1}
    want = attend(packing, qkv, torch.float32, **options)
    monkeypatch.setattr(attention, "_capped_attention", None)  # bf16 must not come here
    got = attend(packing, qkv, torch.bfloat16, **options)
    assert all(far(a, b) < BF16 for a, b in zip(got, want, strict=True))


def make_groups(seed: int = 0) -> Batch:
    """Two groups of four answers to a prompt of 24 and 9 tokens."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randint(0, 61, (n,), generator=generator)  # noqa: E731
    ids, masks = [], []
    for prompt in (draw(24), draw(9)):
        for answer in (12, 3, 20, 8):
            ids.append(torch.cat([prompt, draw(answer)]))
            masks.append(torch.arange(len(ids[-1])) >= len(prompt))
    columns = {"ids_N": torch.cat(ids), "mask_N": torch.cat(masks)}
    return Batch(torch.tensor([len(x) for x in ids]), torch.arange(8) // 4, columns)


@pytest.mark.parametrize("name", ["qwen2", "qwen2-sliding", "qwen3", "gemma2", "qwen3_moe"])
def test_engines_with_and_without_sharing_follow_float32(tmp_path, name):
    """bf16's bound with these sharp weights: log-probs within 0.5 nats of float32, on average within 0.06 (0.32 and
    0.035 on a CPU), the loss within 1 %; sharing adds nothing to it."""
    folder = write_model(tmp_path, name, head_dim=32)
    batch, wanted = make_groups(), frozenset({Need.LOGP, Need.ENTROPY})

    def engine(share: bool, dtype: str) -> FsdpEngine:
        settings = ActorConfig(optim=SMOOTH, grad_clip=1e9, fsdp_config=FsdpConfig(dtype=dtype))
        model = ModelConfig(path=str(folder), enable_gradient_checkpointing=False)
        micro = MicroBatching(tokens=128)
        return FsdpEngine(
            model, settings, role="actor", platform=current("cuda"), micro=micro, share_prompt=share
        )  # fmt: skip

    exact = engine(False, "float32")
    want = exact.forward(batch, wanted)[Need.LOGP]
    loss = exact.step(batch, NllEntropy(), totals(batch))["actor/loss"]
    shared32 = engine(True, "float32").forward(batch, wanted)[Need.LOGP]
    torch.testing.assert_close(shared32, want, rtol=0, atol=1e-3)  # matrices may run in TF32
    mean = {}
    for share in (False, True):
        half = engine(share, "bfloat16")
        gap = (half.forward(batch, wanted)[Need.LOGP] - want).abs()
        mean[share] = float(gap.sum() / batch["mask_N"].sum())
        assert gap.max() < 0.5 and mean[share] < 0.06
        assert half.step(batch, NllEntropy(), totals(batch))["actor/loss"] == pytest.approx(loss, rel=1e-2)
    assert mean[True] < 1.5 * mean[False]
