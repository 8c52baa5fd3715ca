"""`rlx prepare custom`: a user's file by a map of its columns, through the job's main()."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_core.config.dataset_options import read
from verl_core.config.errors import UserError
from verl_core.config.schema import DataConfig
from verl_core.data.dataset import PromptDataset
from verl_core.data.example_rows import comparison, demonstration
from verl_core.data.prepare import job

ROWS = [{"q": f"What is {i} + {i}?", "gold": {"value": 2 * i}, "id": f"r{i}"} for i in range(40)]
MAP = ("--map", "prompt=q,ground_truth=gold.value,extra_info.id=id", "--constant", "data_source=my/sums,ability=math")


@pytest.fixture
def custom(tmp_path, capsys):
    """Prepares `source` and gives the rows by split."""

    def prepare(source, *words):
        assert job.main(["custom", "--source", str(source), "--out", str(tmp_path / "out"), "--json", *words]) == 0
        manifest = json.loads(capsys.readouterr().out)
        return {
            split: pq.read_table(tmp_path / "out" / file["file"]).to_pylist()
            for split, file in manifest["files"].items()
        }

    return prepare


def jsonl(path, rows=ROWS):
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_every_kind_of_file_gives_the_same_rows(tmp_path, custom):
    flat = [{"q": r["q"], "value": str(r["gold"]["value"]), "id": r["id"]} for r in ROWS]
    text = "q,value,id\n" + "".join(f'"{r["q"]}",{r["value"]},{r["id"]}\n' for r in flat)
    (tmp_path / "a.csv").write_text("\ufeff" + text, encoding="utf-8")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "a.tsv").write_text(text.replace(",", "\t").replace('"', ""), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(flat), tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text(json.dumps(flat), encoding="utf-8")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(jsonl(tmp_path / "a.jsonl", flat).read_bytes()))
    expected = custom(jsonl(tmp_path / "nested.jsonl"), *MAP)["train"]
    assert expected[3] == {
        "extra_info": {"split": "train", "index": 3, "id": "r3"},
        "data_source": "my/sums",
        "prompt": [{"content": "What is 3 + 3?", "role": "user"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "6"},
    }
    columns = ("--map", "prompt=q,ground_truth=value,extra_info.id=id", *MAP[2:])
    for file in ("a.csv", "a.csv.gz", "a.tsv", "a.parquet", "a.json", "a.jsonl", "a.jsonl.gz"):
        assert custom(tmp_path / file, *columns)["train"] == expected


def test_what_is_written_is_what_the_loader_reads(tmp_path, custom, tokenizer):
    custom(jsonl(tmp_path / "in.jsonl"), *MAP)
    prompts = PromptDataset(str(tmp_path / "out"), DataConfig(max_prompt_length=64), tokenizer, "train", seed=0)
    assert len(prompts) == len(ROWS)


def test_a_template_makes_the_prompt(tmp_path, custom):
    template = "Q: {q}\nWrite {{}} around {gold.value} of {id}."
    words = ("--template", template, "--map", "ground_truth=id", "--constant", "data_source=x,system=Be brief")
    row = custom(jsonl(tmp_path / "in.jsonl"), *words)["train"][2]
    assert row["prompt"] == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Q: What is 2 + 2?\nWrite {} around 4 of r2."},
    ]


def test_a_share_is_held_out_by_seed_with_equal_prompts_together(tmp_path, custom):
    source = jsonl(tmp_path / "in.jsonl", ROWS + ROWS)
    splits = custom(source, *MAP, "--split", "0.25")
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 60, "test": 20}
    prompts = {split: {str(row["prompt"]) for row in rows} for split, rows in splits.items()}
    assert not prompts["train"] & prompts["test"]
    assert custom(source, *MAP, "--split", "0.25") == splits
    assert custom(source, *MAP, "--split", "0.25", "--seed", "1")["test"] != splits["test"]


def test_a_second_file_is_the_test_split(tmp_path, custom):
    other = jsonl(tmp_path / "held.jsonl", ROWS[:3])
    splits = custom(jsonl(tmp_path / "in.jsonl"), *MAP, "--test-source", str(other), "--limit", "2")
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 2, "test": 2}
    assert splits["test"][0]["extra_info"]["split"] == "test"


LEARN = {
    "pairs": ({"q": "Hi", "good": "Hello!", "bad": "No.", "by": "0.5"}, "prompt=q,chosen=good,rejected=bad,margin=by"),
    "kto": ({"q": "Hi", "a": "Hello!", "ok": "yes"}, "prompt=q,completion=a,label=ok"),
    "one answer": ({"q": "Hi", "a": "Hello!"}, "prompt=q,answer=a"),
    "messages": (
        {"chat": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]},
        "messages=chat",
    ),
}


@pytest.mark.parametrize("form", LEARN)
def test_answers_to_learn_from(tmp_path, custom, form):
    record, mapping = LEARN[form]
    [row] = custom(jsonl(tmp_path / "in.jsonl", [record]), "--map", mapping)["train"]
    example = (demonstration if "messages" in row else comparison)(row, "f", 1, DataConfig())
    assert example.messages == [{"role": "user", "content": "Hi"}]
    assert len(example.answers) == (2 if form == "pairs" else 1)
    assert example.margin == (0.5 if form == "pairs" else 0)


def test_broken_rows_are_named_by_file_line_and_keys(tmp_path, custom):
    source = jsonl(tmp_path / "in.jsonl", [ROWS[0], '{"q": ', {"q": "x", "gold": None}, ROWS[1], {"id": "1"}, "[1]"])
    with pytest.raises(UserError) as error:
        custom(source, *MAP)
    said = str(error.value)
    assert said.startswith("4 broken rows: ")
    for part in (
        f"{source} row 2: not JSON",
        "row 3: gold.value is missing",
        "row 5: q is missing",
        "keys present: id",
    ):
        assert part in said
    assert not (tmp_path / "out").exists()


def test_what_the_loader_would_refuse_names_its_column(tmp_path, custom):
    chats = [{"c": 3}, {"c": [{"role": "user", "content": "Hi"}]}]
    with pytest.raises(UserError) as error:
        custom(jsonl(tmp_path / "in.jsonl", chats), "--map", "messages=c")
    for part in (
        "row 1: messages is 3, not a list",
        "row 2: messages has no message of the role",
        "(from --map messages=c)",
    ):
        assert part in str(error.value)


def test_tools_and_a_system_message_are_kept(tmp_path, custom):
    tool = {"type": "function", "function": {"name": "add"}}
    source = jsonl(tmp_path / "in.jsonl", [{"q": "Hi", "a": "Yes", "t": json.dumps([tool])}])
    [row] = custom(source, "--map", "prompt=q,answer=a,tools=t", "--constant", "system=Be brief")["train"]
    example = demonstration(row, "f", 1, DataConfig())
    assert example.tools == (tool,) and example.messages[0] == {"role": "system", "content": "Be brief"}


def test_tools_of_any_schemas_go_into_one_column(tmp_path, custom):
    """Parquet has no empty objects, and one type for what `default` may be of any."""
    bare = {"name": "now", "parameters": {"properties": {}}}
    schemas = [bare, *({"name": "add", "parameters": {"default": value}} for value in (1, "one"))]
    source = jsonl(tmp_path / "in.jsonl", [{"q": "Hi", "a": "Yes", "t": [tool]} for tool in schemas])
    rows = custom(source, "--map", "prompt=q,answer=a,tools=t")["train"]
    assert [demonstration(row, "f", 1, DataConfig()).tools for row in rows] == [(tool,) for tool in schemas]


def test_broken_csv_is_named_by_line(tmp_path, custom):
    source = tmp_path / "a.csv"
    source.write_text('q,a\n"two\nlines",1\nshort\n', encoding="utf-8")
    with pytest.raises(UserError, match="row 4: the row has 1 fields, the header 2: q, a"):
        custom(source, "--map", "prompt=q,answer=a")
    source.write_text("q,a\nx,\n", encoding="utf-8")
    with pytest.raises(UserError, match="row 2: a is null; keys present: q, a"):
        custom(source, "--map", "prompt=q,answer=a")
    source.write_text("q,q\n1,2\n", encoding="utf-8")
    with pytest.raises(UserError, match="names a column twice"):
        custom(source, "--map", "prompt=q,answer=q")
    source.write_bytes(b"q,a\n\xff,1\n")
    with pytest.raises(UserError, match="cannot be read"):
        custom(source, "--map", "prompt=q,answer=a")


def test_values_that_no_column_can_hold_are_refused(tmp_path, custom):
    several, empty = [{"q": "x", "a": {"tests": ["y"]}}, {"q": "x", "a": "z"}], [{"q": "x", "a": {"tests": {}}}]
    for rows in (several, empty):
        with pytest.raises(UserError, match="the rows of train do not fit into a table"):
            custom(
                jsonl(tmp_path / "in.jsonl", rows), "--map", "prompt=q,ground_truth=a", "--constant", "data_source=x"
            )


def test_images_are_refused(tmp_path, custom):
    pq.write_table(pa.table({"q": ["x"], "pic": [{"bytes": b"\x89PNG", "path": "a.png"}]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="holds an image"):
        custom(tmp_path / "a.parquet", "--map", "prompt=q,answer=pic")


REFUSED = {
    ("--map", "prompt=q"): "no column is mapped to answer, which demonstrations of one answer need",
    ("--map", "prompt=q,ground_truth=a"): "no column is mapped to data_source, which prompts to answer need",
    ("--map", "prompt=q,chosen=a"): "no column is mapped to rejected, which pairs need",
    ("--map", "prompt=q,answer=a,prmpt=x"): "'prmpt' is no field of a row",
    ("--map", "prompt=q,answer=a,images=x"): "images, videos and sounds are not read",
    ("--map", "prompt=q,answer=a,margin=x"): "demonstrations of one answer have no margin",
    ("--map", "chosen=q,rejected=a", "--constant", "system=x"): "a system message stands before a prompt",
    ("--map", "prompt=q,answer=a", "--constant", "answer=x"): "answer is given twice",
    ("--map", "prompt=q,answer=a", "--template", "x"): "prompt is given twice",
    ("--map", "prompt=q,answer=a", "--split", "1.5"): "--split 1.5 is no share",
    ("--map", "prompt=q,answer=a", "--split", "0.1", "--test-source", "x"): "both say what the test split is",
    ("--map", "prompt=q,answer=a", "--seed", "1"): "--seed draws the rows of --split, which is not given",
    ("--map", "prompt"): "is not KEY=VALUE",
    ("--mapp", "prompt=q"): "no option --mapp; did you mean --map?",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_refused_before_any_file_is_read(words):
    with pytest.raises(UserError) as error:
        read("custom", words)
    assert REFUSED[words] in str(error.value)


def test_absent_empty_and_unknown_files_are_refused(tmp_path, custom):
    cases = {"none.jsonl": "is no file", "a.xlsx": "is not a data file", "empty.jsonl": "has no rows"}
    (tmp_path / "a.xlsx").write_bytes(b"x")
    (tmp_path / "empty.jsonl").write_bytes(b"\n")
    for name, said in cases.items():
        with pytest.raises(UserError, match=said):
            custom(tmp_path / name, *MAP)
    with pytest.raises(UserError, match="leaves a split without rows"):
        custom(jsonl(tmp_path / "in.jsonl", ROWS[:2]), *MAP, "--split", "0.01")
    with pytest.raises(UserError, match="needs its file"):
        job.main(["custom", *MAP, "--out", str(tmp_path / "out")])
