"""`rlx merge --push`: a folder on a hub, here one on this machine."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoint_models import save_run, tiny_model
from hub_stub import TOKEN, Hub, Repo, serving
from huggingface_hub import constants
from huggingface_hub.utils import _http
from safetensors.torch import save_file
from xet_stub import PLAIN

from verl_core.checkpoint import merge_job, push_job
from verl_core.checkpoint.merge_card import CARD, Origin, origin_of, write_card
from verl_core.checkpoint.merge_push import PushTarget, check_push, push
from verl_core.config.errors import EnvError, RlxError, RunError, UserError

XET = PLAIN | {"HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "1", "HF_XET_CLIENT_RETRY_BASE_DELAY": "10ms"}
TO = PushTarget("me/model")


@pytest.fixture(scope="module", autouse=True)
def patient_client() -> Iterator[None]:
    """The client without its waits; Xet's half reads its settings once in a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_http.time, "sleep", lambda seconds: None)
        for name, value in XET.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[Hub]:
    with serving(Hub()) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        yield hub


@pytest.fixture(params=["xet", "lfs"])
def way(request, monkeypatch) -> str:
    """How large files travel."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", request.param == "lfs")
    return request.param


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in two files, a folder in it, and hidden files."""
    folder = tmp_path / "merged"
    (folder / "additional_chat_templates").mkdir(parents=True)
    (folder / "additional_chat_templates" / "tool.jinja").write_text("{{ tools }}")
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen2ForCausalLM"], "torch": "ß"}))
    (folder / ".cache").mkdir()
    (folder / ".cache" / "secret").write_text("s")
    index = {"weight_map": {f"w{i}": f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for i in (1, 2):
        values = torch.randn(200_000, generator=torch.Generator().manual_seed(i))
        save_file({f"w{i}": values}, folder / f"model-0000{i}-of-00002.safetensors")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith(".")}


def on_hub(hub: Hub, branch: str = "main") -> dict[str, bytes]:
    return {name: content for name, content in hub.files("me/model", branch).items() if name != ".gitattributes"}


def test_a_folder_arrives_byte_for_byte_in_one_commit(hub, way, folder):
    done = push(folder, TO, Origin(step=7))
    assert on_hub(hub) == contents(folder) and CARD in contents(folder)
    [(branch, message, _)] = hub.repos["me/model"].commits
    assert (branch, message) == ("main", "rlx merge: step 7")
    assert done["url"].startswith(f"{hub.address}/me/model/commit/") and done["commit"] in done["url"]
    assert any("xorbs" in asked for asked in hub.seen) == (way == "xet")
    hub.seen.clear()
    again = push(folder, TO, Origin(step=7))
    assert again == done and len(hub.repos["me/model"].commits) == 1
    assert not any("xorbs" in asked or asked.startswith("PUT") for asked in hub.seen)  # nothing is sent twice


def test_a_hub_that_gets_other_bytes_refuses_them_and_the_branch_stays(hub, way, folder, monkeypatch):
    monkeypatch.setattr(hub, "keep", lambda sha256, content: Hub.keep(hub, sha256, content[:-1] + b"x"))
    hub.cas.keep = hub.keep
    with pytest.raises(RunError) as told:
        push(folder, TO, Origin())
    assert told.value.hint == f"{folder} is whole; push it with: rlx merge {folder} --push me/model"
    assert on_hub(hub) == {} and not hub.repos["me/model"].commits


@pytest.mark.parametrize("part", ["preupload", "/cas/v1/xorbs", "/cas/v1/shards", "/lfs/", "commit"])
def test_a_connection_lost_on_the_way_is_one_line_and_the_next_push_goes_on(hub, folder, part, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", "cas" not in part)
    hub.refuses = {part: 0}
    to = replace(TO, revision="v1", private=True)
    with pytest.raises(RunError) as told:
        push(folder, to, Origin())
    assert "\n" not in told.value.message and hub.address in told.value.message
    assert told.value.hint.endswith(f"rlx merge {folder} --push me/model --revision v1 --private")
    assert not hub.repos["me/model"].commits
    hub.refuses = {}
    before = set(hub.large)
    push(folder, to, Origin())
    assert on_hub(hub, "v1") == contents(folder) and on_hub(hub) == {} and hub.repos["me/model"].private
    assert part != "commit" or set(hub.large) == before


def test_the_model_of_an_earlier_push_is_taken_away_and_other_files_stay(hub, folder):
    push(folder, TO, Origin())
    hub.files("me/model")["q4.gguf"] = b"from another program"
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    save_file({"w": torch.ones(3)}, folder / "model.safetensors")
    push(folder, TO, Origin())
    assert on_hub(hub) == contents(folder) | {"q4.gguf": b"from another program"}
    assert len(hub.repos["me/model"].commits) == 2


def test_a_card_says_what_is_public(hub, folder, tmp_path):
    run = tmp_path / "secret-project"
    (run / "checkpoints" / "global_step_9").mkdir(parents=True)
    (run / "config.yaml").write_text("model: {path: org/base}\nalgorithm: {name: grpo}\n")
    (run / "run.json").write_text(json.dumps({"profile": "smoke", "host": "h", "argv": ["/home/me/rlx"]}))
    origin = origin_of(run / "checkpoints" / "global_step_9", 9)
    hub.repos["org/base"] = Repo()
    push(folder, TO, origin)
    card = on_hub(hub)[CARD].decode()
    assert card.startswith(
        "---\nlibrary_name: transformers\nbase_model: org/base\ntags:\n- rlx\n- grpo\n---\n\n# model\n"
    )
    for row in ("Weights | Qwen2ForCausalLM", "Profile | smoke", "Algorithm | grpo", "Step | 9", "Merged by | rlx 0."):
        assert f"| {row}" in card
    assert "secret-project" not in card and "/home" not in card and str(tmp_path) not in card
    for base in ("org/absent", "org/hidden", str(tmp_path), "builtin:tiny", "../model"):
        hub.repos["org/hidden"] = Repo(private=True)
        (folder / CARD).unlink()
        push(folder, TO, replace(origin, base=base))
        assert "base" not in on_hub(hub)[CARD].decode(), base
    alone = origin_of(tmp_path / "global_step_1", 1)
    assert alone == Origin(step=1)


def test_a_card_of_somebodys_own_is_never_replaced_by_a_written_one(hub, folder):
    push(folder, TO, Origin(step=1))
    (folder / CARD).unlink()
    push(folder, TO, Origin(step=2))
    written = on_hub(hub)[CARD]
    assert b"| Step | 2 |" in written  # a card that nobody touched is kept up to date
    hub.files("me/model")[CARD] = edited = written.replace(b"# model", b"# My model")
    (folder / CARD).unlink()
    push(folder, TO, Origin(step=3))
    assert on_hub(hub)[CARD] == edited
    (folder / CARD).write_text("---\nlicense: mit\n---\nmine\n")
    push(folder, TO, Origin(step=4))
    assert on_hub(hub)[CARD].endswith(b"mine\n")  # the folder's own counts
    write_card(folder, "model", Origin())
    assert (folder / CARD).read_text().endswith("mine\n")


@pytest.mark.parametrize(
    ("name", "why"),
    [("a/b/c", "names no repository"), ("a--b", "names no repository"), ("me/.x", "names no repository"),
     ("me/x.git", "names no repository"), ("stranger/model", "is not in the organisation stranger")],
)  # fmt: skip
def test_a_name_that_cannot_be_pushed_to_is_refused(hub, name, why):
    with pytest.raises(UserError, match=why):
        check_push(PushTarget(name))


def test_a_target_is_checked_before_the_work(hub, monkeypatch):
    assert check_push(PushTarget("model")) == TO  # the user's own namespace
    assert check_push(PushTarget("team/model")).repo == "team/model" and hub.repos == {}
    hub.repos["me/model"] = Repo(private=False)
    assert check_push(replace(TO, private=False)).private is False
    cases: list[tuple[PushTarget, dict, dict, type[RlxError], str]] = [
        (replace(TO, private=True), {}, {}, UserError, "me/model is there and public, which --private does not change"),
        (TO, {"role": "read"}, {}, UserError, "the token of me may only read"),
        (TO, {"role": "fineGrained", "fineGrained": {"scoped": []}}, {}, UserError, "may only read"),
        (TO, {}, {"whoami": 401}, UserError, "does not take the token"),
        (TO, {}, {"auth-check": 403}, UserError, "may not write to me/model"),
        (TO, {}, {"auth-check": 404}, UserError, "has no me/model"),
        (TO, {}, {"whoami": 500}, EnvError, "500"),
        (TO, {}, {"whoami": 0}, EnvError, "does not answer"),
    ]
    for to, token, hub.refuses, kind, why in cases:
        hub.user["auth"]["accessToken"] = token or {"role": "write"}
        with pytest.raises(kind, match=why) as told:
            check_push(to)
        assert "\n" not in told.value.message and told.value.hint and TOKEN not in str(vars(told.value))
    hub.user["auth"]["accessToken"] = {
        "role": "fineGrained", "fineGrained": {"scoped": [{"permissions": ["repo.write"]}]}
    }  # fmt: skip
    hub.refuses = {}
    assert check_push(TO) == TO
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(EnvError, match=r"127\.0\.0\.1:9 does not answer"):
        check_push(TO)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match="needs a token"):
        check_push(TO)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        check_push(TO)


def test_a_repository_that_became_public_gets_no_private_model(hub, folder):
    hub.repos["me/model"] = Repo(private=False)
    with pytest.raises(UserError, match="is there and public"):
        push(folder, replace(TO, private=True), Origin())
    assert on_hub(hub) == {}


def test_a_dry_run_checks_the_hub_and_writes_nothing(hub, folder, tmp_path, capsys):
    save_run(tmp_path / "run", tiny_model(True))
    words = ["--push", "model", "--revision", "v1", "--dry-run"]
    assert merge_job.main([str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["push"] == {"repo": "me/model", "revision": "v1"}
    with pytest.raises(UserError, match="is no merged model"):
        push_job.main([str(tmp_path / "run"), *words])
    assert push_job.main([str(folder), *words]) == 0
    assert capsys.readouterr().out == f"would push {folder} to me/model, branch v1\n"
    assert hub.repos == {} and not (tmp_path / "out").exists() and CARD not in contents(folder)


@pytest.mark.slow
def test_a_merge_that_cannot_be_pushed_stays_and_its_folder_is_pushed_later(hub, tmp_path):
    save_run(tmp_path / "run", tiny_model(True), step=7)
    out = tmp_path / "out"
    variables = os.environ | XET | {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf")}

    def job(name: str, *words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", f"verl_core.checkpoint.{name}", *map(str, words), "--push", "model", "--json"]
        return subprocess.run(command, capture_output=True, text=True, env=variables)

    hub.refuses = {"commit": 500}
    failed = job("merge_job", tmp_path / "run", "--out", out)
    assert failed.returncode == 5 and f"rlx merge {out} --push me/model" in json.loads(failed.stdout)["hint"]
    hub.refuses = {}
    done = job("push_job", out)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["folder"] == str(out) and told["push"]["url"].startswith(f"{hub.address}/me/model/commit/")
    assert on_hub(hub) == contents(out) and b"| Step | 7 |" in on_hub(hub)[CARD]
    shutil.rmtree(out)
    done = job("merge_job", tmp_path / "run", "--out", out)
    assert done.returncode == 0 and json.loads(done.stdout)["push"]["repo"] == "me/model", done.stderr
    assert on_hub(hub) == contents(out)
