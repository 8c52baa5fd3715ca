"""Folders, configurations, tokenizers and weights: what loads, and what is refused by name."""

import json

import pytest
import torch
from models_tiny import write_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForTokenClassification,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2ForCausalLM,
    Qwen2Model,
)

from verl_core.config.errors import EnvError, UserError
from verl_core.config.schema import ModelConfig
from verl_core.models.pretrained import (
    eos_ids,
    load_causal_lm,
    load_generation_config,
    load_hf_config,
    load_tokenizer,
    load_value_model,
    resolve,
)

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("qwen2"), tie_word_embeddings=True)


def write_tokenizer(folder, **special):
    words = {word: i for i, word in enumerate([UNK, PAD, EOS, "a", "b"])}
    core = Tokenizer(models.WordLevel(words, unk_token=UNK))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=core, **special).save_pretrained(folder)
    return ModelConfig(path=str(folder))


def test_local_folder_loads_with_tied_weights_and_the_dtype_asked_for(folder):
    model = load_causal_lm(ModelConfig(path=str(folder)), dtype=torch.bfloat16)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16} and not model.training
    assert [n for n, _ in model.named_parameters()].count("lm_head.weight") == 0


def test_a_model_without_weights_has_the_same_shapes_ties_and_buffers(folder):
    full, empty = (load_causal_lm(ModelConfig(path=str(folder)), dtype=torch.float32, weights=w) for w in (True, False))
    assert {n: p.shape for n, p in full.named_parameters()} == {n: p.shape for n, p in empty.named_parameters()}
    assert empty.lm_head.weight is empty.model.embed_tokens.weight
    for (name, a), (other, b) in zip(full.named_buffers(), empty.named_buffers(), strict=True):
        assert name == other and torch.equal(a, b)


@pytest.mark.parametrize("name", ["qwen2", "gemma2"])
def test_value_head_starts_at_zero_and_comes_back_from_a_saved_folder(tmp_path, name):
    config = ModelConfig(path=str(write_model(tmp_path / "lm", name)))
    model = load_value_model(config, dtype=torch.float32)
    assert model.score.weight.abs().max() == 0 and model.score.bias.abs().max() == 0
    torch.nn.init.normal_(model.score.weight)
    saved = tmp_path / "critic"
    saved.mkdir()
    model.config.save_pretrained(saved)
    save_file(
        {n: p.detach().clone() for n, p in model.named_parameters()}, saved / "model.safetensors", {"format": "pt"}
    )

    again = load_value_model(config, saved, dtype=torch.float32)
    for (n, a), (m, b) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert n == m and torch.equal(a, b)
    theirs, report = AutoModelForTokenClassification.from_pretrained(saved, output_loading_info=True)
    assert type(theirs).__name__ == model.config.architectures[0]
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert torch.equal(theirs.score.weight, model.score.weight)


def test_value_head_of_another_size_is_refused(tmp_path, folder):
    copy = tmp_path / "classifier"
    copy.mkdir()
    (copy / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors") | {"score.weight": torch.zeros(3, 32)}
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"score.weight .* has shape \[3, 32\]"):
        load_value_model(ModelConfig(path=str(copy)), dtype=torch.float32)


def test_folders_that_lack_something_are_refused_by_what_is_missing(tmp_path, folder):
    with pytest.raises(UserError, match="no config"):
        resolve(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(UserError, match="no weights"):
        resolve(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UserError, match=r"only pytorch_model\.bin"):
        resolve(tmp_path)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match=r"1 of 2 weight files, e\.g\. model-2"):
        resolve(tmp_path)
    with pytest.raises(UserError, match="not a folder"):
        resolve("/no/such/folder")


def test_cut_and_incomplete_weight_files_are_refused(tmp_path, folder):
    config = ModelConfig(path=str(tmp_path))
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    stored = (folder / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(stored[: len(stored) // 2])
    with pytest.raises(UserError, match="cannot load the model"):
        load_causal_lm(config, dtype=torch.float32)
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"1 parameters, e\.g\. model\.norm\.weight"):
        load_causal_lm(config, dtype=torch.float32)


@pytest.mark.parametrize("load", [load_causal_lm, load_value_model])
def test_memory_that_runs_out_is_no_fault_of_the_folder(folder, monkeypatch, load):
    def full(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1073741824 bytes.")

    monkeypatch.setattr(Qwen2ForCausalLM if load is load_causal_lm else Qwen2Model, "from_pretrained", full)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        load(ModelConfig(path=str(folder)), dtype=torch.float32)


def test_a_hub_name_without_network_says_how_to_go_on(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EnvError, match=r"some-org/some-model.*not in the cache") as error:
        resolve("some-org/some-model")
    assert "give DIR in its place" in error.value.hint


def test_override_config(folder):
    config = load_hf_config(ModelConfig(path=str(folder), override_config={"attention_dropout": 0.25}))
    assert config.attention_dropout == 0.25
    nested = load_hf_config(ModelConfig(path=str(folder), override_config={"rope_parameters": {"rope_theta": 5.0}}))
    assert nested.rope_parameters["rope_theta"] == 5.0 and nested.rope_parameters["rope_type"] == "default"
    with pytest.raises(UserError, match=r"model\.override_config\.attention_dropuot") as error:
        load_hf_config(ModelConfig(path=str(folder), override_config={"attention_dropuot": 0.25}))
    assert "attention_dropout" in error.value.hint
    with pytest.raises(UserError, match=r"model\.override_config\.hidden_size='big'"):
        load_hf_config(ModelConfig(path=str(folder), override_config={"hidden_size": "big"}))


@pytest.mark.parametrize(
    ("special", "pad"),
    [({"pad_token": PAD, "eos_token": EOS}, PAD), ({"eos_token": EOS}, EOS), ({"unk_token": UNK}, UNK)],
)
def test_pad_token_falls_back(tmp_path, special, pad):
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, **special))
    assert tokenizer.pad_token == pad and tokenizer.padding_side == "left"


def test_chat_template_and_tokenizer_path(tmp_path):
    config = write_tokenizer(tmp_path, eos_token=EOS)
    config.custom_chat_template = "{% for m in messages %}a {{ m['content'] }}{% endfor %}"
    config.tokenizer_path, config.path = config.path, "/no/such/model"
    text = load_tokenizer(config).apply_chat_template([{"role": "user", "content": "b"}], tokenize=False)
    assert text == "a b"
    with pytest.raises(UserError, match="cannot load a tokenizer"):
        (tmp_path / "empty").mkdir()
        load_tokenizer(ModelConfig(tokenizer_path=str(tmp_path / "empty")))


def test_every_end_id_is_found(tmp_path, folder):
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, eos_token=EOS))
    config = load_hf_config(ModelConfig(path=str(folder)))
    config.eos_token_id = 7
    assert eos_ids(tokenizer, GenerationConfig(eos_token_id=[9, 2, 8]), config) == (9, 2, 8)
    assert eos_ids(tokenizer, GenerationConfig(eos_token_id=9), config) == (9, 2)
    assert eos_ids(tokenizer, GenerationConfig(), config) == (7, 2)
    assert eos_ids(tokenizer, None, config) == (7, 2)


def test_generation_config_from_its_file_or_the_models(tmp_path, folder):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "eos_token_id": [3, 4]}))
    assert load_generation_config(tmp_path).eos_token_id == [3, 4]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 6}))
    assert load_generation_config(tmp_path).eos_token_id == 6


def test_a_list_of_pad_ids_is_one_or_is_refused_by_name(tmp_path):
    """Case O10: some models name several; nothing reads padding by its id."""
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [6, 7], "pad_token_id": [5, 6]}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "pad_token_id": [5, 6]}))
    found = load_generation_config(tmp_path)
    assert (found.pad_token_id, found.eos_token_id) == (5, [6, 7])
    with pytest.raises(UserError, match=r"config.json: .*'pad_token_id' with value \[5, 6\]") as refused:
        load_hf_config(ModelConfig(path=str(tmp_path)), tmp_path)
    assert "one id and never a list" in refused.value.hint
