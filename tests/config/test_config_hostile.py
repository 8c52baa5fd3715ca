"""Files and words made to hang, to exhaust memory or to overflow: each is one error, at once."""

import time

import pytest

from verl_core.config import yaml_text
from verl_core.config.errors import UserError
from verl_core.config.explain import explain
from verl_core.config.verl_import import import_script
from verl_core.config.verl_script.hydra import LONGEST_NUMBER, read_value


def laughs(levels: int) -> str:
    """Aliases that stand for 10^levels values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize("form", ["{}", "<<: {{{}}}"])
def test_aliases_that_stand_for_billions_of_values_are_refused_at_once(form: str) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match="more than 100000 values"):
        yaml_text.read(form.format(laughs(9) if form == "{}" else laughs(9).replace("\n", ", ")))
    assert time.process_time() - started < 2


def test_aliases_that_stand_for_little_are_read() -> None:
    assert yaml_text.read("a: &a [1, 2]\nb: [*a, *a]") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


def test_a_value_that_contains_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="recursive"):
        yaml_text.read("a: &a {b: *a}")


def test_a_key_of_thousands_of_parts_is_an_error() -> None:
    with pytest.raises(UserError, match="no such key"):
        explain("x." * 3000)


def test_an_endless_number_of_a_script_is_not_decided() -> None:
    number = "9" * (LONGEST_NUMBER + 1)
    with pytest.raises(ValueError, match=f"a number of {LONGEST_NUMBER + 1} digits"):
        read_value(number)
    script = f"python3 -m verl.trainer.main_ppo data.max_prompt_length={number} trainer.project_name=p\n"
    report = import_script(script, "a.sh", {}, None, 1).report
    assert [item.key for item in report.undecided] == ["data.max_prompt_length"]
