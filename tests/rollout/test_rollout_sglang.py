"""SglangEngine against what every engine promises (docs/rollout.md), with the real SGLang on the CPU: vLLM's tests with
SGLang in its place, and what is SGLang's own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from rollout_children import until
from rollout_models import engine_for, request
from rollout_sglang import sglang_child
from rollout_vllm import EOS, defined_logps, write
from test_rollout_vllm import (  # noqa: F401  the tests that are the same
    CLOSE,
    Side,
    ask,
    begin,
    long,
    test_a_completion_that_spans_an_update_has_both_versions_each_with_its_own_log_probs,
    test_a_seed_alone_decides_and_samples_of_a_prompt_differ,
    test_an_aborted_request_keeps_its_tokens_and_its_rest_is_no_longer_than_asked,
    test_an_update_forgets_prefixes_of_the_old_weights,
    test_every_end_id_ends_a_sequence_and_stays_unless_ignored,
    test_greedy_is_the_hf_engine_token_for_token,
    test_incomplete_or_foreign_weights_are_refused_and_leave_none,
    test_it_does_not_sleep_while_rows_run_or_are_frozen,
    test_log_probs_are_of_the_distribution_drawn_from_as_in_the_hf_engine,
    test_pause_ends_or_awaits_what_runs,
    test_stop_strings_keep_the_token_that_completes_one,
    test_tokens_follow_the_distribution,
)
from transformers import AutoTokenizer

from verl_core.config.errors import RunError, UserError
from verl_core.rollout.child import EngineLost

pytestmark = pytest.mark.slow


class SglangSide(Side):
    def __init__(self, folder: Path):
        self.model = write(folder)
        self.engine = sglang_child(folder, enable_sleep=True, load_format="dummy")
        self.version = 0
        self.tokenizer = AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory):
    side = SglangSide(tmp_path_factory.mktemp("sglang"))
    with pytest.raises(RunError, match="no weights"):
        side.engine.generate([ask("early")])
    side.give()
    yield side
    side.engine.close()


def test_draws_are_the_hf_engines(side):
    """Same seed, same position, same token, through all ways of sampling; rounding may part a few of 32 answers."""
    ways = [{}, {"temperature": 0.7}, {"top_k": 5}, {"top_k": 1}, {"top_p": 0.8, "temperature": 1.2}]
    asked = [ask(f"{i}", i, max_tokens=30, **ways[i % len(ways)]) for i in range(32)]
    hf = engine_for(side.model, eos_ids=EOS, max_model_len=512).generate(asked)
    ours = side.engine.generate(asked)
    assert sum(one.ids == other.ids for one, other in zip(ours, hf, strict=True)) >= 30


def test_an_interrupted_row_goes_on_as_if_it_had_not_been(side):
    asked = long(3)
    whole = side.engine.generate(asked)
    thread, answers = begin(side, asked)
    side.engine.pause("keep")
    side.engine.resume()
    thread.join(120)
    assert [got.ids for got in answers] == [got.ids for got in whole]


def test_a_point_mass_is_certain_and_greedy_is_at_temperature_1(side):
    certain, greedy = side.engine.generate([ask("k", 1, top_k=1), ask("g", 1, temperature=0.0)])
    assert certain.ids == greedy.ids and set(certain.logps) == {0.0}
    assert all(logp < -0.01 for logp in greedy.logps)


def test_the_whole_length_of_the_model_can_be_used(side):
    room = side.engine.generate([ask("r", 1, ids=tuple(range(8, 308)), max_tokens=900, ignore_eos=True)])[0]
    assert (len(room.ids), room.finish) == (212, "length")


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (ask("full", ids=(9,) * 512), "leaves no room"),
        (ask("empty", ids=()), "empty prompt"),
        (ask("cold", temperature=1e-7), "temperature 1e-07; sglang samples at 0"),
        (ask("p", top_p=0.0), "out of range"),
        (ask("foreign", ids=(9, 384)), "id 384; the model's vocabulary has 384"),
    ],
)
def test_a_request_out_of_range_is_refused_and_costs_no_other(side, one, message):
    with pytest.raises(UserError, match=message) as refused:
        side.engine.generate([ask("fine"), one])
    assert one.request_id in str(refused.value)
    assert side.engine.generate([ask("fine")])[0].ids


def test_more_rows_than_the_cache_holds_are_all_answered(tmp_path: Path):
    """SGLang takes rows out of its batch when the cache is full; what they have is neither lost nor told twice."""
    model = write(tmp_path)
    with sglang_child(tmp_path, kv_cache_bytes=1024 * 400) as engine:
        assert engine.call("capacity_tokens").result() == 400
        asked = [ask(f"{i}", i, max_tokens=90, ignore_eos=True) for i in range(12)]
        for one, got in zip(asked, engine.generate(asked), strict=True):
            assert (len(got.ids), got.finish) == (90, "length")
            torch.testing.assert_close(torch.tensor(got.logps), defined_logps(model, one, got).float(), **CLOSE)


def test_asleep_it_refuses_and_wakes_with_new_weights(side):
    side.engine.sleep()
    side.engine.sleep()
    with pytest.raises(RunError, match="asleep"):
        side.engine.generate([ask("x")])
    side.give(seed=31)
    side.engine.wake()
    asked = ask("x", 4, max_tokens=50)
    got = side.engine.generate([asked])[0]
    torch.testing.assert_close(torch.tensor(got.logps), defined_logps(side.model, asked, got).float(), **CLOSE)


def family(pid: int) -> set[int]:
    """A process and all below it."""
    below, found = {}, {pid}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            below.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
        except OSError:
            continue
    todo = [pid]
    while todo:
        found |= {*(children := below.get(todo.pop(), []))}
        todo += children
    return found


def scheduler(pid: int) -> int:
    names = {one: Path(f"/proc/{one}/cmdline").read_bytes() for one in family(pid)}
    return next(one for one, name in names.items() if name.startswith(b"sglang::scheduler"))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("who", ["engine", "scheduler"])
def test_a_death_is_told_and_leaves_no_process(tmp_path: Path, who):
    write(tmp_path)
    engine = sglang_child(tmp_path)
    everybody = family(engine.pid)
    os.kill(engine.pid if who == "engine" else scheduler(engine.pid), signal.SIGKILL)
    with pytest.raises((EngineLost, RunError), match=r"SIGKILL|scheduler has failed|has stopped"):
        for i in range(1000):
            engine.generate([request(str(i), (9, 10), max_tokens=400, ignore_eos=True)])
    engine.close()
    until(lambda: not any(alive(pid) for pid in everybody))


def test_a_start_that_fails_says_why(tmp_path: Path):
    write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(RunError, match="cannot start") as failed:
        sglang_child(tmp_path)
    assert "weights" in str(failed.value)
