"""The builtin model: its size, its round trip through a folder, its text round trip."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_core.data.builtin import builtin_corpus
from verl_core.models.builtin import build_model, build_tokenizer, write_builtin

CORPUS = builtin_corpus("builtin:show-your-work", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("builtin")
    write_builtin(path, CORPUS, 0)
    return path


def test_size_and_tie(folder: Path):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert 250_000 <= sum(p.numel() for p in model.parameters()) <= 260_000
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_the_saved_tokenizer_is_the_built_one(folder: Path):
    built, loaded = build_tokenizer(CORPUS), AutoTokenizer.from_pretrained(folder)
    for text in CORPUS[:50]:
        assert built(text)["input_ids"] == loaded(text)["input_ids"]
    chat = [{"role": "user", "content": "Tom has 7 pens."}]
    text = loaded.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>user\nTom has 7 pens.<|im_end|>\n<|im_start|>assistant\n"
    assert loaded.eos_token == "<|im_end|>" and loaded.pad_token_id != loaded.eos_token_id


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_any_text_survives(text: str):
    import unicodedata

    tokenizer = build_tokenizer(CORPUS)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)  # Qwen2's tokenizer normalises


def test_seed_decides_the_weights_and_leaves_the_process_alone():
    tokenizer = build_tokenizer(CORPUS)
    before = torch.get_rng_state()
    one, same, other = build_model(tokenizer, 1), build_model(tokenizer, 1), build_model(tokenizer, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.model.embed_tokens.weight, same.model.embed_tokens.weight)
    assert not torch.equal(one.model.embed_tokens.weight, other.model.embed_tokens.weight)
