import copy

import pytest
import torch

from verl_core.config.errors import UserError
from verl_core.data.demonstrations import DemonstrationSource, load_demonstrations


def trained_text(batch, tokenizer):
    return [tokenizer.decode(batch["ids_N"][batch.token_index(torch.tensor([s]))][m]) for s, m in masks(batch)]


def masks(batch):
    return [(s, batch["mask_N"][batch.token_index(torch.tensor([s]))]) for s in range(batch.S)]


def test_the_mask_covers_the_answer_from_its_first_token_to_the_end_of_sequence(tokenizer):
    batch = DemonstrationSource([("How many?", "7+5=12\n#### 12")], tokenizer, batch_size=2, seed=0).batch(0)
    assert trained_text(batch, tokenizer) == ["7+5=12\n#### 12<|im_end|>"] * 2
    whole = tokenizer.decode(batch["ids_N"][: batch.length_S[0]])
    assert whole == "<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n7+5=12\n#### 12<|im_end|>"


def test_answers_survive_exactly_whatever_they_hold(tokenizer):
    answers = ["<think>\nhm\n</think>\n\n5", "5", "55", " leading", "trailing \n", "世界 −5 🙂"]
    source = DemonstrationSource([("q", a) for a in answers], tokenizer, batch_size=64, seed=0)
    assert set(trained_text(source.batch(0), tokenizer)) == {f"{a}<|im_end|>" for a in answers}


def test_a_batch_depends_on_seed_and_step_alone(tokenizer):
    pairs = load_demonstrations("builtin:show-your-work/worked", 200, seed=0)
    one, two = (DemonstrationSource(pairs, tokenizer, 8, seed=5) for _ in range(2))
    one.batch(0)
    assert torch.equal(one.batch(7)["ids_N"], two.batch(7)["ids_N"])
    assert one.batch(7)["ids_N"].tolist() != one.batch(8)["ids_N"].tolist()
    other = DemonstrationSource(pairs, tokenizer, 8, seed=6)
    assert one.batch(7)["ids_N"].tolist() != other.batch(7)["ids_N"].tolist()


def test_a_tokenizer_without_template_or_end_is_refused(tokenizer):
    for attribute, said in (("chat_template", "no chat template"), ("eos_token", "no end-of-sequence")):
        bare = copy.deepcopy(tokenizer)
        setattr(bare, attribute, None)
        with pytest.raises(UserError, match=said):
            DemonstrationSource([("q", "a")], bare, 1, 0)
