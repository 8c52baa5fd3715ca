"""Every data set that is read from files of its own: from the hub's layout to rows that a run takes."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from verl_core.config import catalogue, dataset_options
from verl_core.config.compose import profile_names, resolve
from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.schema import DataConfig
from verl_core.data.dataset import PromptDataset
from verl_core.data.examples import ExampleDataset
from verl_core.rewards.registry import default_scorer

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
BOXED = "within \\boxed{}."
# name: {split: [(data_source, end of the prompt, ground truth)]}
SCORED = {
    "gsm8k": {
        "train": [("openai/gsm8k", 'the final answer after "####".', "1003")],
        "test": [("openai/gsm8k", 'the final answer after "####".', "-3")],
    },
    "math": {
        "train": [
            ("DigitalLearningGmbH/MATH-lighteval", BOXED, "\\frac{1}{2}"),
            ("DigitalLearningGmbH/MATH-lighteval", BOXED, "4"),
        ],
        "test": [("DigitalLearningGmbH/MATH-lighteval", BOXED, "\\sqrt{1+\\frac{3}{4}}")],
    },
    "math-500": {"test": [("HuggingFaceH4/MATH-500", BOXED, "9")]},
    "dapo-math-17k": {"train": [("math_dapo", "1+1?", "2"), ("math_dapo", "2+2?", "4")]},
    "aime-2024": {"test": [("math_dapo", "less 2000?", "24")]},
    "hellaswag": {
        "train": [("Rowan/hellaswag", "with a line `Answer: LETTER`.", "A")],
        "test": [("Rowan/hellaswag", "with a line `Answer: LETTER`.", "D")],
    },
    "search-r1": {
        "train": [("searchR1_nq", "<answer> and </answer>.", {"target": ["Ann Smith", "A. Smith"]})],
        "test": [("searchR1_hotpotqa", "<answer> and </answer>.", {"target": ["the North Sea"]})],
    },
    "mbpp": {
        "train": [("mbpp", "assert add(1, 2) == 3\nassert add(-1, 1) == 0\n```", None)],
        "test": [("mbpp", "assert double(2) == 4\n```", None)],
    },
    "humaneval": {"test": [("humaneval", '"""Half of the square root."""\n\n```', None)]},
    "geometry3k": {
        "train": [("hiyouga/geometry3k", "in \\boxed{}.", "12")],
        "test": [("hiyouga/geometry3k", "in \\boxed{}.", "40")],
    },
}


def rows_of(folder):
    return {path.stem: pq.read_table(path).to_pylist() for path in sorted(folder.glob("*.parquet"))}


@pytest.mark.parametrize("name", SCORED)
def test_scored_rows_have_veRLs_columns_and_their_own_answer_gets_full_marks(name, published, prepare, tmp_path):
    out = tmp_path / "out"
    done = prepare(name, "--source", published(name), "--out", out)
    assert done.returncode == 0, done.stderr
    found = rows_of(out)
    assert found.keys() == SCORED[name].keys()  # a split that the data set lacks is absent
    for split, expected in SCORED[name].items():
        assert len(found[split]) == len(expected)
        for index, (row, (source, end, gold)) in enumerate(zip(found[split], expected, strict=True)):
            assert (row["data_source"], row["extra_info"]["split"], row["extra_info"]["index"]) == (
                source,
                split,
                index,
            )
            assert row["prompt"][-1]["role"] == "user" and row["prompt"][-1]["content"].endswith(end)
            if gold is not None:
                assert row["reward_model"]["ground_truth"] == gold
                assert _score(row) == 1.0


def _score(row):
    verdict = default_scorer(row["data_source"])(
        data_source=row["data_source"],
        solution_str=row["extra_info"]["answer"],
        ground_truth=row["reward_model"]["ground_truth"],
        extra_info=row["extra_info"],
    )
    return verdict["score"]


def test_what_scores_a_data_set_is_a_rule_that_exists():
    for name in catalogue.names("dataset"):
        facts = dataset_options.facts(catalogue.entry("dataset", name))
        assert not facts.scorer or facts.scorer in catalogue.names("scorer"), name


def test_programs_carry_their_tests_as_the_code_rule_reads_them(published, prepare, tmp_path):
    for name in ("mbpp", "humaneval"):
        prepare(name, "--source", published(name), "--out", tmp_path / f"out-{name}")
    (mbpp,) = rows_of(tmp_path / "out-mbpp")["train"]
    assert json.loads(mbpp["reward_model"]["ground_truth"]) == {
        "tests": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"],
        "setup": "",
    }
    (humaneval,) = rows_of(tmp_path / "out-humaneval")["test"]
    gold = json.loads(humaneval["reward_model"]["ground_truth"])
    before = "import math\n\n\ndef half(x):\n    return x / 2\n\n\n"
    assert gold["preamble"] == gold["setup"] == before and gold["entry_point"] == "half_root"
    # Our own text, so it may run here: the answer behind the preamble passes the tests behind the setup.
    program = humaneval["extra_info"]["answer"].removeprefix("```python\n").removesuffix("\n```")
    names: dict = {}
    exec(gold["preamble"] + program, names)
    exec(f"{gold['setup']}\n{gold['tests'][0]}", names | {"candidate": names[gold["entry_point"]]})


def test_repeated_problems_are_kept_once_and_counted(published, prepare, tmp_path):
    done = prepare("dapo-math-17k", "--source", published("dapo-math-17k"), "--out", tmp_path / "out", "--json")
    assert json.loads(done.stdout)["notes"] == ["2 rows that repeat an earlier one were left out"]


def test_markup_of_web_pages_is_taken_out_of_scenes_and_endings(published, prepare, tmp_path):
    prepare("hellaswag", "--source", published("hellaswag"), "--out", tmp_path / "out")
    (row,) = rows_of(tmp_path / "out")["test"]
    assert row["prompt"][0]["content"].startswith("Baking bread: Dough is baked. the baker\n\nA. paints a horse.\nB. ")
    assert row["extra_info"]["choices"][0] == "paints a horse."


def test_pictures_keep_their_bytes_and_their_place(published, prepare, tmp_path):
    prepare("geometry3k", "--source", published("geometry3k"), "--out", tmp_path / "out")
    (row,) = rows_of(tmp_path / "out")["test"]
    assert row["images"] == [{"bytes": "\x89PNG other".encode("latin-1"), "path": "1.png"}]
    assert row["prompt"][0]["content"].startswith("<image>Find the angle.")


def test_files_with_pictures_are_refused_by_one_line(published, prepare, tmp_path, tokenizer):
    file = tmp_path / "train.parquet"
    prepare("geometry3k", "--source", published("geometry3k"), "--out", tmp_path)
    said = f"{file} row 1 has images, and this release trains on text alone"
    with pytest.raises(UserError, match=re.escape(said)):
        PromptDataset(str(file), DataConfig(), tokenizer, "train", 0)
    with pytest.raises(UserError, match=re.escape(said)):
        ExampleDataset(str(file), DataConfig(), tokenizer, "train", 0, "demonstrations")


def test_ultrafeedback_loads_as_pairs(published, prepare, tmp_path, tokenizer):
    out = tmp_path / "out"
    assert prepare("ultrafeedback", "--source", published("ultrafeedback"), "--out", out).returncode == 0
    (row,) = rows_of(out)["train"]
    assert row["prompt"] == [{"role": "user", "content": "Name a colour."}]
    assert row["extra_info"]["score_chosen"] == 8.5
    for split, texts in (("train", ["Blue.", "A colour?"]), ("val", ["Cod.", "Cow."])):
        data = ExampleDataset(str(out), DataConfig(), tokenizer, split, 0, "pairs")
        for answer, text in zip(data.group(data[0]), texts, strict=True):
            assert tokenizer.decode(answer.ids).endswith(f"assistant\n{text}<|im_end|>")


def test_hh_rlhf_loads_in_its_three_forms(published, prepare, tmp_path, tokenizer):
    source, cfg = published("hh-rlhf"), DataConfig()
    out = {form: tmp_path / form for form in ("pairs", "sft", "rl")}
    for form, folder in out.items():
        done = prepare("hh-rlhf", "--source", source, "--out", folder, "--form", form)
        assert done.returncode == 0, done.stderr
    talk = [("user", "How do I boil an egg?"), ("assistant", "In water."), ("user", "How long?")]
    (rl,) = rows_of(out["rl"])["train"]
    assert [(m["role"], m["content"].strip()) for m in rl["prompt"]] == talk
    assert rl["reward_model"] == {"style": "model", "ground_truth": "Ten minutes."}
    (sft,) = rows_of(out["sft"])["train"]
    assert [m["content"].strip() for m in sft["messages"]] == [text for _, text in talk] + ["Ten minutes."]
    assert len(PromptDataset(str(out["rl"]), cfg, tokenizer, "train", 0)) == 1
    for form, wanted in (("pairs", "pairs"), ("sft", "demonstrations")):
        data = ExampleDataset(str(out[form]), cfg, tokenizer, "train", 0, wanted)
        assert tokenizer.decode(data.group(data[0])[0].ids).endswith("Ten minutes.<|im_end|>")


def test_transcripts_of_the_first_release_and_a_few_broken_ones(prepare, tmp_path):
    """Anthropic/hh-rlhf has the prompt within both answers; a handful of its rows are no conversation."""
    head = "\n\nHuman: Hi!\n\nAssistant:"
    rows = [{"chosen": f"{head} Hello {i}.", "rejected": f"{head} Go."} for i in range(250)]
    (tmp_path / "test.jsonl").write_text(json.dumps(rows[0]) + "\n")
    for broken, code in ((2, 0), (3, 1)):
        some = [*rows[broken:], *[{"chosen": "no transcript", "rejected": "none"}] * broken]
        (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
        done = prepare("hh-rlhf", "--source", tmp_path, "--out", tmp_path / "out")
        assert done.returncode == code, done.stderr
    assert "3 broken rows" in done.stderr and "train.jsonl row 248" in done.stderr
    assert len(rows_of(tmp_path / "out")["train"]) == 248


def test_the_default_folder_of_a_form(monkeypatch, prepare, published, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    prepare("hh-rlhf", "--source", published("hh-rlhf"), "--form", "sft")
    assert (tmp_path / "data" / "hh-rlhf" / "sft" / "train.parquet").is_file()


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("math", {"solution": "no box"}, "solution has no \\boxed{}"),
        (
            "dapo-math-17k",
            {"reward_model": {"style": "rule", "ground_truth": None}},
            "reward_model.ground_truth is null",
        ),
        ("hellaswag", {"label": ""}, "label is '', not 0 to 3"),
        ("hellaswag", {"endings": ["one"]}, "endings is ['one'], not a list of 4 texts"),
        ("search-r1", {"golden_answers": []}, "golden_answers is [], not a list of texts"),
        ("mbpp", {"test_list": None}, "test_list is None"),
        ("humaneval", {"entry_point": "other"}, "prompt defines no function other"),
        ("geometry3k", {"images": []}, "problem has 1 <image> for 0 images"),
        ("ultrafeedback", {"rejected": None}, "rejected is null"),
    ],
)
def test_broken_rows_are_named_with_the_field(name, change, said, prepare, tmp_path):
    row = next(iter(PUBLISHED[name].values()))[0] | change
    for split in ("train", "test", "validation", "train_prefs", "test_prefs"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    done = prepare(name, "--source", tmp_path, "--out", tmp_path / "out")
    assert (done.returncode, f".jsonl row 1: {said}" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "out").exists()


def test_one_file_is_enough_where_it_holds_everything(published, prepare, tmp_path):
    done = prepare("mbpp", "--source", published("mbpp") / "mbpp.jsonl", "--out", tmp_path / "out", "--json")
    told = json.loads(done.stdout)
    assert [file["name"] for file in told["sources"]] == ["mbpp.jsonl"] and set(told["files"]) == {"train", "test"}
    done = prepare("math", "--source", next(published("math").rglob("train*")), "--out", tmp_path / "math")
    assert done.returncode == 1 and "is one file, and math has the splits train and test" in done.stderr


@pytest.mark.parametrize("profile", profile_names())
def test_profiles_name_files_that_prepare_makes_in_the_form_they_learn_from(profile):
    """In the default place; pairs where the algorithm compares answers."""
    cfg = effective(resolve(profile).config)
    needs = catalogue.entry("algorithm", cfg.algorithm.name).needs
    for files in (cfg.data.train_files, cfg.data.val_files):
        for file in [files] if isinstance(files, str) else files:
            if file.startswith("builtin:"):
                continue
            root, name, split = Path(file).parent.parent, Path(file).parent.name, Path(file).stem
            assert (str(root), split in _facts(name).rows) == ("~/data", True), file
            assert ("pairs" in needs) == (name == "ultrafeedback")


def _facts(name):
    return dataset_options.facts(catalogue.entry("dataset", name))
