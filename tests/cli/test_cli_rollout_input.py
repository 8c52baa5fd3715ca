"""What is wrong with a rollout's settings is one line and a hint, before a run begins."""

import pytest


@pytest.mark.parametrize(
    ("words", "code", "said", "hint"),
    [
        (["rollout.engine=vllm"], 3, "lacks vllm", "hint: unset RLX_PYTHON and rlx makes an environment"),
        (
            ["rollout.engine=vllm", "rollout.tensor_model_parallel_size=2", "cluster.nproc=2"],
            1,
            "rollout.tensor_model_parallel_size=2 does not divide the model's 3 attention heads",
            "choose sizes that divide",
        ),
        (
            ["data.max_response_length=1000"],
            1,
            "data.max_prompt_length=64 + data.max_response_length=1000: 1064 tokens, but the model takes 512",
            "lower data.max_prompt_length, data.max_response_length or rollout.max_model_len",
        ),
        (
            ["rollout.engine=vllm", "rollout.max_model_len=5000"],
            1,
            "rollout.max_model_len=5000 tokens, but the model takes 512",
            "lower data.max_prompt_length, data.max_response_length or rollout.max_model_len",
        ),
    ],
    ids=["an engine that the environment lacks", "heads that do not divide", "longer than the model", "room beyond it"],
)
def test_it_is_refused_before_a_run_begins(rlx, tmp_path, words, code, said, hint):
    done = rlx("train", "smoke", *words)
    first, second = done.stderr.splitlines()[-2:]
    assert done.returncode == code, done.stderr
    assert first.startswith("error: ") and said in first
    assert second.startswith("hint: ") and hint in second
    assert not (tmp_path / "runs").exists()
