"""Contradictions and arithmetic are refused with their numbers, all at once; idle keys warn."""

import re

import pytest

from verl_core.config.compose import resolve
from verl_core.config.errors import UserError
from verl_core.config.idle_rules import RULES
from verl_core.config.ranges import RANGES
from verl_core.config.typed import leaf_types


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.train_batch_size=20"], "20 = 1 x 16 [+] 4"),
        (["actor.ppo_mini_batch_size=6"], "16 = 2 x 6 [+] 4"),
        (["cluster.nproc=256"], "= 128 sequences are fewer than the 256 ranks of pool 'main'"),
        (["actor.ppo_max_token_len_per_gpu=1000"], "exclude each other"),
        (["actor.ppo_micro_batch_size_per_gpu=null"], "both are null; for example"),
        (
            ["actor.ppo_micro_batch_size_per_gpu=null", "actor.ppo_max_token_len_per_gpu=87"],
            r"64 .* \+ data.max_response_length=24 .*= 88 tokens",
        ),
        (["rollout.log_prob_max_token_len_per_gpu=87"], "rollout.log_prob_max_token_len_per_gpu=87 .*cannot hold"),
        (
            ["ref.log_prob_micro_batch_size_per_gpu=1", "ref.log_prob_max_token_len_per_gpu=100"],
            "ref.log_prob.*exclude each other",
        ),
        (
            [
                "actor.ppo_micro_batch_size_per_gpu=null",
                "actor.ppo_max_token_len_per_gpu=43",
                "actor.ulysses_sequence_parallel_size=2",
                "cluster.nproc=2",
            ],
            "actor.ppo_max_token_len_per_gpu=43 .* x 2 ranks cannot hold the longest sequence",
        ),
        (
            ["actor.ulysses_sequence_parallel_size=2", "cluster.nproc=512"],
            "= 128 sequences are fewer than the 256 groups of 2 ranks that the 512 of pool 'main' make",
        ),
        (["rollout.n=1"], "grpo compares .* needs at least 2"),
        (["algorithm.name=rloo", "rollout.n=1"], "rloo compares"),
        (["algorithm.name=dr_grpo", "rollout.n=1"], r"dr_grpo \(advantage grpo\) compares"),
        (["algorithm.name=ppo", "critic.enable=false"], "gae needs a critic"),
        (["algorithm.name=ppo", "critic.ppo_mini_batch_size=7"], "critic.ppo_mini_batch_size=7.*16 = 2 x 7 [+] 2"),
        (
            ["algorithm.name=ppo", "cluster.pools.main.gpus=1", "cluster.pools.c.gpus=256", "critic.pool=c"],
            "actor.ppo_mini_batch_size=16 .*= 128 sequences are fewer than the 256 ranks of pool 'c'",
        ),
        (["actor.clip_ratio_c=1"], r"not in \(1, inf\)"),
        (["actor.clip_ratio=0"], r"not in \(0, 1\)"),
        (["rollout.temperature=0"], r"not in \(0, inf\)"),
        (["rollout.top_k=0"], r"not in \[1, 1e9\] or -1"),
        (["warmup.phases[0].optim.lr=0"], r"warmup.phases\[0\].optim.lr=0.0 .*profile smoke|command line"),
        (["actor.optim.betas=[0.9, 1.0]"], r"actor.optim.betas\[1\]=1.0"),
        (["cluster.pools.a.gpus=0"], "cluster.pools.a.gpus=0"),
        (["actor.pool=x"], "actor.pool='x' .*no such pool; cluster.pools has main"),
        (["rollout.pool=x"], "rollout.pool='x'"),
        (["cluster.pools.main.gpus=1", "cluster.pools.b.gpus=1"], "cluster.pools.b: no role runs there"),
        (["cluster.pools.main.gpus=1", "cluster.nproc=2"], "shorthand for one pool, but cluster.pools names main"),
        (["cluster.nproc=2", "cluster.nnodes=2"], "cluster.nproc alone"),
        (["cluster.nproc=2", "cluster.executor=local"], "pool main has 1 x 2: set cluster.executor=ray"),
        (
            ["cluster.pools.main.gpus=1", "cluster.pools.b.gpus=1", "rollout.pool=b", "weights.type=inplace"],
            "one process, but rollout.pool is 'b', actor.pool 'main'",
        ),
        (
            [
                *("cluster.pools.main.gpus=1", "cluster.pools.b.gpus=1", "rollout.pool=b"),
                *("rollout.engine=vllm", "weights.type=ipc"),
            ],
            "weights.type='ipc' .* on one device, but rollout.pool is 'b', actor.pool 'main'",
        ),
        (["rollout.engine=sglang"], "rollout.engine='sglang' .*needs CUDA GPUs, and trainer.device='cpu'"),
        (["rollout.engine=vllm", "rollout.temperature=2.5"], r"temperature=2.5 .*not in \[0.01, 2\]"),
        (
            ["rollout.engine=vllm", "rollout.val_kwargs.do_sample=true", "rollout.val_kwargs.temperature=0.001"],
            r"rollout.val_kwargs.temperature=0.001 .*not in \[0.01, 2\]",
        ),
        (
            ["rollout.engine=vllm", "cluster.nproc=4", "rollout.tensor_model_parallel_size=3"],
            "does not divide the 4 ranks",
        ),
        (
            [
                *("rollout.engine=vllm", "cluster.nnodes=2", "cluster.n_gpus_per_node=3"),
                "rollout.tensor_model_parallel_size=2",
            ],
            "does not divide the 3 ranks of a node",
        ),
        (
            ["rollout.engine=vllm", "rollout.lora_native=true", "model.lora_rank=513"],
            r"model.lora_rank=513 .*serves ranks up to 512",
        ),
        (
            ["rollout.engine=vllm", "rollout.lora_native=true", "model.lora_rank=4", "weights.verify=true"],
            "weights.verify=true .*do not go together",
        ),
        (["rollout.max_model_len=64"], "leaves no room for an answer"),
        (["algorithm.name=grop"], "expected one of ppo, grpo, .*did you mean grpo"),
        (["algorithm.adv_estimator=gea"], "did you mean gae"),
        (["actor.policy_loss.loss_mode=vanila"], "expected one of vanilla"),
        (
            ["actor.policy_loss.loss_mode=clip_cov", "actor.policy_loss.clip_cov_lb=6"],
            "clip_cov_lb=6.* is not below actor.policy_loss.clip_cov_ub=5",
        ),
        (
            ["actor.use_kl_loss=true", "algorithm.use_kl_in_reward=true", "actor.kl_loss_coef=0"],
            "kl_loss_coef=0.*: of the KL in loss and in reward this one is 0",
        ),
        (
            ["actor.use_kl_loss=true", "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0"],
            "kl_ctrl.kl_coef=0.*: of the KL in loss and in reward this one is 0",
        ),
        (["critic.loss_agg_mode=mean"], "expected one of token-mean"),
        (["trainer.experiment_name=../../x"], r"trainer.experiment_name='../../x' .command line.: .*one folder"),
        (["trainer.experiment_name=a/b"], "one folder"),
        (["trainer.experiment_name=.."], "one folder"),
        (["trainer.experiment_name=''"], "one folder"),
        (['trainer.experiment_name="a\\nb"'], "one folder"),
        (["trainer.project_name=/etc"], "trainer.project_name='/etc' .*one folder"),
        (["trainer.project_name="], "trainer.project_name='' .*one folder"),
        (["trainer.experiment_name=" + "\u00e9" * 101], "202 bytes are too long for a folder's name, 200 fit"),
    ],
)
def test_refused_before_anything_starts(words, message):
    with pytest.raises(UserError, match=message):
        resolve("smoke", words)


@pytest.mark.parametrize(
    "words",
    [
        ["actor.ulysses_sequence_parallel_size=2", "actor.ppo_max_token_len_per_gpu=44", "cluster.nproc=256"],
        [
            "actor.strategy=megatron",
            "actor.megatron={tensor_model_parallel_size: 2, context_parallel_size: 2}",
            "actor.ppo_max_token_len_per_gpu=44",
            "cluster.nproc=512",
        ],
    ],
)
def test_ranks_that_share_a_sequence_count_together(words):
    """As in veRL: the budget times the ranks that split a sequence; a mini-batch's 128 sequences for 128 groups."""
    resolve("smoke", ["actor.ppo_micro_batch_size_per_gpu=null", "rollout.engine=vllm", *words])


def test_all_contradictions_at_once():
    words = ["data.train_batch_size=20", "rollout.n=1", "actor.ppo_max_token_len_per_gpu=30"]
    with pytest.raises(UserError) as caught:
        resolve("smoke", words)
    assert caught.value.message.startswith("4 problems in the configuration:")


def test_what_looks_alike_and_is_right():
    resolve("smoke", ["cluster.nproc=128"], strict=True)  # one sequence a rank
    resolve("smoke", ["actor.ppo_micro_batch_size_per_gpu=100"], strict=True)  # packing needs no equal parts
    resolve("smoke", ["actor.ppo_micro_batch_size_per_gpu=null", "actor.ppo_max_token_len_per_gpu=88"], strict=True)
    resolve("smoke", ["cluster.pools.a.gpus=2", "actor.pool=a"], strict=True)
    resolve("smoke", ["rollout.max_model_len=70"], strict=True)  # answers end earlier; the finish reason says so
    resolve("smoke", ["critic.pool=null", "trainer.seed=0"], strict=True)


@pytest.mark.parametrize(
    ("words", "switch"),
    [
        (["algorithm.kl_ctrl.kl_coef=0.1"], "algorithm.use_kl_in_reward=true"),
        (["algorithm.kl_penalty=k3"], "algorithm.use_kl_in_reward=true"),
        (
            ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.target_kl=1"],
            "algorithm.use_kl_in_reward=true and algorithm.kl_ctrl.type=adaptive",
        ),
        (["actor.kl_loss_coef=0.1"], "actor.use_kl_loss=true"),
        (["ref.log_prob_micro_batch_size_per_gpu=1"], "actor.use_kl_loss=true or"),
        (["critic.enable=true"], "algorithm.adv_estimator=gae"),
        (["critic.optim.lr=1e-5"], "algorithm.adv_estimator=gae"),
        (["trainer.critic_warmup=3"], "algorithm.adv_estimator=gae"),
        (["algorithm.name=dpo", "critic.optim.lr=1e-3"], "algorithm.name=ppo"),
        (["algorithm.name=dpo", "actor.kl_loss_coef=0.1"], "algorithm.name=grpo"),
        (["algorithm.name=dpo", "actor.loss_scale_factor=3"], "algorithm.name=grpo"),
        (["algorithm.name=dpo", "actor.entropy_ctrl.target=0.3"], "algorithm.name=grpo"),
        (["algorithm.name=dpo", "actor.clip_ratio_c=4"], "algorithm.name=grpo"),
        (["algorithm.gamma=0.9"], "algorithm.adv_estimator=gae or reinforce_plus_plus"),
        (["algorithm.lam=0.9"], "algorithm.adv_estimator=gae"),
        (["algorithm.name=rloo", "algorithm.norm_adv_by_std_in_grpo=true"], "algorithm.adv_estimator=grpo"),
        (["actor.optim.muon_lr=0.1"], "actor.optim.optimizer=muon"),
        (["actor.optim.lr_warmup_steps_ratio=0.1"], "actor.optim.lr_warmup_steps=-1"),
        (["actor.optim.min_lr_ratio=0.1"], "actor.optim.lr_scheduler_type=cosine or linear"),
        (["actor.loss_scale_factor=3"], "actor.loss_agg_mode=seq-mean-token-sum-norm"),
        (["rollout.enforce_eager=true"], "rollout.engine=vllm or sglang"),
        (["rollout.tensor_model_parallel_size=2"], "rollout.engine=vllm or sglang"),
        (["rollout.lora_native=true"], "rollout.engine=vllm and model.lora_rank=16"),
        (["rollout.log_prob_micro_batch_size_per_gpu=2"], "rollout.old_log_prob=recompute"),
        (["rollout.val_kwargs.temperature=1"], "rollout.val_kwargs.do_sample=true"),
        (["data.val_files=null", "rollout.val_kwargs.do_sample=true"], "data.val_files"),
        (["data.val_files=null", "trainer.val_before_train=false"], "data.val_files"),
        (["actor.fsdp_config.param_offload=true"], "trainer.device=auto or cuda"),
        (["algorithm.name=ppo", "critic.fsdp_config.optimizer_offload=true"], "trainer.device=auto or cuda"),
        (["trainer.save_freq=0", "trainer.max_ckpt_to_keep=2"], "trainer.save_freq=-1 or more than 0"),
        (["rollout.val_kwargs.n=2"], "rollout.val_kwargs.do_sample=true"),
        (["data.filter_overlong_prompts=true", "data.truncation=left"], "data.filter_overlong_prompts=false"),
        (["data.shuffle=false", "data.seed=3"], "data.shuffle=true"),
        (["reward.custom_reward_function.name=f"], "reward.custom_reward_function.path"),
        (["trainer.total_epochs=3"], "trainer.total_training_steps=null"),
        (["trainer.parity=off", "trainer.parity_threshold=1"], "trainer.parity=error or warn"),
        (["cluster.ray_address=auto"], "cluster.executor=ray"),
        (["algorithm.name=ppo", "rollout.n=1", "actor.share_prompt=true"], "rollout.n=8 or another"),
        (["actor.strategy=megatron", "actor.share_prompt=true"], "actor.strategy=fsdp"),
        (["algorithm.name=sft", "actor.share_prompt=true"], "algorithm.name=grpo"),
        (["model.path=/some/model", "warmup.phases=[{steps: 3}]"], "model.path=builtin:NAME"),
    ],
)
def test_idle_keys_warn_once_and_name_the_switch(words, switch):
    key = words[-1].split("=")[0]
    warnings = [line for line in resolve("smoke", words).warnings if key in line]
    assert len(warnings) == 1 and "no effect" in warnings[0]
    assert warnings[0].partition("for that set ")[2].startswith(switch)


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.1"],
        ["actor.use_kl_loss=true", "actor.kl_loss_coef=0.1", "ref.log_prob_micro_batch_size_per_gpu=1"],
        ["algorithm.name=ppo", "critic.optim.lr=1e-5", "algorithm.gamma=0.9"],
        ["actor.optim.optimizer=muon", "actor.optim.muon_lr=0.1"],
        ["algorithm.name=dr_grpo", "actor.loss_scale_factor=3"],
        ["rollout.top_p=0.9", "rollout.log_prob_micro_batch_size_per_gpu=2"],
        # on a GPU both would be bfloat16, and old log-probs recomputed
        ["trainer.device=auto", "rollout.dtype=null", "rollout.log_prob_micro_batch_size_per_gpu=2"],
        ["trainer.device=auto", "actor.fsdp_config.param_offload=true"],
        ["rollout.val_kwargs.do_sample=true", "rollout.val_kwargs.temperature=1"],
        ["cluster.executor=ray", "cluster.ray_address=auto"],
        ["critic.ppo_epochs=null"],
        ["actor.share_prompt=true"],
    ],
)
def test_keys_with_effect_do_not_warn(words):
    assert resolve("smoke", words, strict=True).warnings == []


def test_idle_keys_of_one_reason_are_one_line():
    words = ["critic.ppo_epochs=2", "critic.optim.lr=1e-5", "trainer.critic_warmup=1"]
    assert resolve("smoke", words).warnings == [
        "critic.ppo_epochs, critic.optim.lr, trainer.critic_warmup (command line) have no effect; "
        "for that set algorithm.adv_estimator=gae"
    ]


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ("smoke-ppo", ["algorithm.name=grpo"]),
        ("smoke-ppo", ["algorithm.adv_estimator=rloo"]),
        ("gsm8k-grpo", ["rollout.engine=hf"]),
        ("gsm8k-grpo", ["actor.use_kl_loss=false"]),
        ("gsm8k-grpo", ["trainer.total_training_steps=2"]),
        ("smoke", ["model.path=/some/model"]),
        ("smoke", ["data.val_files=null"]),
    ],
)
def test_a_switch_of_a_higher_layer_is_no_slip(profile, words):
    assert resolve(profile, words, strict=True).warnings == []


def test_an_idle_key_of_the_switchs_own_layer_or_a_higher_one_is(tmp_path):
    file = tmp_path / "rlx.yaml"
    file.write_text("extends: smoke-ppo\nalgorithm: {name: grpo}\ncritic: {ppo_epochs: 2}\n")
    assert [line.partition(" has")[0] for line in resolve(None, file=file).warnings] == [f"critic.ppo_epochs ({file})"]
    warnings = resolve(None, ["critic.ppo_epochs=3"], file=file).warnings
    assert [line.partition(" has")[0] for line in warnings] == ["critic.ppo_epochs (command line)"]


def test_the_tables_name_keys_that_exist():
    leaves = set(leaf_types())
    for rule in RULES:
        for key in (*rule.keys, *rule.besides):
            within = key.endswith(".") and any(f"{leaf}.".startswith(key) for leaf in leaves)  # or a free mapping's
            assert key in leaves or within, key
    for pattern in RANGES:
        stem = pattern.replace("[*]", "").replace("*.", "").split(".")[-1]
        listed = {"nodes", "gpus", "steps", "batch_size", "weight", "max_samples"}
        assert stem in {leaf.split(".")[-1] for leaf in leaves} | listed, pattern


def test_every_number_of_the_schema_has_a_range():
    patterns = [re.compile(re.escape(p).replace(r"\*", ".+")) for p in RANGES]
    # any number; checked where it is enabled; any finite reward
    free = {"actor.entropy_coeff", "reward.overlong_buffer.len", "reward.judge.labels"}
    for path, tp in leaf_types().items():
        options = getattr(tp, "__args__", (tp,))
        if (int in options or float in options) and path not in free:
            assert any(p.fullmatch(path) or p.fullmatch(path + "[0]") for p in patterns), path
    assert free <= set(leaf_types())


@pytest.mark.parametrize("key", ["trainer.seed", "data.seed"])
def test_a_seed_is_what_a_random_generator_takes(key):
    assert resolve("smoke", [f"{key}={2**63 - 1}"]).config
    with pytest.raises(UserError, match=rf"{key}={2**63} \(command line\) is not in \[0, {2**63}\)"):
        resolve("smoke", [f"{key}={2**63}"])
