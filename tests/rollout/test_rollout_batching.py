"""The refilled batch: rows do not feel each other, prompts are shared, both length limits hold."""

from __future__ import annotations

import pytest
import torch
from rollout_models import EOS, FAMILY, build, engine_for, mixed_requests, prompt, request

from verl_core.config.errors import RunError, UserError
from verl_core.rollout.hf import HfEngine

MODEL = build(FAMILY["qwen2-tied"])


def test_a_request_gives_the_same_tokens_alone_and_among_forty():
    requests = mixed_requests(40)
    together = engine_for(MODEL).generate(requests)
    alone = engine_for(MODEL)
    for asked, completion in zip(requests, together, strict=True):
        single = alone.generate([asked])[0]
        assert single.ids == completion.ids
        assert single.finish == completion.finish
        assert single.logps == pytest.approx(completion.logps, abs=1e-5)


@pytest.mark.parametrize("slots", [1, 3, 7])
def test_refill_gives_what_one_large_batch_gives(slots: int):
    requests = mixed_requests(20)
    wide, narrow = (engine_for(MODEL, max_num_seqs=n).generate(requests) for n in (20, slots))
    assert [c.request_id for c in narrow] == [r.request_id for r in requests]
    assert [c.ids for c in narrow] == [c.ids for c in wide]
    assert [c.finish for c in narrow] == [c.finish for c in wide]


def test_no_more_rows_run_than_max_num_seqs(monkeypatch: pytest.MonkeyPatch):
    engine = engine_for(MODEL, max_num_seqs=3)
    rows = []
    decode = engine._decoder.decode
    monkeypatch.setattr(engine._decoder, "decode", lambda ids, *rest: (rows.append(len(ids)), decode(ids, *rest))[1])
    completions = engine.generate(mixed_requests(20))
    assert max(rows) == 3
    # Each token but a row's first, which its prompt gives, is one row of one decode step: no done row was computed.
    assert sum(rows) == sum(len(c.ids) - 1 for c in completions)


@pytest.mark.parametrize("slots", [16, 3])
def test_samples_of_a_prompt_share_one_pass(slots: int, monkeypatch: pytest.MonkeyPatch):
    """Also when some of them wait in the queue while others run."""
    engine = engine_for(MODEL, max_num_seqs=slots)
    prompts_run = []
    prefill = engine._decoder.prefill
    monkeypatch.setattr(
        engine._decoder, "prefill", lambda ids, length: (prompts_run.extend(ids.tolist()), prefill(ids, length))[1]
    )
    requests = [request(f"{p}/{s}", prompt(p), seed=10 * p + s) for p in range(2) for s in range(8)]
    completions = engine.generate(requests)
    assert len(prompts_run) == 2
    assert len({tuple(c.ids) for c in completions[:8]}) == 8


def test_same_requests_same_bits_whatever_ran_before():
    requests = mixed_requests(12)
    fresh = engine_for(MODEL).generate(requests)
    used = engine_for(MODEL)
    used.generate([request(str(i), prompt(i, 30), max_tokens=30) for i in range(40)])
    again = used.generate(requests)
    assert [c.logps for c in again] == [c.logps for c in fresh]


def test_samples_differ_and_repeat():
    """n samples of one prompt: seeds make them differ, and the same seeds make the same samples."""
    requests = [request(str(s), prompt(0), seed=s) for s in range(8)]
    first, second = (engine_for(MODEL).generate(requests) for _ in range(2))
    assert len({tuple(c.ids) for c in first}) == 8
    assert [c.ids for c in first] == [c.ids for c in second]
    moved = engine_for(MODEL).generate([request(str(s), prompt(0), seed=s + 100) for s in range(8)])
    assert not {tuple(c.ids) for c in first} & {tuple(c.ids) for c in moved}


@pytest.mark.parametrize(("max_tokens", "max_model_len", "expected"), [(10, 64, 10), (100, 20, 14)])
def test_both_limits_bind_and_say_length(max_tokens: int, max_model_len: int, expected: int):
    engine = engine_for(MODEL, max_model_len=max_model_len)
    completion = engine.generate([request("a", prompt(0), max_tokens=max_tokens, ignore_eos=True)])[0]
    assert len(completion.ids) == expected
    assert completion.finish == "length"


def test_every_token_carries_the_version():
    engine = engine_for(MODEL)
    engine.update_weights(MODEL.named_parameters(), version=7)
    completion = engine.generate([request("a", prompt(0))])[0]
    assert completion.versions == [7] * len(completion.ids)


def test_a_continued_completion_equals_an_unbroken_one():
    """Interrupted at 6 of 10, continued: the same tokens, never more than 10 in all."""
    engine = engine_for(MODEL)
    whole = request("a", prompt(0, 5), seed=4, max_tokens=10, ignore_eos=True)
    part = request("a", prompt(0, 5), seed=4, max_tokens=6, ignore_eos=True)
    first = engine.generate([part])[0]
    rest = engine.generate([whole.after(first)])[0]
    assert first.ids + rest.ids == engine.generate([whole])[0].ids
    assert len(first.ids + rest.ids) == 10


NAN = 96  # an id whose embedding is NaN


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_nan_ends_its_row_only(slots: int):
    """A prompt that runs into NaN; the rows beside it, and the next in its slot, are as if it had not been there."""
    model = build(FAMILY["llama-llama3-rope"])  # untied: the NaN reaches only rows that hold the id
    with torch.no_grad():
        model.get_input_embeddings().weight[NAN] = float("nan")
        model.get_output_embeddings().weight[NAN] = 0.0
    good = [request(str(i), tuple(t % NAN for t in prompt(i, 4 + i)), temperature=0.0) for i in range(4)]
    bad = request("bad", (*prompt(9, 20), NAN, 5))
    clean = engine_for(model, max_num_seqs=slots).generate(good)
    first, *others = engine_for(model, max_num_seqs=slots).generate([bad, *good])
    assert (first.finish, first.ids, first.extras) == ("abort", [], {"nan": 1})
    assert [(c.ids, c.finish) for c in others] == [(c.ids, c.finish) for c in clean]
    assert all(c.ids for c in clean)


def test_nan_weights_abort_every_row_and_do_not_crash():
    model = build(FAMILY["qwen2-tied"])
    with torch.no_grad():
        model.get_input_embeddings().weight[NAN] = float("nan")  # tied: every row has a NaN logit
    completions = engine_for(model, max_num_seqs=2).generate(mixed_requests(5))
    assert all((c.finish, c.ids, c.extras) == ("abort", [], {"nan": 1}) for c in completions)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request("long", prompt(0, 64)), r"'long'.*64 tokens.*max_model_len=64"),
        (request("none", ()), r"'none'.*empty prompt"),
        (request("hot", prompt(0), temperature=-1.0), r"'hot'.*temperature=-1.0"),
        (request("p", prompt(0), top_p=0.0), r"'p'.*top_p=0.0"),
        (request("zero", prompt(0), max_tokens=0), r"'zero'.*max_tokens=0"),
        (request("stop", prompt(0), stop=("",)), r"'stop'.*stop=\(''"),
    ],
)
def test_impossible_requests_are_refused_by_name(asked, message: str):
    with pytest.raises(UserError, match=message):
        engine_for(MODEL).generate([asked])


def test_nothing_to_do_and_nothing_to_do_it_with():
    assert engine_for(MODEL).generate([]) == []
    empty = HfEngine(
        MODEL.config, None, device="cpu", dtype=torch.float32, max_num_seqs=4, max_model_len=32, eos_ids=[EOS]
    )
    with pytest.raises(RunError, match="no weights"):
        empty.generate([request("a", prompt(0))])
