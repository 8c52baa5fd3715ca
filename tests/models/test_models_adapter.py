"""Adapters in real tiny models: which layers get one, that gradients are those of W + (alpha / r) B A, and folders of
peft."""

import json

import pytest
import torch
from models_tiny import write_model
from peft import LoraConfig, get_peft_model
from torch.func import functional_call
from transformers import AutoModelForCausalLM, PreTrainedModel

from verl_core.config.errors import UserError
from verl_core.config.schema import ModelConfig
from verl_core.models.adapter import Adapter, base_name
from verl_core.models.adapter_folder import CONFIG

LINEAR = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
IDS = torch.arange(1, 25)[None]


def load(folder, dtype=torch.float32) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")


def adapt(folder, dtype=torch.float32, seed=0, **settings) -> Adapter:
    settings = {"lora_rank": 4, "lora_alpha": 12, **settings}
    return Adapter(load(folder, dtype), ModelConfig(path=str(folder), **settings), str(folder), dtype, seed)


def fill(adapter: Adapter) -> None:
    """B is no longer zero, so that all of the adapter has a gradient."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in adapter.trained().values():
            parameter.normal_(0, 0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="module", params=["qwen2", "qwen3", "llama", "gemma2"])
def architecture(request, tmp_path_factory):
    return write_model(tmp_path_factory.mktemp(request.param), request.param)


def test_gradients_are_those_of_the_folded_weights(architecture):
    """In float64, against autograd through W + (alpha / r) B A written out."""
    adapter = adapt(architecture, torch.float64)
    fill(adapter)
    adapter.model(IDS, labels=IDS).loss.backward()

    base = load(architecture, torch.float64)
    parts = {name: p.detach().clone().requires_grad_() for name, p in adapter.trained().items()}
    weights = dict(base.named_parameters())
    for name in adapter.layers:
        a, b = (parts[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
        weights[f"{name}.weight"] = weights[f"{name}.weight"].detach() + 12 / 4 * b @ a
    functional_call(base, weights, kwargs={"input_ids": IDS, "labels": IDS}).loss.backward()
    assert len(parts) == 2 * 7 * 2
    for name, p in adapter.trained().items():
        assert parts[name].grad.abs().max() > 1e-9, name
        torch.testing.assert_close(p.grad, parts[name].grad, rtol=1e-9, atol=1e-12, msg=name)
    assert all(p.grad is None for n, p in adapter.model.named_parameters() if "lora_" not in n)


@torch.no_grad()
def test_folded_is_the_model_with_the_adapter_and_off_is_its_base(architecture):
    adapter, base = adapt(architecture), load(architecture)
    plain = base(IDS).logits
    assert torch.equal(adapter.model(IDS).logits, plain)  # B starts at zero
    fill(adapter)
    with adapter.off():
        assert torch.equal(adapter.model(IDS).logits, plain)
    with_adapter = adapter.model(IDS).logits
    assert (with_adapter - plain).abs().max() > 0.1
    folded = dict(adapter.folded(lambda tensor: tensor))
    assert folded.keys() == dict(base.named_parameters()).keys()
    base.load_state_dict(folded, strict=False)
    torch.testing.assert_close(base(IDS).logits, with_adapter, rtol=0, atol=1e-4)
    assert sum(p.requires_grad for p in adapter.model.parameters()) == len(adapter.trained())


@pytest.mark.parametrize(
    ("settings", "ends", "layers"),
    [
        ({}, LINEAR, 14),
        ({"target_modules": ["all-linear"]}, LINEAR, 14),
        ({"target_modules": "q_proj"}, {"q_proj"}, 2),
        ({"target_modules": ["self_attn.v_proj", "model.layers.1.mlp.up_proj"]}, {"v_proj", "up_proj"}, 3),
        ({"exclude_modules": ["visual", "lm_head", "mlp"]}, LINEAR - {"gate_proj", "up_proj", "down_proj"}, 8),
        ({"exclude_modules": ["layers.0"]}, LINEAR, 7),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),  # the same on every worker
)
def test_targets(folder, settings, ends, layers):
    adapter = adapt(folder, **settings)
    assert {name.rpartition(".")[2] for name in adapter.layers} == ends and len(adapter.layers) == layers
    again = get_peft_model(load(folder), LoraConfig(**{"r": 4, "target_modules": adapter.config["target_modules"]}))
    assert {n for n, _ in again.named_parameters() if "lora" in n} == {
        f"base_model.model.{n}" for n, p in adapter.model.named_parameters() if p.requires_grad
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_modules": ["q_proj", "query"]}, r"named 'query'"),
        ({"target_modules": "lm_head"}, r"named 'lm_head'"),
        ({"target_modules": ["embed_tokens"]}, r"named 'embed_tokens'"),
        ({"target_modules": "q_proj", "exclude_modules": ["self_attn"]}, r"exclude_modules=\['self_attn'\] leaves no"),
    ],
)
def test_an_adapter_that_matches_no_module_is_refused_with_the_names_there_are(folder, settings, message):
    with pytest.raises(UserError, match=message) as refused:
        adapt(folder, **settings)
    assert "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj" in refused.value.hint


def test_a_seed_gives_one_adapter_and_leaves_the_process_its_own_draws(folder):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, same, other = adapt(folder), adapt(folder), adapt(folder, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    equal = [
        [torch.equal(a, b) for a, b in zip(first.trained().values(), x.trained().values(), strict=True)]
        for x in (same, other)
    ]
    assert all(equal[0]) and not all(equal[1])


@pytest.fixture
def saved(folder, tmp_path):
    """A folder that peft wrote."""
    model = get_peft_model(load(folder), LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "down_proj"]))
    torch.manual_seed(2)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.normal_(0, 0.1)
    model.save_pretrained(tmp_path / "adapter")
    return model, tmp_path / "adapter"


def test_training_starts_from_a_folder_of_peft(folder, saved):
    model, where = saved
    adapter = adapt(folder, target_modules=["q_proj", "down_proj"], lora_adapter_path=str(where))
    with torch.no_grad():
        assert torch.equal(adapter.model(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        ({"lora_rank": 8}, {}, r"r=4, model.lora_rank is 8"),
        ({"lora_alpha": 16}, {}, r"lora_alpha=12, model.lora_alpha is 16"),
        ({"target_modules": ["q_proj"]}, {}, r"mlp.down_proj.lora_A.weight is unknown.* and 1 more"),
        ({"target_modules": "all-linear"}, {}, r"is missing"),
        ({}, {"use_rslora": True}, r"not of a plain LoRA adapter: use_rslora=True"),
        ({}, {"peft_type": "LOHA"}, r"peft_type='LOHA'"),
        ({}, {"r": None}, r"r=None"),
    ],
)
def test_an_adapter_folder_that_does_not_fit_is_refused(folder, saved, settings, change, message):
    where = saved[1]
    config = json.loads((where / CONFIG).read_text())
    (where / CONFIG).write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=message):
        adapt(folder, **{"target_modules": ["q_proj", "down_proj"], "lora_adapter_path": str(where), **settings})


def test_an_adapter_folder_of_another_width_or_without_files_is_refused(folder, saved, tmp_path):
    wider = write_model(tmp_path / "wider", hidden_size=40)
    settings = {"target_modules": ["q_proj", "down_proj"], "lora_adapter_path": str(saved[1])}
    with pytest.raises(UserError, match=r"has shape \[4, 32\], not \[4, 40\]"):
        adapt(wider, **settings)
    (saved[1] / "adapter_model.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match=r"cannot read .*adapter_model.safetensors"):
        adapt(folder, **settings)
    with pytest.raises(UserError, match=r"adapter_config.json cannot be read"):
        adapt(folder, **settings | {"lora_adapter_path": str(tmp_path)})


def test_a_base_is_named_by_its_hub_name_or_where_its_folder_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert base_name(ModelConfig(path="Qwen/Qwen2.5-0.5B"), "/cache/snapshots/abc") == "Qwen/Qwen2.5-0.5B"
    assert base_name(ModelConfig(path="mine"), None) == str(tmp_path / "mine")
    assert base_name(ModelConfig(path="builtin:show-your-work"), "runs/a/warmup") == str(tmp_path / "runs/a/warmup")
