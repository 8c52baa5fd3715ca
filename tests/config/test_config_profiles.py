"""Every profile is checked, dry-runs and plans as its header says, and starts or says why not."""

import re

import pytest

from tests.conftest import ROOT
from verl_core import planning
from verl_core.config.catalogue import names
from verl_core.config.compose import profile_names, resolve
from verl_core.config.effective import effective, total_ranks
from verl_core.config.schema import FACTS
from verl_core.config.unbuilt import unbuilt
from verl_core.planning.gpus import GPUS, Gpu

PROFILES = profile_names()
SMALL = {name for name in PROFILES if name.startswith("smoke")}  # run on a processor
WAITING = {"grpo-70b-multinode", "256-gpu-grpo"}  # for a later release
WANTED = {
    *("gsm8k-ppo", "gsm8k-grpo", "gsm8k-grpo-lora", "math-grpo", "dapo-qwen2.5-32b"),
    *("sft-gsm8k", "dpo-pairs", "rm-pairs", "opd-qwen"),
    *("grpo-7b-8gpu", "grpo-7b-8gpu-sglang", "grpo-70b-multinode", "256-gpu-grpo"),
}
ON_GPUS = sorted({*PROFILES} - SMALL)
HARDWARE = re.compile(r"(?:(\d+) machines of )?(\d+) x (\S+) \((\d+) GB\)")
PAGE = (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8")


def header(profile: str) -> str:
    """The comment at the top of the file, as one line."""
    lines = (ROOT / "profiles" / f"{profile}.yaml").read_text(encoding="utf-8").splitlines()
    comment = [line.removeprefix("#").strip() for line in lines[: next(i for i, x in enumerate(lines) if x[:1] != "#")]]
    return " ".join(comment)


def test_they_are_all_there():
    assert {*PROFILES} - SMALL == WANTED


@pytest.mark.parametrize("profile", PROFILES)
def test_it_holds_no_key_without_effect(profile):
    resolved = resolve(profile, strict=True)
    assert not resolved.notes, "a profile uses rlx's own names"


@pytest.mark.parametrize("profile", PROFILES)
def test_it_says_what_it_is_for(profile):
    config = resolve(profile).config
    own = {key for key, origin in resolve(profile).origins.items() if origin == f"profile {profile}"}
    assert set(FACTS) <= own, "inherited facts would be those of another profile"
    told = header(profile)
    assert f"Hardware: {config.hardware}." in told
    assert f"Memory: {config.memory}" in told
    assert f"Time: {config.time}" in told
    assert "Data: " in told
    assert set(re.findall(r"`rlx prepare ([\w-]+)", told)) <= set(names("dataset"))


@pytest.mark.parametrize("profile", ON_GPUS)
def test_its_ranks_are_its_hardware(profile):
    config = resolve(profile).config
    machines, gpus, _, _ = HARDWARE.fullmatch(config.hardware).groups()
    pools = effective(config).cluster.pools.values()
    assert total_ranks(effective(config)) == int(machines or 1) * int(gpus)
    assert all(pool.gpus == int(gpus) for pool in pools)


def card(hardware: str) -> Gpu:
    """The card that a profile names, by its name and its memory."""
    _, _, name, size = HARDWARE.fullmatch(hardware).groups()
    found = [gpu for gpu in GPUS.values() if gpu.name.startswith(name) and abs(gpu.memory / 2**30 - int(size)) < 2]
    assert len(found) == 1, hardware
    return found[0]


def seconds(time: str) -> float:
    number, unit = re.match(r"([\d.]+) (s|minutes) a step at full length$", time).groups()
    return float(number) * (60 if unit == "minutes" else 1)


@pytest.mark.parametrize("profile", ON_GPUS)
def test_its_memory_and_time_are_what_the_plan_says_and_it_fits(profile):
    """A change of the plan's formulas that moves a figure by more than 15 % also changes the profile's."""
    config = resolve(profile).config
    planned = planning.plan(config, card(config.hardware))
    assert planned.verdict in ("fits", "tight")
    told = float(re.fullmatch(r"([\d.]+) GB a GPU", config.memory)[1])
    assert told == pytest.approx(max(phase.memory.total for phase in planned.phases) / 1e9, rel=0.15)
    assert seconds(config.time) == pytest.approx(planned.step_seconds, rel=0.15)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_page_lists_it(profile):
    config = resolve(profile).config
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{profile}` |"))
    assert row.endswith(f" {config.hardware} |")


@pytest.mark.parametrize("profile", PROFILES)
def test_it_dry_runs_and_makes_nothing(rlx, tmp_path, profile):
    done = rlx("train", profile, "--strict", "--dry-run", env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    assert resolve(profile).config.purpose in done.stdout
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("profile", "batch"),
    [
        ("gsm8k-grpo", "256 prompts x 5 answers = 1280 sequences a step"),
        ("dpo-pairs", "32 rows x 2 = 64 sequences a step"),
        ("sft-gsm8k", "256 rows x 1 = 256 sequences a step"),
    ],
)
def test_its_batch_is_what_an_update_trains_on(rlx, profile, batch):
    assert batch in rlx("train", profile, "--dry-run").stdout


@pytest.mark.parametrize("profile", sorted(WAITING))
def test_started_it_names_what_a_later_release_brings(rlx, tmp_path, profile):
    parts = list(unbuilt(effective(resolve(profile).config)))
    done = rlx("train", profile)
    if not parts:
        pytest.fail(f"{profile} runs in this release: it does not wait any more")
    assert done.returncode == 1
    assert done.stderr.count("comes with a later release") == len(parts)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("profile", sorted({*PROFILES} - WAITING))
def test_the_built_ones_lack_nothing(profile):
    assert not list(unbuilt(effective(resolve(profile).config)))
