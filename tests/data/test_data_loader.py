import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.config.errors import UserError
from verl_core.config.schema import DataConfig
from verl_core.data.dataset import PromptDataset
from verl_core.data.loader import PromptLoader


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, tokenizer):
    return make(tmp_path_factory.mktemp("loader"), tokenizer, 10)


def make(folder, tokenizer, n, text="Question"):
    file = folder / f"{text}{n}.jsonl"
    rows = [{"data_source": "s", "prompt": f"{text} {i}", "reward_model": {"ground_truth": str(i)}} for i in range(n)]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return PromptDataset(str(file), DataConfig(), tokenizer, "train", 0)


def loader_of(dataset, batch, seed, shuffle):
    return PromptLoader(dataset, DataConfig(train_batch_size=batch, shuffle=shuffle), seed)


def uids(loader, steps):
    return [[row.uid for row in loader.next()] for _ in range(steps)]


def test_in_order_without_shuffle_and_the_rest_of_an_epoch_is_dropped(dataset):
    loader = loader_of(dataset, 4, 0, False)
    batches = [[row.index for row in loader.next()] for _ in range(3)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    assert loader.epoch == 1


def test_the_rest_of_an_epoch_is_dropped_in_training(dataset):
    loader = loader_of(dataset, 4, 0, True)
    assert loader.steps_per_epoch == 2
    epochs = [uids(loader, 2) for _ in range(3)]
    for number, epoch in enumerate(epochs):
        flat = [uid for batch in epoch for uid in batch]
        assert len(set(flat)) == 8 and all(uid.startswith(f"{number}-") for uid in flat)


def test_order_is_keyed_by_seed_and_epoch(dataset):
    def order(seed, epochs):
        loader = loader_of(dataset, 10, seed, True)
        return [[row.index for row in loader.next()] for _ in range(epochs)]

    first, second = order(0, 2)
    assert sorted(first) == sorted(second) == list(range(10)) and first != second
    assert order(0, 2) == [first, second] and order(1, 1)[0] != first


@settings(max_examples=60)
@given(batch=st.integers(1, 10), seed=st.integers(0, 3), shuffle=st.booleans(), stop=st.integers(0, 25))
def test_resume_at_any_batch_continues_as_if_never_stopped(dataset, batch, seed, shuffle, stop):
    unbroken = loader_of(dataset, batch, seed, shuffle)
    uids(unbroken, stop)
    state = json.loads(json.dumps(unbroken.state()))
    resumed = loader_of(dataset, batch, seed, shuffle)
    resumed.load_state(state)
    assert resumed.epoch == unbroken.epoch
    assert uids(resumed, 15) == uids(unbroken, 15)


def test_resume_with_another_batch_size_continues_at_the_same_prompt(dataset):
    loader = loader_of(dataset, 4, 0, True)
    loader.next()
    other = loader_of(dataset, 2, 0, True)
    other.load_state(loader.state())
    assert uids(other, 2) == [list(batch) for batch in zip(*[iter(uids(loader, 1)[0])] * 2, strict=True)]


def test_resume_over_other_data_seed_or_order_is_refused_by_name(dataset, tmp_path, tokenizer):
    state = loader_of(dataset, 4, 0, True).state()
    changed = make(tmp_path, tokenizer, 10, text="Other")
    for loader, said in [
        (loader_of(changed, 4, 0, True), "dataset was"),
        (loader_of(dataset, 4, 1, True), "seed was 0, is 1"),
        (loader_of(dataset, 4, 0, False), "shuffle was True, is False"),
    ]:
        with pytest.raises(UserError, match=said):
            loader.load_state(state)
        assert loader.state()["streams"][0]["position"] == 0


def test_a_batch_larger_than_the_data_is_refused_with_both_numbers(dataset):
    with pytest.raises(UserError, match="a batch of 11 prompts cannot be made of 10"):
        loader_of(dataset, 11, 0, True)
