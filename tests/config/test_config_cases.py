"""Faults that other systems had with environments, start-up and options: where each one is proven absent."""

import ast
import re
import subprocess
import sys
import tomllib

import pytest

from rlx.env import launch
from tests.conftest import ROOT, command_variables
from verl_core.config.catalogue import names
from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.config.errors import UserError

# What goes wrong elsewhere, and the test that fails if it does here, below tests/.
HERE, OPTIONS = "config/test_config_cases.py", "config/test_config_options.py"
LOCK = "cli/test_cli_env_lock.py"
CASES = {
    "E1": ("an installed wheel lacks its configuration files", "cli/test_cli_wheel.py", "test_profiles_are_found"),
    "E2": ("--help imports torch", "cli/test_cli_help.py", "test_help_loads_nothing_heavy"),
    "E3": ("a stale lock is found by users", LOCK, "test_it_makes_compares_and_upgrades"),
    "E4": ("the project's floor is below an extra's", LOCK, "test_the_floor_of_python_is_the_highest_of_its_extras"),
    "E5": ("one extra is served from another's index", LOCK, "test_no_extra_takes_another_ones_torch"),
    "E6": (
        "a run re-syncs the environment by itself",
        "cli/test_cli_env.py",
        "test_a_complete_environment_is_reused_without_uv",
    ),
    "E7": ("an import fails for an unused package", HERE, "test_the_trainer_imports_neither_engine_nor_extra"),
    "E8": ("the trainer imports an engine", HERE, "test_the_trainer_imports_neither_engine_nor_extra"),
    "E9": ("an override of a transitive package is ignored", LOCK, "test_overrides_name_direct_dependencies"),
    "E10": ("the lock cannot be used on macOS", LOCK, "test_nothing_of_a_gpu_is_locked_for_macos"),
    "E12": ("the code needs a newer Python than declared", HERE, "test_every_source_is_python_of_the_declared_floor"),
    "C2": ("a null is lost when written", OPTIONS, "test_nulls_survive_writing_and_start_the_same_run"),
    "C3": ("a misspelt key is swallowed", OPTIONS, "test_a_misspelt_key_is_refused_wherever_it_stands"),
    "C4": ("a mini-batch becomes 0", HERE, "test_a_mini_batch_that_cannot_be_dealt_out_is_refused_with_its_numbers"),
    "C5": ("a length penalty over 0 tokens", HERE, "test_a_length_penalty_needs_a_length"),
    "C6": ("a penalty that is off asks for its keys", HERE, "test_a_length_penalty_that_is_off_asks_for_nothing"),
    "C7": ("a null seed crashes", OPTIONS, "test_null_is_a_seed_only_where_it_means_something"),
    "C8": ("text of an environment map becomes a number", OPTIONS, "test_environment_variables_stay_text"),
    "C10": ("a negative flag does not arrive", OPTIONS, "test_off_is_off_in_every_section_that_follows"),
    "C11": (
        "a file's value loses against a default",
        OPTIONS,
        "test_a_file_overrides_defaults_and_the_command_line_the_file",
    ),
    "C13": (
        "ways of normalising are swapped",
        "algorithms/test_algorithms_normalisation.py",
        "test_each_normalisation_on_one_table",
    ),
    "C14": ("a bad choice is accepted", OPTIONS, "test_a_bad_choice_is_refused_with_the_choices"),
    "C15": (
        "entry points read the configuration in their own ways",
        OPTIONS,
        "test_every_command_that_takes_options_reads_them_with_one_loader",
    ),
    "C16": ("sequence parallel over padded rows", HERE, "test_padding_is_refused_for_every_trainer"),
    "C17": ("a user's variable is overwritten", HERE, "test_the_users_variables_win"),
    "C18": ("a moved key is read by nobody", OPTIONS, "test_a_key_that_stands_elsewhere_is_refused_with_its_place"),
    "C19": (
        "a batch does not divide over the ranks",
        "e2e/test_e2e_uneven.py",
        "test_seven_prompts_on_two_ranks_train_as_on_one",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_case_has_its_test(case):
    _, file, name = CASES[case]
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


# --- C4: batch, mini-batch, micro-batch


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["algorithm.name=ppo", "rollout.n=1", "data.train_batch_size=4", "actor.ppo_mini_batch_size=4"],
            "actor.ppo_mini_batch_size=4 (command line) x rollout.n=1 (command line) = 4 sequences are fewer than the "
            "8 ranks of pool 'main'",
        ),
        (
            ["data.train_batch_size=16", "actor.ppo_mini_batch_size=6"],
            "data.train_batch_size=16 (command line) is not a multiple of actor.ppo_mini_batch_size=6 (command line): "
            "16 = 2 x 6 + 4",
        ),
        (
            ["actor.ppo_micro_batch_size_per_gpu=null"],
            "set one of actor.ppo_micro_batch_size_per_gpu (sequences) and actor.ppo_max_token_len_per_gpu (tokens): "
            "both are null; for example actor.ppo_max_token_len_per_gpu=176",
        ),
    ],
    ids=["4 over 8 ranks", "16 in parts of 6", "no micro-batch"],
)
def test_a_mini_batch_that_cannot_be_dealt_out_is_refused_with_its_numbers(rlx, tmp_path, words, said):
    done = rlx("train", "smoke", "cluster.nproc=8", *words)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == f"error: {said}"
    assert not (tmp_path / "runs").exists()


def test_a_mini_batch_need_not_divide_into_micro_batches():
    """A mini-batch of 6 with 4 sequences a forward is one forward of 4 and one of 2; losses are normalised by the whole
    mini-batch, so the split does not show (tests/training: test_step_does_not_depend_on_the_micro_batch_split)."""
    from verl_core.batch.packing import micro_batches

    words = ["data.train_batch_size=6", "actor.ppo_mini_batch_size=6", "actor.ppo_micro_batch_size_per_gpu=4"]
    config = resolve("smoke", [*words, "algorithm.name=ppo", "rollout.n=1"], strict=True).config
    parts = micro_batches([5] * config.actor.ppo_mini_batch_size, config.actor.ppo_micro_batch_size_per_gpu)
    assert parts == [[0, 1, 2, 3], [4, 5]]


# --- C5, C6: the penalty of long answers (tests/rewards and tests/e2e have its numbers)


@pytest.mark.parametrize("words", [[], ["reward.overlong_buffer.len=0"], ["reward.overlong_buffer.len=25"]])
def test_a_length_penalty_needs_a_length(words):
    with pytest.raises(UserError, match=r"overlong_buffer.len=\d+ .* is not in \[1, 24\]: data.max_response_length=24"):
        resolve("smoke", ["reward.overlong_buffer.enable=true", *words])


@pytest.mark.parametrize(
    "block", ["{enable: false}", "{enable: false, len: 0}", "{enable: false, len: 4096, penalty_factor: 2.0}", "{}"]
)
def test_a_length_penalty_that_is_off_asks_for_nothing(tmp_path, block):
    file = tmp_path / "rlx.yaml"
    file.write_text(f"extends: smoke\nreward:\n  overlong_buffer: {block}\n")
    assert resolve(None, file=file).config.reward.overlong_buffer.enable is False
    assert resolve("smoke").config.reward.overlong_buffer.enable is False


# --- C16: what packs, packs for all


@pytest.mark.parametrize("algorithm", names("algorithm"))
def test_padding_is_refused_for_every_trainer(algorithm):
    words = [f"algorithm.name={algorithm}", "cluster.nproc=2", "actor.ulysses_sequence_parallel_size=2"]
    words += ["algorithm.gdpo_reward_keys=[score]"] if algorithm == "gdpo" else []
    words += ["distillation.teacher_models.one.model_path=teacher"] if algorithm == "opd" else []
    words += ["rollout.n=1"] if algorithm == "spin" else []
    config = effective(resolve("smoke", words).config)
    assert config.actor.ulysses_sequence_parallel_size == 2
    with pytest.raises(UserError, match=r"model.use_remove_padding.*always packs"):
        resolve("smoke", [*words, "model.use_remove_padding=false"])
    with pytest.raises(UserError, match=r"ulysses_sequence_parallel_size=2 .*does not divide the 3 ranks"):
        resolve("smoke", [*words, "cluster.nproc=3"])


# --- C17: whose variable it is


def test_the_users_variables_win(monkeypatch):
    """In a process that became a job, read there. Ranks on other machines: tests/controller."""
    users = {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "3",
        "OMP_WAIT_POLICY": "ACTIVE",
        "TOKENIZERS_PARALLELISM": "true",
    }
    monkeypatch.setattr(sys, "argv", ["rlx"])
    for name, value in users.items():
        monkeypatch.setenv(name, value)
    assert not set(users) & set(launch.child_variables(threads=1))
    show = f"import os; print({{name: os.environ.get(name) for name in {sorted(users)}}} == {users})"
    become = "from rlx.env import launch; import sys; "
    become += f"launch.execute([sys.executable, '-c', {show!r}], launch.child_variables(threads=1))"
    done = subprocess.run(
        [sys.executable, "-c", become], env=command_variables(users), capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n", done.stderr


# --- C19: batches and ranks (tests/e2e has the run)


def test_a_batch_of_fewer_sequences_than_ranks_is_refused():
    words = ["algorithm.name=reinforce_plus_plus", "data.train_batch_size=32", "actor.ppo_mini_batch_size=32"]
    with pytest.raises(UserError, match="= 32 sequences are fewer than the 48 ranks of pool 'main'"):
        resolve("smoke", [*words, "rollout.n=1", "cluster.nproc=48"])
    assert resolve("smoke", [*words, "rollout.n=2", "cluster.nproc=48"], strict=True)  # 64: some ranks get 2, some 1


# --- E7, E8, E12: imports and the language

TRAINER = "verl_core.controller.job, verl_core.controller.run, verl_core.controller.executors.local"
ENGINES = ("vllm", "sglang", "flashinfer", "tensorrt_llm")
# vision and audio; adapters and fused kernels; trackers and pictures; Ray, which one rank does without
MAY_LACK = (
    *("torchvision", "torchaudio", "PIL", "cv2", "qwen_vl_utils", "av", "librosa"),
    *("peft", "liger_kernel", "flash_attn", "math_verify", "megatron"),
    *("wandb", "tensorboard", "matplotlib", "plotext", "ray"),
)


def imported(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}"], env=command_variables({}), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_trainer_imports_neither_engine_nor_extra():
    """tests/cli/test_cli_interpreter.py: one that lacks what jobs need is refused with the packages named."""
    lacking = f"sys.modules.update(dict.fromkeys({MAY_LACK}))"
    assert imported(f"{lacking}\nimport {TRAINER}\nprint(sorted(set({ENGINES}) & set(sys.modules)))") == "[]"


def declared_floor() -> tuple[int, int]:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    major, minor = re.fullmatch(r">=(\d+)\.(\d+),<\d+\.\d+", declared).groups()
    return int(major), int(minor)


def test_every_source_is_python_of_the_declared_floor():
    sources = [*ROOT.glob("cli/**/*.py"), *ROOT.glob("verl_core/**/*.py"), *ROOT.glob("templates/**/*.py")]
    assert len(sources) > 100
    for path in sources:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=declared_floor())


def test_the_checkers_look_at_the_declared_floor():
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    floor = declared_floor()
    assert tools["ruff"]["target-version"] == "py{}{}".format(*floor)
    assert tools["mypy"]["python_version"] == "{}.{}".format(*floor)
