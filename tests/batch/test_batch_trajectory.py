from dataclasses import replace

import pytest
import torch

from verl_core.batch import Segment, Trajectory, collate

EOS = PAD = 2


def answer(prompt: list[int], response: list[int], sample: int = 0, group: str = "q", **fields) -> Trajectory:
    n, m = len(prompt), len(response)
    return Trajectory(
        ids=prompt + response,
        mask=[0] * n + [1] * m,
        logps=[0.0] * n + [-0.5] * m,
        versions=[-1] * n + [7] * m,
        segments=[Segment("prompt", 0, n), Segment("response", n, n + m)],
        group=group,
        sample=sample,
        **fields,
    )


def test_collate_by_hand():
    short, long = answer([2, 5], [8, EOS], reward=1.0), answer([2, 5], [8, 8, 8], sample=1, finish="length")
    batch = collate([[short, long], [answer([9], [EOS], group="r", reward=0.5)]])
    assert batch.length_S.tolist() == [4, 5, 2]
    assert batch.group_S.tolist() == [0, 0, 1]
    assert batch["ids_N"].tolist() == [2, 5, 8, EOS, 2, 5, 8, 8, 8, 9, EOS]
    assert batch["reward_S"].tolist() == [1.0, 0.0, 0.5]
    assert batch["prompt_len_S"].tolist() == [2, 2, 1]
    assert batch["truncated_S"].tolist() == [False, True, False]
    assert batch["sample_S"].tolist() == [0, 1, 0]
    assert batch["version_N"].tolist() == [-1, -1, 7, 7, -1, -1, 7, 7, 7, -1, 7]
    assert batch["rollout_logp_N"].dtype == torch.float32
    assert batch["trajectory_blob"][1] is long


def test_end_of_sequence_is_trained_also_where_it_is_the_pad_id():
    """The mask comes from lengths, never from ids: the model must learn to stop."""
    batch = collate([[answer([PAD, 5], [8, EOS]), answer([PAD, 5], [EOS], sample=1)]])
    assert batch["mask_N"].tolist() == [False, False, True, True, False, False, True]


def test_tool_text_between_two_turns_has_mask_0_and_each_turn_its_own_mask():
    two_turns = Trajectory(
        ids=[1, 11, 12, 90, 91, 92, 13],
        mask=[0, 1, 1, 0, 0, 0, 1],
        logps=[0, -0.1, -0.2, 0, 0, 0, -0.3],
        versions=[-1, 0, 0, -1, -1, -1, 1],
        segments=[Segment("prompt", 0, 1), Segment("response", 1, 3), Segment("tool", 3, 6), Segment("response", 6, 7)],
        group="q",
        sample=0,
    )
    batch = collate([[two_turns]])
    assert batch["ids_N"][batch["mask_N"]].tolist() == two_turns.response_ids == [11, 12, 13]
    assert batch["prompt_len_S"].tolist() == [1]


def test_nothing_produced_and_no_trajectory_at_all():
    empty = collate([[answer([1, 2, 3], [])]])
    assert empty["mask_N"].tolist() == [False] * 3
    assert empty["prompt_len_S"].tolist() == [3]
    nothing = collate([])
    assert (nothing.S, nothing.N) == (0, 0)
    assert nothing["prompt_len_S"].dtype == torch.int64


def test_lists_of_unlike_length_are_refused_even_when_the_totals_fit():
    good = answer([1], [2, 3])
    short, long = replace(good, mask=[0, 1]), replace(good, mask=[0, 1, 1, 1], sample=1)
    with pytest.raises(ValueError, match="trajectory q/0 has 3 ids, 2 mask"):
        collate([[short, long]])
