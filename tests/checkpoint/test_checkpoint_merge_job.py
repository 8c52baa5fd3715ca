"""`python -m verl_core.checkpoint.merge_job` as a user runs it, and the files beside the weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_models import engine_state, save_run, tiny_model
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from verl_core.checkpoint import CheckpointStore, save_huggingface_files, save_role
from verl_core.checkpoint.merge import merge, plan_merge
from verl_core.checkpoint.merge_job import main
from verl_core.config.errors import UserError
from verl_core.training.protocol import EngineState

CODE = """
from transformers import Qwen2Config, Qwen2ForCausalLM
from .tiny_words import KIND

class TinyConfig(Qwen2Config):
    model_type = KIND

class TinyForCausalLM(Qwen2ForCausalLM):
    config_class = TinyConfig
"""


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | environment)


def test_json_is_all_of_stdout_and_the_bar_is_on_stderr(tmp_path):
    save_run(tmp_path / "run", tiny_model(True), step=7)
    done = run(
        "-m", "verl_core.checkpoint.merge_job", tmp_path / "run", "--out", tmp_path / "out", "--json", "--dtype", "bf16"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["step"] == 7 and report["role"] == "actor" and report["dtype"] == "bfloat16"
    assert report["bytes"] < (tmp_path / "out/model.safetensors").stat().st_size < report["bytes"] + 4096
    assert "writing" in done.stderr


def test_a_source_that_is_not_there_and_a_target_that_is_not_named(tmp_path):
    with pytest.raises(UserError) as refused:
        main([str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")])
    assert refused.value.message == f"{tmp_path / 'nowhere'} is not a folder" and refused.value.hint
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path)])  # --out is absent


def test_dry_run_writes_nothing(tmp_path, capsys):
    save_run(tmp_path / "run", tiny_model(True))
    assert main([str(tmp_path / "run"), "--out", str(tmp_path / "deep/out"), "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith(f"would write {tmp_path / 'deep/out'}: actor of step 3, 26 tensors, ")
    assert not (tmp_path / "deep").exists()
    assert main([str(tmp_path / "run"), "--out", str(tmp_path / "deep/out")]) == 0
    assert capsys.readouterr().out.startswith("wrote ")
    assert (tmp_path / "deep/out/model.safetensors").is_file()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model folder as downloaded: tokenizer, template, weights, an index, a README."""
    folder = tmp_path / "base"
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "</s>": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="</s>")
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    tokenizer.save_pretrained(folder)
    tiny_model(False).save_pretrained(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "README.md").write_text("about")
    (folder / "added_tokens.json").write_text('{"<old>": 4}')
    return folder


def test_source_files_are_copied_without_weights(base, tmp_path):
    target = save_huggingface_files(tmp_path / "actor", base)
    copied = {path.name for path in target.iterdir()}
    assert {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "added_tokens.json",
    } <= copied
    assert not copied & {"model.safetensors", "model.safetensors.index.json", "README.md"}


def test_trained_tokenizer_wins(base, tmp_path):
    """Case K17."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens(["<think>"])
    tokenizer.chat_template = "trained {{ messages[0]['content'] }}"
    model = tiny_model(False)
    with CheckpointStore(tmp_path / "run/checkpoints").saving(1) as folder:
        save_role(folder / "actor", engine_state(model))
        save_huggingface_files(folder / "actor", base, config=model.config, tokenizer=tokenizer)
    merge(plan_merge(tmp_path / "run", tmp_path / "out"))
    got = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (
        got("a <think> b").input_ids
        == tokenizer("a <think> b").input_ids
        != AutoTokenizer.from_pretrained(base)("a <think> b").input_ids
    )
    assert got.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "trained hi"
    assert not (tmp_path / "out/added_tokens.json").exists(), "the base's list of added tokens is stale"


def test_code_that_training_did_not_run_is_not_copied(tmp_path):
    tiny_model(False).save_pretrained(tmp_path / "source")
    for name in ("modeling_tiny.py", "tokenization_tiny.py"):
        (tmp_path / "source" / name).write_text(CODE)
    target = save_huggingface_files(tmp_path / "actor", tmp_path / "source")
    assert (target / "config.json").exists() and not list(target.glob("*.py"))
    target = save_huggingface_files(tmp_path / "actor", tmp_path / "source", code=True)
    assert len(list(target.glob("*.py"))) == 2


def test_model_with_its_own_code_loads_alone(tmp_path):
    """Case K12, of a model and of an adapter on it. As from the hub: the auto_map points to a repository, and the code
    needs a second file."""
    model = tiny_model(False)
    source = tmp_path / "source"
    model.save_pretrained(source)
    config = json.loads((source / "config.json").read_text()) | {
        "model_type": "tiny_words",
        "architectures": ["TinyForCausalLM"],
    }
    config["auto_map"] = {
        "AutoConfig": "a/b--modeling_tiny.TinyConfig",
        "AutoModelForCausalLM": "a/b--modeling_tiny.TinyForCausalLM",
    }
    (source / "config.json").write_text(json.dumps(config))
    (source / "modeling_tiny.py").write_text(CODE)
    (source / "tiny_words.py").write_text('KIND = "tiny_words"\n')
    with CheckpointStore(tmp_path / "run/checkpoints").saving(1) as folder:
        save_role(folder / "actor", engine_state(model))
        save_huggingface_files(folder / "actor", source, code=True)
    with CheckpointStore(tmp_path / "adapted/checkpoints").saving(1) as folder:
        save_role(folder / "actor", EngineState({}))
        wrapped = get_peft_model(model, LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
        wrapped.peft_config["default"].base_model_name_or_path = str(source)
        wrapped.save_pretrained(folder / "actor" / "weights")
        save_huggingface_files(folder / "actor", source, code=True)
    script = f"""
from verl_core.checkpoint.merge_job import main
from transformers import AutoModelForCausalLM
for run in ("run", "adapted"):
    out = f"{tmp_path}/{{run}}-merged"
    main([f"{tmp_path}/{{run}}", "--out", out])
    model, report = AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True, output_loading_info=True)
    assert not any(report.values()), report
    print(type(model).__name__)
"""
    done = run("-c", script, HF_HOME=str(tmp_path / "hf"), HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nTinyForCausalLM\n") == 2
    merged = [
        {path.name: path.read_text() for path in tmp_path.glob(f"{run}-merged/*.py")} for run in ("run", "adapted")
    ]
    assert merged == [{path.name: path.read_text() for path in source.glob("*.py")}] * 2
