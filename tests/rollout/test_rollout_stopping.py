"""Where a sequence ends: end ids from everywhere, stop strings over token borders."""

from __future__ import annotations

import pytest
from rollout_models import FAMILY, build, engine_for, prompt, request
from transformers import GenerationConfig, PreTrainedTokenizerBase

from verl_core.batch import collate
from verl_core.models.builtin import build_tokenizer
from verl_core.models.tokenizer import eos_ids
from verl_core.rollout.agent_loop import Task, single_turn_trajectory
from verl_core.rollout.protocol import Sampling
from verl_core.rollout.stopping import StopStrings

MODEL = build(FAMILY["qwen2-tied"])
FREE = [request(str(s), prompt(1), seed=s, max_tokens=40, ignore_eos=True) for s in range(6)]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return build_tokenizer(["7+5=12\n12-3=9\n#### 9", "Tom has 7 pens. Café 🙂"])


def test_every_end_id_ends_a_row():
    """Two end ids, neither the model config's: rows end at the first of either, which is kept."""
    unbroken = engine_for(MODEL, eos_ids=[]).generate(FREE)
    ends = {11, 29, 31}
    requests = [request(r.request_id, r.ids, r.seed, max_tokens=40) for r in FREE]
    stopped = 0
    for whole, cut in zip(unbroken, engine_for(MODEL, eos_ids=ends).generate(requests), strict=True):
        first = next((i for i, token in enumerate(whole.ids) if token in ends), None)
        assert cut.ids == (whole.ids if first is None else whole.ids[: first + 1])
        assert cut.finish == ("length" if first is None else "stop")
        stopped += first is not None
    assert stopped >= 2


def test_ignore_eos_goes_on_to_the_limit():
    unbroken = engine_for(MODEL, eos_ids=range(97)).generate(FREE)
    assert all((len(c.ids), c.finish) == (40, "length") for c in unbroken)
    obeying = [request(r.request_id, r.ids, r.seed, max_tokens=40) for r in FREE]
    at_once = engine_for(MODEL, eos_ids=range(97)).generate(obeying)
    assert all((len(c.ids), c.finish) == (1, "stop") for c in at_once)  # an answer may be nothing but its end


def test_an_end_id_as_the_last_token_allowed_is_a_stop():
    completion = engine_for(MODEL, eos_ids=range(97)).generate([request("a", prompt(0), max_tokens=1)])[0]
    assert (len(completion.ids), completion.finish) == (1, "stop")


def test_pad_equal_to_eos_trains_the_final_end(tokenizer: PreTrainedTokenizerBase):
    """Two answers of unlike length, pad = eos: the mask comes from lengths, so the last token, the end, is in it."""
    tokenizer = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, eos_token="7", pad_token="7")
    ends = eos_ids(tokenizer, GenerationConfig(eos_token_id=[11, 31]), MODEL.config)
    assert set(ends) == {11, 31, tokenizer.eos_token_id} and tokenizer.pad_token_id == tokenizer.eos_token_id
    tasks = [Task("g", s, prompt(1), Sampling(max_tokens=40), seed=s) for s in range(6)]
    engine = engine_for(MODEL, eos_ids=ends)
    completions = engine.generate([request(str(t.sample), t.ids, t.seed, max_tokens=40) for t in tasks])
    trajectories = [single_turn_trajectory(t, c) for t, c in zip(tasks, completions, strict=True)]
    batch = collate([trajectories])
    ended = [t for t in trajectories if t.finish == "stop"]
    assert len({len(t.ids) for t in ended}) >= 2
    for t in ended:
        assert t.ids[-1] in ends and t.mask[-1] == 1
        assert t.mask == [0] * 6 + [1] * (len(t.ids) - 6)
    assert int(batch["mask_N"].sum()) == sum(len(c.ids) for c in completions)


@pytest.mark.parametrize(
    ("text", "stop", "upto"),
    [
        ("12-3=9\n#### 9", ["####"], "12-3=9\n####"),
        ("12-3=9\n#### 9", ["zzz", "=9\n#"], "12-3=9\n#"),
        ("Café 🙂 7+5", ["🙂"], "Café 🙂"),
        ("Café 🙂 7+5", ["é 🙂 7"], "Café 🙂 7"),
        ("7 🦊ж5", ["🦊"], "7 🦊"),  # characters of several tokens: their bytes are not in the vocabulary's merges
        ("7 🦊ж5", ["🦊ж5"], "7 🦊ж5"),
        ("12\n12", ["\n"], "12\n"),
        ("12\n12", ["3"], None),
    ],
)
def test_stop_strings_over_token_borders(
    tokenizer: PreTrainedTokenizerBase, text: str, stop: list[str], upto: str | None
):
    """The token that completes a stop string is the first after which the whole text holds it."""
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    expected = next((n for n in range(1, len(ids) + 1) if any(s in tokenizer.decode(ids[:n]) for s in stop)), None)
    watch = StopStrings(tokenizer, stop)
    found = next((n for n, token in enumerate(ids, 1) if watch.push(token)), None)
    assert found == expected
    assert (found is None) == (upto is None)
    if found is not None and upto is not None:
        assert upto in tokenizer.decode(ids[:found])


def test_stop_strings_see_special_tokens_and_survive_broken_bytes(tokenizer: PreTrainedTokenizerBase):
    end, broken = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("ð")  # 0xF0, never followed by its rest
    watch = StopStrings(tokenizer, ["<|im_end|>"])
    assert [watch.push(token) for token in [broken] * 20] == [None] * 20
    assert len(watch._window) < 10  # what is decoded each time stays short
    assert watch.push(end) == "<|im_end|>"


def test_the_engine_stops_at_strings(tokenizer: PreTrainedTokenizerBase):
    engine = engine_for(MODEL, tokenizer)
    unbroken = engine.generate(FREE)
    texts = [tokenizer.decode(c.ids) for c in unbroken]
    stop = texts[0][5:8]
    requests = [request(r.request_id, r.ids, r.seed, max_tokens=40, ignore_eos=True, stop=(stop,)) for r in FREE]
    for whole, text, cut in zip(unbroken, texts, engine.generate(requests), strict=True):
        if stop in text:
            assert cut.ids == whole.ids[: len(cut.ids)] and cut.finish == "stop" and cut.extras == {"stop": stop}
            assert stop in tokenizer.decode(cut.ids) and stop not in tokenizer.decode(cut.ids[:-1])
        else:
            assert cut.ids == whole.ids and cut.finish == "length"
