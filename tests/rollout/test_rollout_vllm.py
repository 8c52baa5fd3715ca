"""VllmEngine against what every engine promises (docs/rollout.md), with the real vLLM on the CPU in one process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rollout_models import build, engine_for, request
from rollout_vllm import EOS, VOCABULARY, config, defined_logps, interpreter, vllm_child, write
from transformers import AutoTokenizer

from verl_core.config.errors import RunError, UserError
from verl_core.rollout.child import ChildEngine
from verl_core.rollout.parts import Part
from verl_core.rollout.protocol import Completion, TokenRequest

pytestmark = pytest.mark.slow
CLOSE = {"atol": 2e-5, "rtol": 0}
CACHE = 2**28  # bytes


class Side:
    """The engine, its model, and the weights it has."""

    def __init__(self, folder: Path):
        self.model = write(folder)
        self.engine: ChildEngine = vllm_child(
            folder, interpreter(), enable_sleep=True, load_format="dummy", kv_cache_bytes=CACHE
        )
        self.version = 0
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def give(self, seed: int = 0) -> None:
        self.model = build(config(), seed)
        self.version += 1
        self.engine.update_weights(self.model.named_parameters(), self.version)


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory):
    side = Side(tmp_path_factory.mktemp("vllm"))
    with pytest.raises(RunError, match="no weights"):
        side.engine.generate([request("early", prompt(0))])
    side.give()
    yield side
    side.engine.close()


def prompt(seed: int, length: int = 6) -> tuple[int, ...]:
    return tuple(torch.randint(8, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def ask(name: str, seed: int = 0, *, ids: tuple[int, ...] | None = None, **sampling: Any) -> TokenRequest:
    return request(name, prompt(seed) if ids is None else ids, seed=seed, **sampling)


WAYS = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 0.0},
    {"top_k": 5},
    {"top_p": 0.9},
    {"temperature": 1.3, "top_k": 40, "top_p": 0.8},
]


def test_log_probs_are_of_the_distribution_drawn_from_as_in_the_hf_engine(side):
    """All ways of sampling in one batch, the same definition for both engines."""
    asked = [ask(f"{i}", i, max_tokens=24, **WAYS[i % len(WAYS)]) for i in range(48)]
    hf = engine_for(side.model, eos_ids=EOS, max_model_len=512)
    for engine in (side.engine, hf):
        for one, got in zip(asked, engine.generate(asked), strict=True):
            assert got.request_id == one.request_id and len(got.ids) == len(got.logps) == len(got.versions) > 0
            expected = defined_logps(side.model, one, got).float()
            torch.testing.assert_close(torch.tensor(got.logps), expected, **CLOSE)


def test_greedy_is_the_hf_engine_token_for_token(side):
    asked = [ask(f"{i}", i, max_tokens=40, temperature=0.0) for i in range(8)]
    expected = engine_for(side.model, eos_ids=EOS, max_model_len=512).generate(asked)
    for want, got in zip(expected, side.engine.generate(asked), strict=True):
        assert (got.ids, got.finish) == (want.ids, want.finish)


def test_tokens_follow_the_distribution(side):
    """4,000 first tokens of one prompt, drawn with 4,000 seeds, against the probabilities: chi-square over the 20
    likeliest ids, far from the 1e-6 quantile of 20 degrees of freedom."""
    count, ids = 4000, prompt(3)
    asked = [replace(ask(f"{i}", 0, ids=ids, max_tokens=1, temperature=0.8), seed=i) for i in range(count)]
    drawn = torch.tensor([got.ids[0] for got in side.engine.generate(asked)])
    with torch.no_grad():
        probs = (side.model(torch.tensor([ids])).logits[0, -1].double() / 0.8).softmax(-1)
    top = probs.topk(20)
    seen = torch.bincount(drawn, minlength=VOCABULARY)[top.indices].double()
    chi2 = ((seen - count * top.values) ** 2 / (count * top.values)).sum()
    assert chi2 < 63, chi2


def test_a_seed_alone_decides_and_samples_of_a_prompt_differ(side):
    ids = prompt(5)
    group = [replace(ask(f"{i}", 0, ids=ids, max_tokens=20, ignore_eos=True), seed=i) for i in range(8)]
    first = [got.ids for got in side.engine.generate(group)]
    assert len({tuple(one) for one in first}) == 8
    other = [ask(f"o{i}", 50 + i, max_tokens=9) for i in range(5)]
    mixed = side.engine.generate([*other, *reversed(group)])
    assert [got.ids for got in reversed(mixed[5:])] == first
    assert side.engine.generate([group[3]])[0].ids == first[3]
    huge = side.engine.generate([replace(group[3], seed=group[3].seed + 2**64)])[0]
    assert len(huge.ids) == 20


def test_every_end_id_ends_a_sequence_and_stays_unless_ignored(side):
    asked = [ask(f"{i}", i, max_tokens=400, temperature=1.5) for i in range(64)]
    ends = set[int]()
    for got in side.engine.generate(asked):
        assert not set(got.ids[:-1]) & set(EOS)
        assert (got.ids[-1] in EOS) == (got.finish == "stop")
        ends |= {got.ids[-1]} & set(EOS)
    assert ends == set(EOS)
    ignoring = side.engine.generate(
        [ask(f"{i}", i, max_tokens=400, temperature=1.5, ignore_eos=True) for i in range(8)]
    )
    assert {(got.finish, len(got.ids)) for got in ignoring} == {("length", 400)}
    assert any(set(got.ids) & set(EOS) for got in ignoring)


def test_the_shorter_of_both_limits_binds_and_says_length(side):
    room = side.engine.generate([ask("r", 1, ids=prompt(1, 500), max_tokens=100, ignore_eos=True)])[0]
    assert (len(room.ids), room.finish) == (12, "length")
    for name, one, message in (
        ("full", ask("full", ids=prompt(1, 512)), "leaves no room"),
        ("empty", ask("empty", ids=()), "empty prompt"),
        ("hot", ask("hot", temperature=2.5), "between 0.01 and 2"),
        ("cold", ask("cold", temperature=0.001), "between 0.01 and 2"),
        ("p", ask("p", top_p=0.0), "out of range"),
    ):
        with pytest.raises(UserError, match=message) as refused:
            side.engine.generate([ask("fine"), one])
        assert name in str(refused.value)


def test_stop_strings_keep_the_token_that_completes_one(side):
    free = side.engine.generate([ask("free", 9, max_tokens=60, ignore_eos=True)])[0]
    text = side.tokenizer.decode(free.ids[:30], skip_special_tokens=False)
    stop = text[len(text) // 2 :][:2]
    got = side.engine.generate([ask("free", 9, max_tokens=60, ignore_eos=True, stop=("@@never@@", stop))])[0]
    assert got.ids == free.ids[: len(got.ids)] and 0 < len(got.ids) < 60
    assert (got.finish, got.extras) == ("stop", {"stop": stop})
    assert stop in side.tokenizer.decode(got.ids, skip_special_tokens=False)
    assert stop not in side.tokenizer.decode(got.ids[:-1], skip_special_tokens=False)


def begin(side: Side, asked: Sequence[TokenRequest]) -> tuple[threading.Thread, list[Completion]]:
    """Generates in another thread; returns when every request has tokens."""
    answers: list[Completion] = []
    begun = {i: threading.Event() for i in range(len(asked))}

    def tell(parts: Sequence[Part]) -> None:
        for part in parts:
            begun[part.index].set()

    thread = threading.Thread(target=lambda: answers.extend(side.engine.generate(asked, on_parts=tell)))
    thread.start()
    assert all(event.wait(60) for event in begun.values())
    return thread, answers


def long(count: int, name: str = "l") -> list[TokenRequest]:
    return [ask(f"{name}{i}", i, max_tokens=450, ignore_eos=True) for i in range(count)]


def test_an_aborted_request_keeps_its_tokens_and_its_rest_is_no_longer_than_asked(side):
    asked = long(3)
    thread, answers = begin(side, asked)
    side.engine.abort(["l1"])
    thread.join(120)
    assert [got.finish for got in answers] == ["length", "abort", "length"]
    part = answers[1]
    assert 0 < len(part.ids) < 450 and len(part.logps) == len(part.ids)
    rest = side.engine.generate([asked[1].after(part)])[0]
    assert (len(part.ids) + len(rest.ids), rest.finish) == (450, "length")
    whole = Completion("l1", part.ids + rest.ids, part.logps + rest.logps, [], "length")
    torch.testing.assert_close(torch.tensor(whole.logps), defined_logps(side.model, asked[1], whole).float(), **CLOSE)


@pytest.mark.parametrize("mode", ["abort", "wait"])
def test_pause_ends_or_awaits_what_runs(side, mode):
    thread, answers = begin(side, long(2))
    side.engine.pause(mode)
    thread.join(10)
    assert {got.finish for got in answers} == {"abort" if mode == "abort" else "length"}
    side.engine.resume()


def test_a_completion_that_spans_an_update_has_both_versions_each_with_its_own_log_probs(side):
    before, old = side.version, side.model
    asked = long(4)
    thread, answers = begin(side, asked)
    side.engine.pause("keep")
    side.give(seed=11)
    side.engine.resume()
    thread.join(120)
    for one, got in zip(asked, answers, strict=True):
        split = got.versions.index(side.version)
        assert got.versions == [before] * split + [side.version] * (450 - split) and 0 < split < 450
        logps = torch.tensor(got.logps)
        torch.testing.assert_close(logps[:split], defined_logps(old, one, got).float()[:split], **CLOSE)
        torch.testing.assert_close(logps[split:], defined_logps(side.model, one, got).float()[split:], **CLOSE)


def test_an_update_forgets_prefixes_of_the_old_weights(side):
    """Prompts of whole cache blocks, which the prefix cache would give again."""
    asked = [ask(f"{i}", 1, ids=prompt(1, 300), max_tokens=4, ignore_eos=True) for i in range(4)]
    for seed in (21, 22):
        side.give(seed)
        for one, got in zip(asked, side.engine.generate(asked), strict=True):
            assert set(got.versions) == {side.version}
            torch.testing.assert_close(torch.tensor(got.logps), defined_logps(side.model, one, got).float(), **CLOSE)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), KeyError, "did not come"),
        (lambda w: w.update(extra=torch.zeros(1)), KeyError, "extra"),
        (lambda w: w.update({"lm_head.weight": torch.zeros(2, 3)}), ValueError, "shape"),
    ],
)
def test_incomplete_or_foreign_weights_are_refused_and_leave_none(side, change, error, message):
    weights = dict(side.model.named_parameters())
    change(weights)
    with pytest.raises(error, match=message):
        side.engine.update_weights(weights.items(), 99)
    with pytest.raises(RunError, match="no weights"):
        side.engine.generate([ask("x")])
    side.give()
    assert side.engine.generate([ask("x")])[0].versions[0] == side.version


def test_asleep_it_refuses_and_gives_back_its_cache(side):
    resident = memory(side.engine.pid)
    side.engine.sleep()
    side.engine.sleep()
    assert resident - memory(side.engine.pid) > 0.95 * CACHE
    with pytest.raises(RunError, match="asleep"):
        side.engine.generate([ask("x")])
    side.give(seed=31)
    side.engine.wake()
    asked = [ask("x", 4, max_tokens=50)]
    got = side.engine.generate(asked)[0]
    torch.testing.assert_close(torch.tensor(got.logps), defined_logps(side.model, asked[0], got).float(), **CLOSE)


def test_it_does_not_sleep_while_rows_run_or_are_frozen(side):
    asked = long(1)
    thread, answers = begin(side, asked)
    side.engine.pause("keep")
    with pytest.raises(RunError, match="cannot sleep while it generates"):
        side.engine.sleep()
    side.engine.resume()
    thread.join(60)
    assert (len(answers[0].ids), answers[0].finish) == (450, "length")


def memory(pid: int) -> int:
    """Bytes of a process's resident memory."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def test_a_nan_ends_its_row_and_no_other(side):
    poison = 100
    model = build(config())
    with torch.no_grad():
        model.model.embed_tokens.weight[poison] = float("nan")
    side.version += 1
    side.engine.update_weights(model.named_parameters(), side.version)
    asked = [ask("bad", 1, ids=(9, poison, 11)), *(ask(f"{i}", i, ids=(9, 10 + i)) for i in range(6))]
    bad, *good = side.engine.generate(asked)
    assert (bad.ids, bad.finish, bad.extras) == ([], "abort", {"nan": 1})
    for got in good:  # sampled the poisoned id, or had nothing to do with it
        assert got.finish in ("stop", "length") or (got.extras == {"nan": 1} and got.ids[-1] == poison)
        assert not any(logp != logp for logp in got.logps)
    assert sum(got.finish != "abort" for got in good) >= 3
    side.give()
    healthy = side.engine.generate(asked)
    assert all(logp == logp for got in healthy for logp in got.logps) and healthy[0].ids


def test_calls_of_many_threads_share_the_batch_and_get_their_own(side):
    answers: dict[int, list[Completion]] = {}

    def call(number: int) -> None:
        answers[number] = side.engine.generate([ask(f"{number}/{i}", number * 10 + i) for i in range(4)])

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number, got in answers.items():
        assert [one.request_id for one in got] == [f"{number}/{i}" for i in range(4)]
    assert len(answers) == 8
