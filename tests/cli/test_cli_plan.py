"""`rlx plan`, run as a person runs it."""

import json

import pytest


def test_a_table_a_verdict_and_what_helps(rlx):
    done = rlx(
        "plan", "gsm8k-ppo", "--gpu", "20GB", "cluster.n_gpus_per_node=2", "actor.ppo_micro_batch_size_per_gpu=32"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "20.0 GB each" in lines[0]
    (header,) = (line for line in lines if line.startswith("role"))
    for column in ("params", "grads", "optim", "activ", "logits", "cache", "comm", "reserve", "others", "GB a GPU"):
        assert column in header
    for row in ("rollout  rollout", "actor    update", "critic   values", "actor    sync", "critic   checkpoint"):
        assert any(line.startswith(row) for line in lines), row
    assert "verdict: tight" in lines
    assert "actor.ppo_micro_batch_size_per_gpu=1" in done.stdout
    assert max(map(len, lines)) <= 120


def test_json_is_one_object_also_when_it_does_not_fit(rlx):
    done = rlx("plan", "gsm8k-ppo", "--gpu", "12GB", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["verdict"] == "does not fit"
    memory = plan["phases"][0]["memory"]
    assert memory.pop("total") == pytest.approx(sum(memory.values()))


def test_256_ranks_with_the_tightest_named(rlx):
    done = rlx("plan", "256-gpu-grpo", "--gpu", "H200")
    assert done.returncode == 0, done.stderr
    assert "order tp-cp-ep-dp-pp" in done.stdout
    assert "tightest: rank" in done.stdout
    plan = json.loads(rlx("plan", "256-gpu-grpo", "--json").stdout)
    assert len(plan["pools"][0]["ranks"]) == 256


def test_a_folder_with_a_configuration_is_enough(rlx, tmp_path):
    config = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8}
    config |= {"intermediate_size": 1024, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = rlx("plan", "gsm8k-grpo", f"model.path={tmp_path}", "--json")
    params = 4 * (4 * 512 * 512 + 3 * 512 * 1024 + 2 * 512) + 512 + 2 * 512 * 1000
    assert json.loads(done.stdout)["models"]["actor"]["parameters"] == params


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gsm8k-grpo", "model.path=nobody/nothing"], "config.json"),
        (["gsm8k-grpo", "--gpu", "H20O"], "A100-80GB"),
        (["256-gpu-grpo", "actor.megatron.pipeline_model_parallel_size=256"], "ranks of pool"),
        (["grpo-7b-8gpu", "rollout.tensor_model_parallel_size=8"], "28 attention heads"),
    ],
)
def test_what_is_wrong_is_an_error_with_a_hint(rlx, words, said):
    done = rlx("plan", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_dry_run_says_whether_it_fits(rlx):
    done = rlx("train", "gsm8k-grpo", "model.path=Qwen/Qwen2.5-72B", "--dry-run")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("memory"))
    assert "does not fit on" in line and "actor update" in line
    unknown = json.loads(rlx("train", "gsm8k-grpo", "model.path=nobody/nothing", "--dry-run", "--json").stdout)
    assert unknown["memory"].startswith("not planned: model.path=nobody/nothing")
