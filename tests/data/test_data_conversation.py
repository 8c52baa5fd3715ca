"""Ids and masks of conversations, against the chat template itself."""

import copy

import pytest
from tokenizers import AddedToken

from verl_core.config.errors import UserError
from verl_core.data.conversation import Template, Unmaskable

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "7+5?"},
    {"role": "assistant", "content": "12"},
    {"role": "user", "content": "And 3 more?"},
    {"role": "assistant", "content": "15 🙂"},
]
# as Qwen3's: what the assistant thought is not shown again once the user has spoken
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'] if loop.last else m['content'].split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def with_template(tokenizer, template: str):
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return other


def encoded(tokenizer, turns, first: int, **arguments):
    template = Template(tokenizer, arguments)
    return template.encode([template.render(turns, first)])[0]


def learned(tokenizer, e) -> list[str]:
    """The learned stretches as text."""
    runs, inside = [], False
    for i, m in zip(e.ids, e.mask, strict=True):
        if m and not inside:
            runs.append([])
        if m:
            runs[-1].append(i)
        inside = bool(m)
    return [tokenizer.decode(run) for run in runs]


def test_every_turn_of_the_assistant_is_learned_with_its_end_token_and_nothing_else(tokenizer):
    e = encoded(tokenizer, TURNS, 2)
    whole = tokenizer.apply_chat_template(TURNS, tokenize=False).removesuffix("\n")
    assert list(e.ids) == tokenizer(whole, add_special_tokens=False)["input_ids"]
    assert learned(tokenizer, e) == ["12<|im_end|>", "15 🙂<|im_end|>"]
    prompt = tokenizer.apply_chat_template(TURNS[:2], add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(e.ids[: e.prompt_length]) == prompt


def test_turns_before_the_first_learned_one_are_prompt(tokenizer):
    e = encoded(tokenizer, TURNS, 4)
    assert learned(tokenizer, e) == ["15 🙂<|im_end|>"]


@pytest.mark.parametrize(
    "text", ["", "\n", "\n\n5", " leading", "trailing \n", "<|im_end|>", "a<|im_start|>b", "世界 −5"]
)
def test_answers_survive_exactly_whatever_they_hold(tokenizer, text):
    """Where the tokenizer would join a line break of the answer with the template's, the pieces are tokenised apart."""
    turns = [*TURNS[:4], {"role": "assistant", "content": text}]
    e = encoded(tokenizer, turns, 2)
    assert learned(tokenizer, e) == ["12<|im_end|>", f"{text}<|im_end|>"]
    assert tokenizer.decode(e.ids) == tokenizer.apply_chat_template(turns, tokenize=False).removesuffix("\n")


def test_a_tokenizer_that_joins_text_over_the_border_is_made_to_stop_there(tokenizer):
    """Without special tokens around it `: ` and the answer would be one token."""
    plain = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + '<|im_end|>' }}{% endfor %}"
    plain += "{% if add_generation_prompt %}assistant {% endif %}"
    other = with_template(tokenizer, plain)
    turns = [{"role": "user", "content": "How many"}, {"role": "assistant", "content": "apples"}]
    e = encoded(other, turns, 1)
    assert learned(other, e) == ["apples<|im_end|>"]
    prompt = other("user How many<|im_end|>assistant ", add_special_tokens=False)["input_ids"]
    assert list(e.ids[: e.prompt_length]) == prompt


def test_white_space_that_belongs_to_the_end_token_does_not_move_the_mask(tokenizer):
    """Some end tokens take the line break behind them (rstrip)."""
    other = copy.deepcopy(tokenizer)
    other.add_special_tokens({"additional_special_tokens": [AddedToken("<|end|>", rstrip=True, special=True)]})
    other.chat_template = tokenizer.chat_template.replace("<|im_end|>", "<|end|>")
    assert learned(other, encoded(other, TURNS, 2)) == ["12<|end|>", "15 🙂<|end|>"]


def test_a_template_that_rewrites_earlier_turns_is_refused(tokenizer):
    other = with_template(tokenizer, FORGETFUL)
    turns = [*TURNS[:2], {"role": "assistant", "content": "<think>5+7</think>12"}, *TURNS[3:]]
    with pytest.raises(Unmaskable, match="message 2 otherwise than the model would be asked for it"):
        encoded(other, turns, 2)
    assert learned(other, encoded(other, turns, 4)) == ["15 🙂<|im_end|>"]  # as given it is what the model would see


def test_a_generation_prompt_that_no_answer_begins_with_is_refused(tokenizer):
    with pytest.raises(Unmaskable, match="its generation prompt is not how an answer begins"):
        encoded(tokenizer, TURNS, 2, think=True)


def test_a_template_without_an_end_is_refused(tokenizer):
    endless = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    with pytest.raises(Unmaskable, match="nothing says where to stop"):
        encoded(with_template(tokenizer, endless), TURNS[1:3], 1)


def test_tokenizers_that_lack_something_are_refused(tokenizer):
    with pytest.raises(UserError, match="no chat template"):
        Template(with_template(tokenizer, ""), {})
