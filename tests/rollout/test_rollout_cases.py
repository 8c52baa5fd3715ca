"""Faults that other systems had with rollouts: where each one is proven absent, and tests of those that need several
parts together."""

import ast
from dataclasses import fields

import pytest
from rollout_models import FAMILY, build, engine_for, prompt, request

from tests.conftest import ROOT
from verl_core.algorithms.metrics import batch_metrics
from verl_core.batch import collate
from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.controller.seeds import draw_seed
from verl_core.controller.sources import train_sampling, val_sampling
from verl_core.rollout.agent_loop import Task, single_turn_trajectory
from verl_core.rollout.protocol import Sampling

# What goes wrong elsewhere, and the tests, below tests/, that fail if it does here.
HERE, VLLM = "rollout/test_rollout_cases.py", "rollout/test_rollout_vllm.py"
STOPPING, PARITY = "rollout/test_rollout_stopping.py", "controller/test_parity.py"
CORRECTION, MODELS = "controller/test_parity_correction.py", "models/test_models_pretrained.py"
CASES = {
    "O2": ("a pad id that is the end id hides the end", [(STOPPING, "test_pad_equal_to_eos_trains_the_final_end")]),
    "O4": (
        "log-probs of another distribution than was drawn from",
        [
            ("rollout/test_rollout_sampling.py", "test_frequencies_and_logps_follow_the_filtered_distribution"),
            (PARITY, "test_engine_and_trainer_agree_at_every_temperature"),
            (PARITY, "test_who_gives_old_log_probs"),  # with top-p: the trainer
            (VLLM, "test_log_probs_are_of_the_distribution_drawn_from_as_in_the_hf_engine"),
        ],
    ),
    "O5": (
        "an answer longer than its limit, or than the limit after an interruption",
        [
            ("rollout/test_rollout_batching.py", "test_both_limits_bind_and_say_length"),
            (HERE, "test_an_interrupted_answer_is_never_longer_than_asked"),
            (VLLM, "test_an_aborted_request_keeps_its_tokens_and_its_rest_is_no_longer_than_asked"),
        ],
    ),
    "O6": (
        "answers cut by the model's length do not count as cut",
        [
            (HERE, "test_answers_that_the_models_length_cut_count_as_cut"),
            (VLLM, "test_the_shorter_of_both_limits_binds_and_says_length"),
        ],
    ),
    "O7": (
        "a sampling field is not passed on",
        [
            (HERE, "test_every_sampling_field_reaches_the_engine"),
            (HERE, "test_an_unknown_sampling_field_is_refused"),
            ("rollout/test_rollout_child.py", "test_requests_cross_the_border_unchanged"),
            (VLLM, "test_tokens_follow_the_distribution"),
        ],
    ),
    "O8": (
        "replicas or samples share a seed",
        [
            (HERE, "test_samples_of_a_prompt_differ_on_any_replica_and_repeat"),
            ("rollout/test_rollout_child_hf.py", "test_two_replicas_draw_unlike_samples_of_a_prompt_that_repeat"),
            (VLLM, "test_a_seed_alone_decides_and_samples_of_a_prompt_differ"),
        ],
    ),
    "O9": (
        "a NaN of the engine enters the loss",
        [
            ("rollout/test_rollout_batching.py", "test_nan_ends_its_row_only"),
            (VLLM, "test_a_nan_ends_its_row_and_no_other"),
            (CORRECTION, "test_a_token_without_a_log_prob_trains_nothing"),
            (PARITY, "test_a_log_prob_that_is_no_number_is_counted_and_refused"),
        ],
    ),
    "O10": (
        "no pad token, a list of pad ids, an answer that is only its end",
        [
            (MODELS, "test_pad_token_falls_back"),
            (MODELS, "test_a_list_of_pad_ids_is_one_or_is_refused_by_name"),
            (HERE, "test_an_answer_that_is_only_its_end_trains_that_token"),
        ],
    ),
}


@pytest.mark.parametrize(("file", "name"), [test for _, tests in CASES.values() for test in tests])
def test_each_case_has_its_tests(file, name):
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


MODEL = build(FAMILY["qwen2-tied"])


class Decoder:
    """Stands for a tokenizer: asked with every token of a row that has stop strings, it says when there are some."""

    def __init__(self, at: int, then) -> None:
        self.at, self.then, self.tokens = at, then, 0

    def decode(self, ids: list[int], **_: object) -> str:
        if len(ids) == 1 + (self.tokens > 0):  # the new token, behind the one before it
            self.tokens += 1
            if self.tokens == self.at:
                self.then()
        return "x" * len(ids)


def test_an_interrupted_answer_is_never_longer_than_asked():
    """O5: a prompt of 5 tokens, at most 100 of prompt and 10 of answer; interrupted after 6, then continued."""
    asked = request("a", prompt(0, 5), max_tokens=10, ignore_eos=True, stop=("never",))
    unbroken = engine_for(MODEL, Decoder(0, None), max_model_len=110).generate([asked])[0]
    decoder = Decoder(6, lambda: engine.abort(["a"]))
    engine = engine_for(MODEL, decoder, max_model_len=110)
    first = engine.generate([asked])[0]
    assert first.finish == "abort" and 6 <= len(first.ids) < 10
    rest = engine.generate([asked.after(first)])[0]
    assert (rest.finish, [*first.ids, *rest.ids]) == ("length", unbroken.ids) and len(unbroken.ids) == 10


def test_answers_that_the_models_length_cut_count_as_cut():
    """O6: 8 tokens of room where 100 are allowed. The finish reason decides, no comparison of lengths with a limit."""
    tasks = [Task("g", k, prompt(k, 4), Sampling(max_tokens=100), seed=k) for k in range(12)]
    requests = [request(str(t.sample), t.ids, t.seed, max_tokens=100) for t in tasks]
    completions = engine_for(MODEL, eos_ids=range(8), max_model_len=12).generate(requests)
    cut = sum(c.finish == "length" for c in completions)
    assert 0 < cut < 12
    batch = collate([[single_turn_trajectory(t, c) for t, c in zip(tasks, completions, strict=True)]])
    metrics = batch_metrics(batch)
    assert metrics["response_length/clip_ratio"] == pytest.approx(cut / 12)
    assert metrics["response_length/max"] == 8


WORDS = {
    "data.max_response_length": 17,
    "rollout.temperature": 0.7,
    "rollout.top_p": 0.8,
    "rollout.top_k": 9,
    "rollout.stop": "['###', 'Question:']",
    "rollout.ignore_eos": "true",
    "rollout.val_kwargs.do_sample": "true",
    "rollout.val_kwargs.temperature": 0.4,
    "rollout.val_kwargs.top_p": 0.6,
    "rollout.val_kwargs.top_k": 5,
}


def test_every_sampling_field_reaches_the_engine():
    """O7: from the configuration into the request; tests of each engine show what it does with them."""
    config = effective(resolve("smoke", [f"{key}={value}" for key, value in WORDS.items()]).config)
    stop = ("###", "Question:")
    train, val = train_sampling(config), val_sampling(config)
    assert train == Sampling(17, 0.7, 0.8, 9, stop, True)
    assert val == Sampling(17, 0.4, 0.6, 5, stop, True)
    default = Sampling(max_tokens=0)
    assert all(getattr(s, f.name) != getattr(default, f.name) for s in (train, val) for f in fields(Sampling))


@pytest.mark.parametrize("key", ["rollout.min_p", "rollout.repetition_penalty", "rollout.val_kwargs.stop_token_ids"])
def test_an_unknown_sampling_field_is_refused(key):
    with pytest.raises(UserError, match=key.rpartition(".")[2]):
        resolve("smoke", [f"{key}=1"])


def test_samples_of_a_prompt_differ_on_any_replica_and_repeat():
    """O8: four answers from seed 1, on one engine and on two."""

    def asked(seed: int):
        return [request(str(k), prompt(0), draw_seed(seed, "rollout", 0, "uid", k), ignore_eos=True) for k in range(4)]

    def ids(*parts):
        return [c.ids for part in parts for c in engine_for(MODEL).generate(part)]

    together = ids(asked(1))
    assert len({tuple(answer) for answer in together}) == 4
    assert ids(asked(1)[:2], asked(1)[2:]) == ids(asked(1)) == together
    assert ids(asked(2)) != together


def test_an_answer_that_is_only_its_end_trains_that_token():
    """O10."""
    completion = engine_for(MODEL, eos_ids=range(MODEL.config.vocab_size)).generate([request("a", prompt(0))])[0]
    assert (len(completion.ids), completion.finish) == (1, "stop")
    batch = collate([[single_turn_trajectory(Task("g", 0, prompt(0), Sampling(12), 0), completion)]])
    assert batch["mask_N"].tolist() == [False] * 6 + [True]
    assert not any(batch["truncated_S"])
