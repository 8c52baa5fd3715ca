"""A small real tokenizer: byte-level BPE with ChatML, trained on the embedded task's corpus."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from verl_core.config.process import run_job
from verl_core.data import show_your_work
from verl_core.data.prepare import job

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if think is defined %}<think>{% endif %}{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer():
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(show_your_work.corpus(seed=0), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = CHATML
    return tokenizer


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def prepare(monkeypatch, capsys):
    """Runs the job of `rlx prepare` as its process would, in this one."""

    def prepare(*args):
        monkeypatch.setattr(sys, "argv", ["job", *map(str, args)])
        with pytest.raises(SystemExit) as done:
            run_job(job.main)
        return Done(done.value.code, *capsys.readouterr())

    return prepare


PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
"""Data set -> file below its folder on the hub -> made rows with exactly the columns that it has there."""


@pytest.fixture
def published(tmp_path):
    """Writes a data set's files as the hub has them; returns their folder."""

    def published(name):
        for file, rows in PUBLISHED[name].items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if file.endswith(".parquet"):
                pq.write_table(pa.Table.from_pylist([_with_bytes(row) for row in rows]), path)
            else:
                path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return tmp_path / name

    return published


def _with_bytes(row):
    """A picture's bytes, which JSON has as a text."""
    images = [{**image, "bytes": image["bytes"].encode("latin-1")} for image in row.get("images", ())]
    return row | ({"images": images} if images else {})
