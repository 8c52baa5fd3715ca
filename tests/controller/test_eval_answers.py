"""The file of answers: what is taken over from it, what leaves it, and what is refused."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verl_core.config.errors import RunError, UserError
from verl_core.controller.eval_answers import AnswerFile, answer_in
from verl_core.controller.scores import Answer


def candidate(model: str = "m1", questions: int = 6, n: int = 2, chunk: int = 2, **depends: str) -> Any:
    prompts = [SimpleNamespace(uid=f"0-{i}") for i in range(questions)]
    parts = {"model": model, "prompts": "p", "sampling": "s", "scoring": "r", "engine": "e"} | depends
    return SimpleNamespace(label=f"runs/{model}", n=n, chunk=chunk, prompts=prompts, depends=parts)


def rows(own: Any, questions: range) -> list[list[dict]]:
    def row(i: int, k: int) -> dict:
        counted = {"reward": 1.0, "acc": 1.0, "pred": "ü", "answer": "#### ü", "tokens": 3, "finish": "stop"}
        place = {"source": own.label, "question": f"0-{i}", "sample": k, "data_source": "a", "score_error": None}
        return place | counted | {"eval": own.depends}

    return [[row(i, k) for k in range(own.n)] for i in questions]


def write(path: Path, *groups: list[dict]) -> bytes:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for group in groups for row in group)
    path.write_text(text, encoding="utf-8")
    return text.encode()


def test_what_was_added_is_there_at_the_next_call(tmp_path):
    own = candidate()
    with AnswerFile(tmp_path / "new" / "a.jsonl") as file:
        assert file.resume([own]) == [[]]
        file.add(rows(own, range(2)))
    with AnswerFile(tmp_path / "new" / "a.jsonl") as file:
        assert file.resume([own]) == [rows(own, range(2))]
    assert answer_in(rows(own, range(1))[0][1]) == Answer("0-0", "a", 1, 1.0, 1.0, "ü", "#### ü", 3, "stop")


@pytest.mark.parametrize("cut", [1, 5, 60, 200, 300])
def test_whole_chunks_survive_a_torn_end(tmp_path, cut):
    """Four questions are two chunks; the second is torn, and leaves the file."""
    own, path = candidate(), tmp_path / "a.jsonl"
    whole = write(path, *rows(own, range(4)))
    path.write_bytes(whole[:-cut])
    with AnswerFile(path) as file:
        assert file.resume([own]) == [rows(own, range(2))]
        assert path.read_bytes() == whole[: len(whole) // 2]
        file.add(rows(own, range(2, 4)))
    assert path.read_bytes() == whole


def test_the_last_chunk_may_be_short(tmp_path):
    own = candidate(questions=5)
    write(tmp_path / "a.jsonl", *rows(own, range(5)))
    with AnswerFile(tmp_path / "a.jsonl") as file:
        assert file.resume([own]) == [rows(own, range(5))]


def test_each_source_keeps_its_own_lines(tmp_path):
    first, second = candidate("m1"), candidate("m2")
    write(tmp_path / "a.jsonl", *rows(first, range(6)), *rows(second, range(3)))
    with AnswerFile(tmp_path / "a.jsonl") as file:
        assert file.resume([second, first]) == [rows(second, range(2)), rows(first, range(6))]
        file.add(rows(second, range(2, 6)))
    with AnswerFile(tmp_path / "a.jsonl") as file:
        assert file.resume([first, second]) == [rows(first, range(6)), rows(second, range(6))]


def test_lines_out_of_order_are_made_again(tmp_path):
    own = candidate()
    write(tmp_path / "a.jsonl", *rows(own, range(2)), *rows(own, range(3, 6)))
    with AnswerFile(tmp_path / "a.jsonl") as file:
        assert file.resume([own]) == [rows(own, range(2))]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (candidate(sampling="hotter", scoring="other"), "runs/m1 made with other sampling and scoring"),
        (candidate("m2"), "answers of runs/m1, which is not runs/m2 as it is now"),
    ],
)
def test_answers_of_another_evaluation_are_refused_and_kept(tmp_path, now, said):
    path = tmp_path / "a.jsonl"
    before = write(path, *rows(candidate(), range(2)))
    with AnswerFile(path) as file, pytest.raises(UserError, match=said):
        file.resume([now])
    assert path.read_bytes() == before


@pytest.mark.parametrize(("text", "said"), [('{"a": 1}\n', "line 1 is no answer"), ("no json\n", "line 1: not JSON")])
def test_a_file_of_something_else_is_refused_and_kept(tmp_path, text, said):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with AnswerFile(path) as file, pytest.raises(UserError, match=said):
        file.resume([candidate()])
    assert path.read_text() == text


def test_two_evaluations_do_not_write_one_file(tmp_path):
    with AnswerFile(tmp_path / "a.jsonl"), pytest.raises(UserError, match="another evaluation is writing"):
        AnswerFile(tmp_path / "a.jsonl")


def test_a_file_that_got_no_answer_is_not_left_behind(tmp_path):
    with AnswerFile(tmp_path / "a.jsonl") as file:
        file.resume([candidate()])
    assert not (tmp_path / "a.jsonl").exists()
    (tmp_path / "b.jsonl").touch()
    AnswerFile(tmp_path / "b.jsonl").close()
    assert (tmp_path / "b.jsonl").exists()  # it was the user's


def test_a_full_disk_says_which_file_and_that_it_can_go_on():
    own = candidate()
    with AnswerFile(Path("/dev/full")) as file, pytest.raises(RunError, match="no space left for /dev/full") as caught:
        file.resume([own])
        file.add(rows(own, range(1)))
    assert "goes on" in str(caught.value.hint)
