"""Checkpoints that veRL 0.9.1's own manager wrote (make_verl_checkpoints.py) merge to the weights that it was given."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import Shard
from transformers import AutoModelForTokenClassification
from verl_cases import FIXTURES, copied, loaded, role_of, same, truth

from verl_core.checkpoint.foreign.recognise import recognise
from verl_core.checkpoint.foreign.source import SourceOptions
from verl_core.checkpoint.merge import merge, plan_merge
from verl_core.checkpoint.merge_logits import require_same_logits
from verl_core.checkpoint.merge_verify import verify
from verl_core.config.errors import RunError, UserError

WHOLE = {
    "one_rank": "veRL FSDP2, 1 rank",
    "tied_two_ranks": "veRL FSDP2, 2 ranks",
    "bf16_four_ranks": "veRL FSDP2, 4 ranks",
    "moe_replicated": "veRL FSDP2, 4 ranks",
    "fsdp1_one_rank": "veRL FSDP1, 1 rank",
    "fsdp1_two_ranks": "veRL FSDP1, 2 ranks",
    "fsdp1_replicated": "veRL FSDP1, 4 ranks",
}


@pytest.mark.parametrize("case", WHOLE)
def test_weights_are_kept_bit_by_bit(tmp_path, case):
    """Cases K8, K9: one rank, experts."""
    plan = plan_merge(FIXTURES / case, tmp_path / "out")
    merge(plan, how="logits")
    want = truth(case)
    same(loaded(tmp_path / "out"), want)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert ("lm_head.weight" in stored) != ("tied" in case or case in ("fsdp1_one_rank", "fsdp1_two_ranks"))
    report = plan.report()
    assert (report["source"], report["step"], report["role"]) == (WHOLE[case], 3, "actor")
    assert report["dtype"] == ("bfloat16" if want["model.norm.weight"].dtype == torch.bfloat16 else "float32")


def test_a_run_a_step_and_a_role_are_the_same_source(tmp_path):
    run = copied("one_rank", tmp_path)
    shutil.copytree(run / "global_step_3", run / "global_step_20")
    folders = [run, run / "global_step_3", run / "global_step_3" / "actor"]
    assert [recognise(folder, SourceOptions()).step for folder in folders] == [3, 3, 3]
    (run / "latest_checkpointed_iteration.txt").unlink()
    assert recognise(run, SourceOptions()).step == 20, "without veRL's word the highest"
    (run / "latest_checkpointed_iteration.txt").write_text("7")
    with pytest.raises(UserError, match=r"names global_step_7, which is not there"):
        recognise(run, SourceOptions())
    link = tmp_path / "link"
    link.symlink_to(run / "global_step_3")
    assert recognise(link, SourceOptions()).step == 3


def test_a_critic_is_a_token_classifier(tmp_path):
    with pytest.raises(UserError, match="has no role 'actor', it has critic"):
        plan_merge(FIXTURES / "critic", tmp_path / "out")
    merge(plan_merge(FIXTURES / "critic", tmp_path / "out", role="critic"), how="logits")
    same(loaded(tmp_path / "out", AutoModelForTokenClassification), truth("critic"))
    assert plan_merge(role_of(FIXTURES / "critic"), tmp_path / "new").role == "critic"


def test_a_value_head_of_trl_is_a_token_classifier(tmp_path):
    run = copied("critic", tmp_path)
    want = {name: tensor.float() for name, tensor in truth("critic").items()}
    renamed = {
        f"v_head.summary.{name.removeprefix('score.')}" if name.startswith("score.") else f"pretrained_model.{name}": t
        for name, t in want.items()
    }
    write_ranks(role_of(run), [renamed | {"pretrained_model.lm_head.weight": torch.ones(11, 8)}])
    merge(plan_merge(run, tmp_path / "out", role="critic"))
    same(loaded(tmp_path / "out", AutoModelForTokenClassification), want)


def write_ranks(folder: Path, states: list[dict[str, torch.Tensor]]) -> None:
    """Replaces the files of a role by plain tensors."""
    for path in folder.glob("*.pt"):
        path.unlink()
    for rank, state in enumerate(states):
        torch.save(state, folder / f"model_world_size_{len(states)}_rank_{rank}.pt")
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 1, "world_size": len(states)}))


def test_plain_tensors_are_taken_once_if_all_ranks_agree(tmp_path):
    run = copied("one_rank", tmp_path)
    want = truth("one_rank")
    write_ranks(role_of(run), [want, want])
    merge(plan_merge(run, tmp_path / "out"))
    same(loaded(tmp_path / "out"), want)
    write_ranks(role_of(run), [want, want | {"model.norm.weight": torch.zeros(8)}])
    with pytest.raises(UserError, match=r"model.norm.weight is not sharded, yet differs between the files"):
        plan_merge(run, tmp_path / "new")


def test_a_padded_vocabulary_is_cut(tmp_path):
    run = copied("one_rank", tmp_path)
    want = truth("one_rank")
    padding = torch.full((5, 8), 9.0)
    padded = {
        name: torch.cat([tensor, padding]) if "embed_tokens" in name or "lm_head" in name else tensor
        for name, tensor in want.items()
    }
    write_ranks(role_of(run), [padded])
    merge(plan_merge(run, tmp_path / "out"), how="logits")
    same(loaded(tmp_path / "out"), want)


def test_an_untrained_model_is_refused(tmp_path):
    base = tmp_path / "base"
    merge(plan_merge(FIXTURES / "one_rank", base))
    for dtype in ("keep", "bf16"):
        with pytest.raises(UserError, match=r"the merged model is --base .*base: all 15 tensors are equal"):
            merge(plan_merge(FIXTURES / "one_rank", tmp_path / "out", dtype=dtype, base=str(base)))
    assert not (tmp_path / "out").exists()
    merge(plan_merge(FIXTURES / "one_rank", tmp_path / "out", base=str(base), allow_unchanged=True))
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, base / "model.safetensors")
    merge(plan_merge(FIXTURES / "one_rank", tmp_path / "changed", base=str(base)))


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_another_step(path: Path) -> None:
    extra = path.with_name(path.name.replace("model", "extra_state"))
    torch.save({"lr_scheduler": {"last_epoch": 9}}, extra)


def of_another_run(path: Path) -> None:
    shutil.copyfile(path.with_name("model_world_size_2_rank_0.pt"), path)


def of_more_ranks(path: Path) -> None:
    shutil.copyfile(path, path.with_name("model_world_size_4_rank_3.pt"))


def of_fewer_ranks(path: Path) -> None:
    (path.parent / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 3}')


def of_fewer_tensors(path: Path) -> None:
    state = torch.load(path, weights_only=False)
    del state["model.norm.weight"]
    torch.save(state, path)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (Path.unlink, "model_world_size_2_rank_1.pt is missing"),
        (truncated, "model_world_size_2_rank_1.pt is truncated, or not a file of torch.save"),
        (of_another_step, "its files are of several steps: extra_state_world_size_2_rank_0.pt of 3, "),
        (of_another_run, r"the files are not of the 2 ranks of one run: .*mesh are \[\(0,\), \(0,\)\]"),
        (of_more_ranks, "fsdp_config.json says world size 2, there are files of world size 2, 4"),
        (of_fewer_ranks, "fsdp_config.json says world size 3, there are files of world size 2"),
        (of_fewer_tensors, "model.norm.weight is missing in model_world_size_2_rank_1.pt"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_broken_piece_is_named_before_anything_is_written(tmp_path, damage, says):
    run = copied("tied_two_ranks", tmp_path)
    damage(role_of(run) / "model_world_size_2_rank_1.pt")
    with pytest.raises(UserError, match=says):
        plan_merge(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_all_missing_ranks_are_named(tmp_path):
    """Case K5: the shards of the other nodes are on their disks."""
    run = copied("bf16_four_ranks", tmp_path)
    for rank in (1, 3):
        (role_of(run) / f"model_world_size_4_rank_{rank}.pt").unlink()
    with pytest.raises(UserError) as refused:
        plan_merge(run, tmp_path / "out")
    assert "rank_1.pt is missing; model_world_size_4_rank_3.pt is missing" in refused.value.message
    for path in role_of(run).glob("model_*"):
        path.unlink()
    with pytest.raises(UserError, match=r"rank_0.pt is missing; .*rank_3.pt is missing"):
        plan_merge(run, tmp_path / "out")
    (role_of(run) / "fsdp_config.json").write_text("{}")
    with pytest.raises(UserError, match="says no world size, and there is no model_world_size_W_rank_R"):
        plan_merge(run, tmp_path / "out")


@pytest.mark.parametrize("case", ["one_rank", "lora_two_ranks"])
def test_verification_finds_a_changed_value(tmp_path, case):
    plan = plan_merge(FIXTURES / case, tmp_path / "out")
    merge(plan, how="logits")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    weights["model.norm.weight"][3] *= 1.01
    save_file(weights, tmp_path / "out" / "model.safetensors", metadata={"format": "pt"})
    verify(plan.content, tmp_path / "out", "none")
    with pytest.raises(RunError, match=r"model\.norm\.weight does not read back as it was written"):
        verify(plan.content, tmp_path / "out", "tensors")
    with pytest.raises(RunError, match=r"logits differ from the source's by .* of the largest"):
        require_same_logits(plan.content, tmp_path / "out")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "out" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RunError, match="does not read back as planned"):
        verify(plan.content, tmp_path / "out", "none")


def test_code_in_the_folder_is_not_run_unasked(tmp_path):
    run = copied("one_rank", tmp_path)
    (role_of(run) / "huggingface" / "modeling_tiny.py").write_text("raise SystemExit('ran')")
    with pytest.raises(UserError, match=r"holds code of its own, which this would run: modeling_tiny\.py"):
        plan_merge(run, tmp_path / "out")
    plan_merge(run, tmp_path / "out", trust_remote_code=True)  # the config does not name it


@pytest.mark.parametrize("case", ["tied_two_ranks", "bf16_four_ranks", "moe_replicated", "fsdp1_two_ranks"])
def test_any_rows_are_those_of_the_whole_tensor(case):
    """Blocks that begin and end within a rank's piece, at its edges, and span several."""
    source = recognise(FIXTURES / case, SourceOptions())
    for name, tensor in truth(case).items():
        for start in range(len(tensor)):
            for stop in range(start, len(tensor) + 1):
                assert torch.equal(source.rows(name, start, stop), tensor[start:stop]), (name, start, stop)


def test_pieces_along_another_dimension_are_joined(tmp_path):
    """As FSDP2's shard_placement_fn leaves them."""
    run = copied("tied_two_ranks", tmp_path)
    whole = truth("tied_two_ranks")["model.layers.0.mlp.down_proj.weight"]
    for rank, part in enumerate(whole.chunk(2, dim=1)):
        path = role_of(run) / f"model_world_size_2_rank_{rank}.pt"
        state = torch.load(path, weights_only=False)
        tensor = state["model.layers.0.mlp.down_proj.weight"]
        tensor._local_tensor = part.contiguous()
        tensor._spec.placements = (Shard(1),)
        torch.save(state, path)
    source = recognise(run, SourceOptions())
    assert torch.equal(source.rows("model.layers.0.mlp.down_proj.weight", 2, 7), whole[2:7])


def test_a_target_that_is_a_link_or_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    with pytest.raises(UserError, match="link is a link"):
        plan_merge(FIXTURES / "one_rank", tmp_path / "link")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        plan_merge(FIXTURES / "one_rank", tmp_path / "file" / "out")


def test_what_is_looked_for_is_told(tmp_path):
    (tmp_path / "model.bin").write_text("")
    with pytest.raises(UserError, match=r"it holds model\.bin") as refused:
        plan_merge(tmp_path, tmp_path / "out")
    assert "model_world_size_W_rank_R.pt (veRL FSDP)" in refused.value.hint


@pytest.mark.slow
def test_the_job_reports_a_foreign_source_and_leaves_no_trace_of_a_refused_one(tmp_path):
    def job(source: Path, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "verl_core.checkpoint.merge_job", str(source), "--json", *words]
        return subprocess.run([*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, timeout=120)

    run = copied("tied_two_ranks", tmp_path)
    (role_of(run) / "model_world_size_2_rank_1.pt").unlink()
    done = job(run)
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (1, 1)
    assert "model_world_size_2_rank_1.pt is missing" in done.stderr and not list(tmp_path.glob("*out*"))
    done = job(FIXTURES / "tied_two_ranks", "--max_file_bytes", "500")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["source"], report["step"], report["verify"]) == ("veRL FSDP2, 2 ranks", 3, "logits")
    same(loaded(tmp_path / "out"), truth("tied_two_ranks"))
    assert (tmp_path / "out" / "model.safetensors.index.json").is_file()
