"""The batch as a GPU runs it, on the CPU: shapes in buckets, tokens read a step late. Same answers as without."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from rollout_models import EOS, FAMILY, GENERIC, build, engine_for, mixed_requests, prompt, request

from verl_core.rollout.hf import HfEngine
from verl_core.rollout.hf.shapes import Shapes
from verl_core.rollout.hf.stepper import Stepper
from verl_core.rollout.parts import Part
from verl_core.rollout.protocol import Completion, TokenRequest

# float64: rounding, which depends on the size of the batch, is then too small to change a draw.
MODEL = build(FAMILY["qwen2-tied"]).double()


class Recorder:
    """Stands where CUDA graphs are: notes the shapes, and that what a graph would read and write stays where it is."""

    def __init__(self) -> None:
        self.shapes: list[Hashable] = []
        self.addresses: set[int] = set()
        self.stepper: Stepper | None = None

    def run(self, shape: Hashable, step: Callable[[], None]) -> None:
        assert self.stepper is not None
        state = self.stepper
        held = [state.ids_S, state.position_S, state.drawn_S2, *state.columns, *state.cache.planes]
        found = {tensor.data_ptr() for tensor in held} | set(state.decoder.addresses())
        assert found == (self.addresses or found)
        self.addresses = found
        self.shapes.append(shape)
        step()

    def clear(self) -> None:
        self.addresses = set()


def ahead(engine: HfEngine, lag: int = 1) -> Recorder:
    """Makes an engine run as on a GPU."""
    recorder: Any = Recorder()
    engine._shapes = Shapes(engine.max_num_seqs, engine.max_model_len, bucketed=True, lag=lag)
    engine._graphs = recorder
    stepper_for = engine._stepper_for

    def noted(slots: int, positions: int) -> Stepper:
        recorder.stepper = stepper_for(slots, positions)
        return recorder.stepper

    engine._stepper_for = noted
    return recorder


def precise(model: Any = MODEL, tokenizer: Any = None, **options: Any) -> HfEngine:
    return engine_for(model, tokenizer, **({"dtype": torch.float64} | options))


def same(got: list[Completion], want: list[Completion]) -> None:
    for ours, theirs in zip(got, want, strict=True):
        assert (ours.request_id, ours.ids, ours.finish) == (theirs.request_id, theirs.ids, theirs.finish)
        assert (ours.versions, ours.extras) == (theirs.versions, theirs.extras)
        assert ours.logps == pytest.approx(theirs.logps, abs=1e-6)


def filtered_requests(count: int) -> list[TokenRequest]:
    """Every kind of sampling, at temperatures at which many rows meet the end id early."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 1.5}, {"top_k": 9}, {"top_p": 0.8, "temperature": 0.6}, {"temperature": 0.0},
        {"ignore_eos": True},
    ]  # fmt: skip
    return [
        request(str(i), prompt(i // 3, 3 + i % 11), seed=i, max_tokens=1 + 7 * i % 40, **kinds[i % len(kinds)])
        for i in range(count)
    ]


@pytest.mark.parametrize("slots", [1, 5, 16, 40, 64])
@pytest.mark.parametrize("lag", [0, 1, 3])
def test_answers_are_those_of_exact_shapes_without_lag(slots: int, lag: int):
    """Also with more requests than rows that run, and a batch that shrinks over several buckets."""
    requests = filtered_requests(48) + mixed_requests(20)
    engine = precise(max_num_seqs=slots, eos_ids=[EOS, 7, 11])
    want = engine.generate(requests)
    assert {c.finish for c in want} == {"stop", "length"}
    ahead(engine, lag)
    same(engine.generate(requests), want)


@pytest.mark.parametrize("name", ["qwen2-one-sliding-layer", "llama-biases-linear-rope", "gemma2"])
def test_every_kind_of_decoder(name: str):
    model = build({**FAMILY, **GENERIC}[name]).double()
    requests = mixed_requests(24)
    engine = precise(model, max_num_seqs=9)
    want = engine.generate(requests)
    ahead(engine)
    same(engine.generate(requests), want)


def test_few_shapes_occur_and_none_twice_as_large_as_needed():
    engine = precise(max_num_seqs=60, max_model_len=400)
    recorder = ahead(engine)
    engine.generate([request(str(i), prompt(i), seed=i, max_tokens=5 * i + 1, ignore_eos=True) for i in range(60)])
    rows = [shape[0] for shape in recorder.shapes]
    assert sorted(set(rows)) == [8, 16, 32, 60]
    assert rows == sorted(rows, reverse=True)  # ended rows at the end of the batch are not computed
    assert {shape[1] for shape in recorder.shapes} == {128, 256, 384}
    running = [sum(5 * i + 1 > step for i in range(60)) for step in range(1, 296)]
    assert all(row <= max(8, 2 * alive) for row, alive in zip(rows, running, strict=True))


def test_an_end_by_length_costs_no_step_and_an_end_by_token_one():
    for ignore, spare in ((True, 0), (False, 1)):
        engine = precise(max_model_len=4096)
        asked = request("a", prompt(0), seed=3, max_tokens=30 if ignore else 4000, ignore_eos=ignore)
        recorder = ahead(engine)
        answer = engine.generate([asked])[0]
        assert answer.finish == ("length" if ignore else "stop")
        assert len(recorder.shapes) == len(answer.ids) - 1 + spare


def test_stop_strings_cut_what_was_drawn_behind_them():
    class Letters:
        def decode(self, ids: list[int], **_: Any) -> str:
            return "".join(chr(97 + i % 26) for i in ids)

    requests = [request(str(i), prompt(i), seed=i, max_tokens=40, stop=("a", "bc")) for i in range(12)]
    engine = precise(tokenizer=Letters(), max_num_seqs=5)
    want = engine.generate(requests)
    assert {c.extras.get("stop") for c in want} >= {"a"}
    ahead(engine)
    same(engine.generate(requests), want)


NAN = 96  # an id whose embedding is NaN


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_nan_ends_its_row_only(slots: int):
    """The next row in the slot reads nothing of it, in this generation and the next."""
    model = build(FAMILY["llama-llama3-rope"]).double()
    with torch.no_grad():
        model.get_input_embeddings().weight[NAN] = float("nan")
        model.get_output_embeddings().weight[NAN] = 0.0
    good = [request(str(i), tuple(t % NAN for t in prompt(i, 4 + i)), temperature=0.0) for i in range(6)]
    bad = [request(f"bad{i}", (*prompt(9, 20), NAN, 5)) for i in range(2)]
    want = precise(model, max_num_seqs=slots).generate(good)
    engine = precise(model, max_num_seqs=slots)
    ahead(engine)
    for _ in range(2):
        first, *others, last = engine.generate([bad[0], *good, bad[1]])
        assert first.extras == last.extras == {"nan": 1} and first.ids == last.ids == []
        same(others, want)


def test_nan_that_the_end_of_a_row_leads_to_reaches_nobody():
    """The step that is computed in vain behind an end id writes NaN where the next row will live."""
    model = build(FAMILY["llama-llama3-rope"]).double()
    requests = [request(str(i), prompt(i), seed=i, max_tokens=40) for i in range(12)]
    want = precise(model, max_num_seqs=2).generate(requests)
    assert sum(c.finish == "stop" for c in want) > 2
    with torch.no_grad():
        model.get_input_embeddings().weight[EOS] = float("nan")
    engine = precise(model, max_num_seqs=2)
    ahead(engine)
    same(engine.generate(requests), want)


def test_aborted_rows_keep_a_prefix_and_the_others_go_on():
    """Aborted in the middle by another thread, in the queue and in the batch."""
    requests = [request(str(i), prompt(i), seed=i, max_tokens=300, ignore_eos=True) for i in range(6)]
    engine = precise(max_num_seqs=4, max_model_len=400)
    want = engine.generate(requests)
    ahead(engine)

    def on_parts(parts: list[Part]) -> None:
        engine.abort(["1", "5"])

    got = engine.generate(requests, on_parts)
    assert [c.finish for c in got] == ["length", "abort", "length", "length", "length", "abort"]
    for ours, theirs in zip(got, want, strict=True):
        assert ours.ids == theirs.ids[: len(ours.ids)] and len(ours.ids) == len(ours.logps) == len(ours.versions)
    assert 0 < len(got[1].ids) < 300 and got[5].ids == []
    same([got[i] for i in (0, 2, 3, 4)], [want[i] for i in (0, 2, 3, 4)])


def test_new_weights_in_the_middle_mark_the_tokens_that_they_drew():
    """What was asked for before the update counts as the old model's."""
    other = build(FAMILY["qwen2-tied"], seed=9).double()
    engine = precise(max_model_len=400)
    asked = [request("a", prompt(0), seed=1, max_tokens=300, ignore_eos=True)]
    before = engine.generate(asked)[0]
    recorder = ahead(engine)
    with ThreadPoolExecutor(1) as thread:
        updates: list[Any] = []

        def on_parts(parts: list[Part]) -> None:
            if not updates:
                updates.append(thread.submit(engine.update_weights, other.named_parameters(), 2))
                updates[0].result(60)
                recorder.clear()

        got = engine.generate(asked, on_parts)[0]
    first = got.versions.count(1)
    assert 0 < first < 300 and got.versions == [1] * first + [2] * (300 - first)
    assert got.ids[:first] == before.ids[:first]
    rest = asked[0].after(Completion("a", got.ids[: first + 1], [], [], "abort"))
    engine.update_weights(MODEL.named_parameters(), 3)
    assert engine.generate([rest])[0].ids != got.ids[first + 1 :]


@pytest.mark.parametrize("moved", [True, False])
def test_graphs_are_dropped_when_weights_moved_and_kept_when_they_changed_in_place(moved: bool):
    model = build(FAMILY["qwen2-tied"]).double()
    engine = precise(model)
    requests = mixed_requests(10)
    recorder = ahead(engine)
    engine.generate(requests)
    addresses = recorder.addresses
    new = build(FAMILY["qwen2-tied"], seed=4).double()
    with torch.no_grad():
        for parameter, source in zip(model.parameters(), new.parameters(), strict=True):
            parameter.copy_(source)
    engine.update_weights((new if moved else model).named_parameters(), 2)
    assert recorder.addresses == (set() if moved else addresses)
    plain = precise(new)
    plain.update_weights(new.named_parameters(), 2)
    same(engine.generate(requests), plain.generate(requests))


@pytest.mark.parametrize("small", [False, True])
def test_sleep_gives_back_cache_state_and_graphs_unless_they_are_small(small: bool):
    engine = precise()
    if not small:
        engine.KEPT_ASLEEP = 0
    requests = mixed_requests(10)
    recorder = ahead(engine)
    want = engine.generate(requests)
    engine.sleep()
    if small:
        assert engine._cache is not None and recorder.addresses
    else:
        assert engine._cache is engine._stepper is None and not recorder.addresses
    engine.wake()
    same(engine.generate(requests), want)


def test_same_requests_same_bits_whatever_ran_before():
    requests = mixed_requests(12)
    model = build(FAMILY["qwen2-tied"])
    fresh, used = engine_for(model), engine_for(model)
    ahead(fresh)
    ahead(used)
    used.generate([request(str(i), prompt(i, 30), max_tokens=30) for i in range(40)])
    assert [c.logps for c in used.generate(requests)] == [c.logps for c in fresh.generate(requests)]
