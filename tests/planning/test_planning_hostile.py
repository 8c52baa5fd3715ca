"""A config.json that no model has is one error, at once."""

import pytest

from verl_core.config.errors import UserError
from verl_core.planning.models import shape_of
from verl_core.planning.shapes import shape_from

GOOD = {"model_type": "qwen2", "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GOOD |= {"num_key_value_heads": 2, "intermediate_size": 80}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads=0"),
        ({"num_attention_heads": -4}, "num_attention_heads=-4"),
        ({"num_attention_heads": 2.5}, "num_attention_heads=2.5"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3 does not divide num_attention_heads=4"),
        ({"hidden_size": "64"}, "hidden_size='64'"),
        ({"hidden_size": float("inf")}, "hidden_size=inf"),
        ({"hidden_size": 10**400}, "hidden_size=1000"),
        ({"num_hidden_layers": 10**11}, "num_hidden_layers=100000000000"),
        ({"num_hidden_layers": True}, "num_hidden_layers=true"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"num_experts": 8}, "num_experts_per_tok is missing"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok=9"),
        ({"model_type": ["qwen2"]}, "no architecture"),
    ],
)
def test_sizes_that_no_model_has_are_named(values: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        shape_from(GOOD | values, "config.json")


def test_a_text_config_that_is_none_is_passed_over() -> None:
    assert shape_from(GOOD | {"text_config": 3}, "config.json") == shape_from(GOOD, "config.json")


def test_a_config_nested_without_end_is_an_error(tmp_path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="cannot be read"):
        shape_of(str(tmp_path), {})
