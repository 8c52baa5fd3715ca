"""Lengths without tokenising: the bound holds, is claimed only where it is proved, and leaves the filter exact."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

from verl_core.config.schema import DataConfig
from verl_core.data.dataset import PromptDataset
from verl_core.data.lengths import fit_proof

BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)


def changed(tokenizer, normaliser, pre):
    """The tokenizer with another normaliser and pre-tokeniser."""
    own = copy.deepcopy(tokenizer)
    if normaliser is not None:
        own.backend_tokenizer.normalizer = normaliser
    if pre is not None:
        own.backend_tokenizer.pre_tokenizer = pre
    return own


@pytest.fixture(scope="module")
def normalising(tokenizer):
    return changed(tokenizer, normalizers.NFC(), pre_tokenizers.Sequence([pre_tokenizers.Digits(True), BYTES]))


@pytest.fixture(scope="module")
def as_text(tokenizer):
    """Tokenizers that do not find `<|im_end|>` wherever it stands."""
    blind, greedy, bracket = (changed(tokenizer, None, None) for _ in range(3))
    blind.backend_tokenizer.encode_special_tokens = True
    greedy.add_tokens([AddedToken("<wide>", rstrip=True, normalized=False)])
    bracket.add_tokens([AddedToken("a <|im", normalized=False)])
    return blind, greedy, bracket


@settings(max_examples=150)
@given(
    text=st.text(max_size=60)
    | st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "<", "|im_end|>", "a b", "\u0958", " "])).map("".join)
    | st.text(alphabet="ab <|im_start|>\U0001d160\u0958\u0344e\u0301\n", max_size=40)
)
def test_no_text_has_more_tokens_than_its_bound(tokenizer, normalising, as_text, text):
    """Bytes bound byte-level BPE, also where a normaliser makes one character several (U+1D160, U+0958). What stood in
    the text before is counted, where added tokens part it from the rest."""
    for own in (tokenizer, normalising, *as_text):
        fits, tokens = fit_proof(own), len(own(text, add_special_tokens=False)["input_ids"])
        assert fits is not None and not fits(text, tokens - 1) and not fits(text, tokens - 1)
        assert fits(text, tokens if own in (tokenizer, normalising) else 9 * len(text) * 4)


def test_of_other_tokenizers_nothing_is_proved(tokenizer):
    metaspace, spaced = pre_tokenizers.Metaspace(), pre_tokenizers.ByteLevel(add_prefix_space=True)
    twice = pre_tokenizers.Sequence([BYTES, BYTES])
    for normaliser, pre in [(normalizers.NFKD(), None), (None, metaspace), (None, spaced), (None, twice)]:
        assert fit_proof(changed(tokenizer, normaliser, pre)) is None
    assert fit_proof(object()) is None


def test_the_filter_keeps_what_tokenising_every_row_keeps(tmp_path, tokenizer):
    file = tmp_path / "rows.jsonl"

    def load(**cfg):
        return PromptDataset(str(file), DataConfig(**cfg), tokenizer, "train", 0)

    texts = ["a", "\u00e9" * 30, "x y " * 12, "show your work " * 9, "\U0001f600" * 12, "z" * 75]
    rows = [{"data_source": "s", "prompt": text, "reward_model": {"ground_truth": "1"}} for text in texts]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lengths = [len(r.ids) for r in load(truncation="left", max_prompt_length=1000).take(range(len(rows)))]
    for limit in range(min(lengths), max(lengths) + 1):
        kept = load(filter_overlong_prompts=True, max_prompt_length=limit)
        assert kept.indexes == [i for i, n in enumerate(lengths) if n <= limit]
        assert [len(r.ids) for r in kept.take(range(len(kept)))] == [n for n in lengths if n <= limit]
    assert not load(filter_overlong_prompts=True, max_prompt_length=1000)._ids
