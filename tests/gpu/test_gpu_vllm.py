"""VllmEngine on a GPU: memory comes back while it sleeps, weights and log-probs are the trainer's, steps run ahead."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from verl_core.config.errors import MachineError
from verl_core.rollout.child import ChildEngine
from verl_core.rollout.protocol import Sampling, TokenRequest

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
VOCABULARY, SHARE = 32000, 0.2


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=896, intermediate_size=4864, num_hidden_layers=8, num_attention_heads=14,
        num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=4096,
        architectures=["Qwen2ForCausalLM"],
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).bfloat16()
    model.save_pretrained(folder := tmp_path_factory.mktemp("qwen"))
    return model.cuda().eval(), str(folder)


@pytest.fixture(scope="module", params=[1, 2], ids=["level1", "level2"])
def engine(request, model):
    options = {
        "model": model[1], "eos_ids": [2], "max_model_len": 1024, "max_num_seqs": 64, "enable_sleep": True,
        "sleep_level": request.param, "gpu_memory_utilization": SHARE, "load_format": "dummy",
    }  # fmt: skip
    with ChildEngine("verl_core.rollout.vllm:make", options) as engine:
        engine.update_weights(model[0].named_parameters(), 1)
        yield engine


def requests(count: int, tokens: int = 128, **sampling) -> list[TokenRequest]:
    draw = torch.Generator().manual_seed(1)
    rule = Sampling(max_tokens=tokens, ignore_eos=True, **sampling)
    prompts = torch.randint(3, VOCABULARY, (count, 32), generator=draw).tolist()
    return [TokenRequest(f"{i}", "s", tuple(ids), rule, seed=i) for i, ids in enumerate(prompts)]


@torch.no_grad()
def gap(model, asked, answers) -> float:
    """Mean absolute difference of the log-probs to the model's own."""
    ids = torch.tensor([[*one.ids, *got.ids] for one, got in zip(asked, answers, strict=True)], device="cuda")
    logits = model(ids).logits[:, 31:-1].float()
    ours = logits.log_softmax(-1).gather(-1, ids[:, 32:, None])[..., 0]
    return (ours - torch.tensor([got.logps for got in answers], device="cuda")).abs().mean().item()


def test_log_probs_are_the_trainers_before_and_after_an_update(model, engine):
    network, _ = model
    asked = requests(32)
    assert gap(network, asked, engine.generate(asked)) < 0.03
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1 * parameter.float().std().nan_to_num(0).item())
    stale = gap(network, asked, engine.generate(asked))
    engine.update_weights(network.named_parameters(), 2)
    fresh = engine.generate(asked)
    assert gap(network, asked, fresh) < 0.03 < stale
    assert {version for got in fresh for version in got.versions} == {2}


def test_asleep_the_gpu_is_the_trainers_again(model, engine):
    network, _ = model
    asked = requests(16)
    torch.cuda.empty_cache()
    awake = torch.cuda.device_memory_used()
    engine.sleep()
    total = torch.cuda.get_device_properties(0).total_memory
    assert awake - torch.cuda.device_memory_used() > 0.95 * SHARE * total - 2 * 2**30  # its context and graphs stay
    engine.update_weights(network.named_parameters(), 3)
    engine.wake()
    assert gap(network, asked, engine.generate(asked)) < 0.03


def test_draws_are_keyed_by_position_so_an_interrupted_request_goes_on_as_if_it_had_not_been(engine):
    """As far as rounding allows: a token whose two likeliest draws are close may differ between batches."""
    asked = requests(1, tokens=200)[0]
    whole = engine.generate([asked])[0]
    started, answers = threading.Event(), []
    run = threading.Thread(
        target=lambda: answers.extend(engine.generate([asked], on_parts=lambda parts: started.set()))
    )
    run.start()
    started.wait(60)
    engine.abort([asked.request_id])
    run.join(60)
    rest = engine.generate([asked.after(answers[0])])[0]
    both = answers[0].ids + rest.ids
    assert len(both) == 200
    same = next((i for i in range(200) if both[i] != whole.ids[i]), 200)
    assert same > len(answers[0].ids) + 5


def test_an_update_in_the_middle_marks_every_token_with_its_weights(model, engine):
    network, _ = model
    asked, answers, started = requests(32, tokens=600), [], threading.Event()
    run = threading.Thread(target=lambda: answers.extend(engine.generate(asked, on_parts=lambda parts: started.set())))
    run.start()
    started.wait(60)
    engine.update_weights(network.named_parameters(), 9)
    run.join(120)
    for got in answers:
        assert got.versions == sorted(got.versions) and got.versions[-1] == 9 and got.versions[0] < 9


def test_a_full_gpu_is_refused_before_the_model_is_loaded(model):
    filler = torch.empty(int(0.5 * torch.cuda.get_device_properties(0).total_memory), dtype=torch.uint8, device="cuda")
    start = time.monotonic()
    options = {"model": model[1], "eos_ids": [2], "max_model_len": 512, "gpu_memory_utilization": 0.9}
    with pytest.raises(MachineError, match="GiB free"):
        ChildEngine("verl_core.rollout.vllm:make", options)
    assert time.monotonic() - start < 60
    del filler
    torch.cuda.empty_cache()
