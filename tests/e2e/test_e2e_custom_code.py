"""A model that brings its own code: trained, generated with, saved and merged under model.trust_remote_code, refused
without it."""

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import run_dir_of

CODE = """
from transformers import Qwen2Config, Qwen2ForCausalLM


class OwnConfig(Qwen2Config):
    model_type = "own_words"


class OwnForCausalLM(Qwen2ForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def own_model(warm_model: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "own_model"
    shutil.copytree(warm_model, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "own_words",
        "architectures": ["OwnForCausalLM"],
        "auto_map": {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_own.py").write_text(CODE)
    return folder


@pytest.mark.slow
def test_a_model_with_its_own_code_is_trained_and_merged_where_it_is_trusted(rlx, small, own_model, tmp_path: Path):
    env = {"HF_HOME": str(tmp_path / "hf")}  # its code is cached there
    words = small("smoke", steps=1, model__path=own_model, trainer__val_before_train="false")
    refused = rlx(*words, env=env)
    assert refused.returncode == 1 and "model.trust_remote_code=true" in refused.stderr
    done = rlx(*words, "model.trust_remote_code=true", env=env)
    assert done.returncode == 0, done.stderr
    done = rlx("merge", str(run_dir_of(tmp_path)), "--out", "merged", env=env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "merged" / "modeling_own.py").read_text() == CODE
