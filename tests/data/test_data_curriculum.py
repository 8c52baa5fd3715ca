"""Orders by difficulty and by what was solved, and curricula of one's own; all of it across a checkpoint."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.config.errors import UserError
from verl_core.config.schema import CurriculumConfig, DataConfig
from verl_core.data.dataset import PromptDataset
from verl_core.data.loader import PromptLoader

LEVELS = [3, 1, 2, 1, 0.5, 3, 2, 1]
ROW = {"data_source": "s", "prompt": "Q", "reward_model": {"ground_truth": "1"}}

OWN = """
class Curriculum:
    def __init__(self, rows, seed):
        self.rows, self.heard = rows, []
        assert [row.extra_info["level"] for row in rows] == [3, 1, 2, 1, 0.5, 3, 2, 1] and seed == 7

    def order(self, epoch):
        left = [i for i in range(len(self.rows)) if i not in self.heard]
        return left[epoch % len(left) :] + left[: epoch % len(left)]

    def update(self, step, visits):
        self.heard += [visit.position for visit in visits if visit.reward == 0.5]

    def state(self):
        return self.heard

    def load_state(self, state):
        self.heard = state


class Bad(Curriculum):
    def order(self, epoch):
        return ANSWER


class Unkept(Curriculum):
    def state(self):
        return {1, 2}


class Short:
    order = update = None
"""


@pytest.fixture
def file(tmp_path):
    return file_in(tmp_path)


def file_in(folder):
    file = folder / "train.jsonl"
    rows = [
        {
            "data_source": "s",
            "prompt": f"Question {i}",
            "reward_model": {"ground_truth": str(i)},
            "extra_info": {"level": level},
        }
        for i, level in enumerate(LEVELS)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def loader_of(file, tokenizer, batch=4, **curriculum):
    cfg = DataConfig(train_batch_size=batch, curriculum=CurriculumConfig(**curriculum))
    return PromptLoader(PromptDataset(str(file), cfg, tokenizer, "train", 0), cfg, seed=7)


def answers(rows, worth):
    """A group of two answers a row, worth(index) each: (reward, accuracy)."""
    return [
        [SimpleNamespace(group=row.uid, reward=reward, meta={"acc": acc}) for reward, acc in [worth(row.index)] * 2]
        for row in rows
    ]


def test_the_easiest_come_first_and_equals_are_shuffled_anew_each_epoch(file, tokenizer):
    loader = loader_of(file, tokenizer, by="extra_info.level")
    epochs = [[row.index for _ in range(2) for row in loader.next()] for _ in range(6)]
    for epoch in epochs:
        assert [LEVELS[i] for i in epoch] == sorted(LEVELS)
    assert len(set(map(tuple, epochs))) > 1


def test_a_row_without_a_number_to_order_by_is_named(file, tokenizer):
    with file.open("a") as f:
        f.write(json.dumps(ROW) + "\n")
        f.write(json.dumps({**ROW, "extra_info": {"level": 10**400}}) + "\n")
    for said in (
        "row 9: extra_info.level is missing; keys present: data_source, prompt",
        "row 10: .*too large a number",
    ):
        with pytest.raises(UserError, match=said):
            loader_of(file, tokenizer, by="extra_info.level")


@pytest.mark.parametrize("acc", [True, False])
def test_what_was_solved_in_two_visits_in_a_row_is_left_out(file, tokenizer, acc):
    loader = loader_of(file, tokenizer, batch=8, drop_solved=2)
    solves = {0: {1, 2, 3}, 1: {1, 2}}

    def worth(step):
        return lambda i: (0.3, float(i in solves[step])) if acc else (float(i in solves[step]), None)

    for step in range(2):
        loader.update(step, answers(loader.next(), worth(step)))
    assert loader.metrics() == {"training/curriculum_prompts": 6}
    third = [row.index for row in loader.next() if row.uid.startswith("2-")]
    assert sorted(third) == [0, 3, 4, 5, 6, 7]


def test_when_all_are_solved_all_come_again(file, tokenizer):
    loader = loader_of(file, tokenizer, batch=8, drop_solved=1)
    loader.update(1, answers(loader.next(), lambda i: (1.0, 1.0)))
    assert sorted(row.index for row in loader.next()) == list(range(8))


def test_answers_that_nobody_scored_say_nothing(file, tokenizer):
    loader = loader_of(file, tokenizer, batch=8, drop_solved=1)
    loader.update(1, [[SimpleNamespace(group=row.uid, reward=1.0, meta={})] for row in loader.next()])
    assert loader.state()["streams"][0]["curriculum"] == {}


@settings(max_examples=30)
@given(
    batch=st.integers(1, 6),
    stop=st.integers(0, 12),
    solved=st.sets(st.integers(0, 7)),
    by=st.sampled_from([None, "extra_info.level"]),
    own=st.booleans(),
)
def test_resume_at_any_step_gives_the_same_stream(tmp_path_factory, tokenizer, batch, stop, solved, by, own):
    folder = tmp_path_factory.mktemp("c")
    data = file_in(folder)
    (folder / "own.py").write_text(OWN)
    keys = {"path": str(folder / "own.py")} if own else {"by": by, "drop_solved": 2}

    def steps(loader, first, count):
        stream = []
        for step in range(first, first + count):
            rows = loader.next()
            loader.update(step, answers(rows, lambda i: (0.5 if i in solved and i else 0.0, float(i in solved))))
            stream.append(rows)
        return stream

    unbroken = loader_of(data, tokenizer, batch, **keys)
    steps(unbroken, 0, stop)
    resumed = loader_of(data, tokenizer, batch, **keys)
    resumed.load_state(json.loads(json.dumps(unbroken.state())))
    assert steps(resumed, stop, 6) == steps(unbroken, stop, 6)


def test_resume_with_another_curriculum_is_refused(file, tokenizer):
    state = loader_of(file, tokenizer, by="extra_info.level").state()
    with pytest.raises(UserError, match=r"the curriculum was .*level.*, is None"):
        loader_of(file, tokenizer).load_state(state)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("[]", "is empty"),
        ("[8]", r"has 8, which is not in 0\.\.7"),
        ("[1, 1]", "has a position twice"),
        ("['a']", "no list of positions"),
        ("self.nothing", r"Bad.* fails: AttributeError: .*\(own.py:\d+\)"),
    ],
)
def test_an_order_that_is_none_is_refused_by_name(file, tokenizer, tmp_path, answer, said):
    (tmp_path / "own.py").write_text(OWN.replace("ANSWER", answer))
    loader = loader_of(file, tokenizer, path=str(tmp_path / "own.py"), name="Bad")
    with pytest.raises(UserError, match=said):
        loader.next()


def test_a_class_that_is_absent_or_lacks_a_part_is_refused(file, tokenizer, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    for name, said in [("None", "has no class 'None'"), ("Short", "has no method state, load_state")]:
        with pytest.raises(UserError, match=said):
            loader_of(file, tokenizer, path=str(tmp_path / "own.py"), name=name)
    with pytest.raises(UserError, match=r"'Unkept' of .*own.py.state\(\) is no JSON"):
        loader_of(file, tokenizer, path=str(tmp_path / "own.py"), name="Unkept")
    with pytest.raises(UserError, match="no such curriculum file"):
        loader_of(file, tokenizer, path=str(tmp_path / "absent.py"))
