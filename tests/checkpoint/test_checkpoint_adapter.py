"""An adapter's checkpoint: bitwise resume, peft reads it, a merge folds it or says why not."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from checkpoint_models import on_ranks, tiny_model
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from transformers import AutoModelForCausalLM

from verl_core.algorithms.loss import Need, Totals
from verl_core.batch import Batch
from verl_core.checkpoint import CheckpointStore, load_role, save_huggingface_files, save_role, state_bytes
from verl_core.checkpoint.adapter import settings_of
from verl_core.checkpoint.merge import check_contents, merge, plan_merge
from verl_core.config.errors import UserError
from verl_core.config.schema import ActorConfig, ModelConfig, OptimConfig
from verl_core.platforms import current
from verl_core.training.fsdp import FsdpEngine
from verl_core.training.protocol import EngineState, MicroBatching

IDS = torch.arange(1, 25)[None]


class Likelihood:
    """Mean of -logp."""

    temperature = 1.0
    needs = frozenset({Need.LOGP})

    def __call__(self, out, batch, totals):
        return -(out[Need.LOGP] * batch["mask_N"]).sum() / totals.tokens, {}


def engine(model: Path, **settings) -> FsdpEngine:
    settings = {"lora_rank": 4, "lora_alpha": 16, "enable_gradient_checkpointing": False, **settings}
    return FsdpEngine(
        ModelConfig(path=str(model), **settings),
        ActorConfig(optim=OptimConfig(lr=1e-2, eps=1e-3)),
        role="actor",
        platform=current("cpu"),
        micro=MicroBatching(sequences=4),
    )


def train(trained: FsdpEngine, steps: int) -> list[dict[str, float]]:
    length_S = torch.tensor([9, 4, 12, 2])
    ids_N = torch.randint(0, 97, (int(length_S.sum()),), generator=torch.Generator().manual_seed(0))
    mask_N = torch.cat([torch.arange(n) > 0 for n in length_S.tolist()])
    batch = Batch(length_S, torch.arange(4), {"ids_N": ids_N, "mask_N": mask_N})
    return [trained.step(batch, Likelihood(), Totals(tokens=int(mask_N.sum()), sequences=4)) for _ in range(steps)]


def save(trained: FsdpEngine, run: Path, step: int = 2) -> Path:
    with CheckpointStore(run / "checkpoints").saving(step, state_bytes(trained.state())) as folder:
        save_role(folder / "actor", trained.state())
        save_huggingface_files(folder / "actor", config=trained.model.config)
    return run / "checkpoints" / f"global_step_{step}"


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model.eval()(IDS).logits


def base_of(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny_model(True).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def trained(model: Path) -> FsdpEngine:
    """B is all ones after no training: the case of a merge that forgets it."""
    made = engine(model)
    with torch.no_grad():
        for name, parameter in made.adapter.trained().items():
            if "lora_B" in name:
                parameter.fill_(1)
    return made


def test_resumed_adapter_goes_on_bitwise(model, tmp_path):
    first = engine(model)
    train(first, 2)
    step = save(first, tmp_path / "run")
    second = engine(model)
    second.load_state(load_role(step / "actor", second.state()))
    assert train(first, 2) == train(second, 2)
    for (name, a), (_, b) in zip(first.named_weights(), second.named_weights(), strict=True):
        assert torch.equal(a, b), name
    assert not list((step / "actor").rglob("*embed_tokens*"))
    stored = {name for file in (step / "actor").rglob("*.safetensors") for name in load_file(file)}
    assert all("lora_" in name for name in stored)


def test_peft_reads_the_weights_of_a_checkpoint(model, trained, tmp_path):
    """Case K3: alpha, rank, targets and base as trained."""
    folder = save(trained, tmp_path / "run") / "actor" / "weights"
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 16, str(model))
    assert set(config["target_modules"]) == {f"{x}_proj" for x in ("q", "k", "v", "o", "gate", "up", "down")}
    read = PeftModel.from_pretrained(base_of(model), folder)
    torch.testing.assert_close(logits(read), logits(folded(model, trained)), rtol=0, atol=1e-5)
    assert settings_of(folder, ModelConfig(path=str(model))).lora_alpha == 16


def folded(model: Path, trained: FsdpEngine):
    """W + B A alpha / r written out."""
    whole = base_of(model)
    parts = {name: p.detach() for name, p in trained.adapter.trained().items()}
    with torch.no_grad():
        for name, weight in whole.named_parameters():
            stem = f"base_model.model.{name.removesuffix('.weight')}"
            if f"{stem}.lora_A.weight" in parts:
                weight += parts[f"{stem}.lora_B.weight"] @ parts[f"{stem}.lora_A.weight"] * 16 / 4
    return whole


@pytest.mark.parametrize("max_file_bytes", [1 << 30, 20_000])
def test_a_merge_folds_the_adapter(model, trained, tmp_path, max_file_bytes):
    """Case K4."""
    plan = plan_merge(save(trained, tmp_path / "run"), tmp_path / "out")
    check_contents(plan)
    merge(plan, max_file_bytes=max_file_bytes)
    got, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert {key: len(value) for key, value in report.items()} == dict.fromkeys(report, 0)
    want = folded(model, trained).state_dict()
    for name, tensor in got.state_dict().items():
        torch.testing.assert_close(tensor, want[name], rtol=1e-6, atol=1e-6, msg=name)
        changed = not torch.equal(tensor, base_of(model).state_dict()[name])
        assert changed == name.endswith("_proj.weight"), name
    assert got.lm_head.weight.data_ptr() == got.model.embed_tokens.weight.data_ptr()
    assert dict(trained.named_weights()).keys() == load_all(tmp_path / "out").keys()
    assert plan.report()["lora"] == "fold" and plan.report()["base"] == str(model) and plan.report()["kept"] == 1


def load_all(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("dtype", ["keep", "bf16"])
def test_a_merge_can_leave_the_adapter_to_peft(model, trained, tmp_path, dtype):
    plan = plan_merge(save(trained, tmp_path / "run"), tmp_path / "out", dtype=dtype, lora="adapter")
    merge(plan)
    assert {t.dtype for t in load_all(tmp_path / "out").values()} == {
        torch.bfloat16 if dtype == "bf16" else torch.float32
    }
    read = PeftModel.from_pretrained(base_of(model), tmp_path / "out")
    exact = 1e-5 if dtype == "keep" else 0.5
    torch.testing.assert_close(logits(read), logits(folded(model, trained)), rtol=0, atol=exact)
    assert plan.report()["lora"] == "adapter" and not (tmp_path / "out" / "config.json").exists()


def test_a_merge_that_would_be_the_base_is_refused(model, tmp_path):
    untrained = save(engine(model), tmp_path / "untrained", step=1)
    with pytest.raises(UserError, match=r"the adapter is still zero .*would be .*/model"):
        plan_merge(untrained, tmp_path / "out")
    half = tiny_model(True, torch.bfloat16)
    for parameter in half.parameters():
        parameter.data[parameter == 0] = 0.01  # to a zero even the smallest change is one
    half.save_pretrained(tmp_path / "half")
    tiny = engine(tmp_path / "half")
    with torch.no_grad():
        for name, parameter in tiny.adapter.trained().items():
            if "lora_B" in name:
                parameter.fill_(1e-20)
    step = save(tiny, tmp_path / "rounded")
    with pytest.raises(UserError, match=r"rounding to bfloat16 leaves 0.00% of the adapter") as refused:
        merge(plan_merge(step, tmp_path / "out"))
    assert "--dtype fp32" in refused.value.hint and sorted(p.name for p in tmp_path.glob("*out*")) == []


def test_a_base_that_moved_or_changed_is_named(model, trained, tmp_path):
    step = save(trained, tmp_path / "run")
    model.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"is not at .*/model any more"):
        plan_merge(step, tmp_path / "out")
    tiny_model(True, vocabulary=50).save_pretrained(model)
    other = load_all(model)
    other["model.layers.0.mlp.up_proj.weight"] = torch.zeros(7, 7)
    del other["model.layers.1.mlp.up_proj.weight"]
    save_file(other, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"up_proj.weight is \[7, 7\], the adapter's is \[48, 32\].*absent"):
        plan_merge(step, tmp_path / "out")


def test_a_builtin_model_moves_with_its_run(trained, tmp_path):
    warm = tmp_path / "run" / "warmup"
    shutil.copytree(tmp_path / "model", warm)
    trained.adapter.config["base_model_name_or_path"] = str(warm)
    save(trained, tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    plan = plan_merge(tmp_path / "moved", tmp_path / "out")
    assert plan.report()["base"] == str(tmp_path / "moved" / "warmup")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_rank": 8, "lora_alpha": 16}, r"holds an adapter with r=4, what is to take it is an adapter with r=8"),
        ({"lora_alpha": 8}, r"lora_alpha=16, what is to take it is an adapter with lora_alpha=8"),
        ({"lora_rank": 0}, r"holds an adapter with r=4, what is to take it is a whole model"),
        ({"target_modules": ["q_proj"]}, r"mlp.down_proj.lora_A.weight is unknown to the model"),
    ],
)
def test_another_adapter_does_not_resume(model, trained, tmp_path, settings, message):
    step = save(trained, tmp_path / "run")
    other = engine(model, **settings)
    before = {name: tensor.clone() for name, tensor in other.named_weights()}
    with pytest.raises(UserError, match=message):
        load_role(step / "actor", other.state())
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.named_weights())


def test_a_whole_model_is_no_adapter(model, trained, tmp_path):
    step = save(engine(model, lora_rank=0), tmp_path / "run")
    with pytest.raises(UserError, match=r"holds a whole model, what is to take it is an adapter with r=4"):
        load_role(step / "actor", trained.state())
    with pytest.raises(UserError, match="holds a whole model and no adapter"):
        plan_merge(step, tmp_path / "out", lora="adapter")


def test_two_ranks_write_what_one_reads(model, trained, tmp_path):
    on_ranks(2, _save_on_two, tmp_path, trained.state())
    fresh = engine(model)
    state = load_role(tmp_path / "actor", fresh.state())
    for name, tensor in trained.state().weights.items():
        assert torch.equal(state.weights[name], tensor), name
    assert sorted(p.name for p in (tmp_path / "actor" / "weights").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    on_ranks(2, _load_on_two, tmp_path, trained.state())


def _on_two(state: EngineState, make) -> EngineState:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    spread = {
        name: distribute_tensor(make(tensor.detach()), mesh, [Shard(0)]) for name, tensor in state.weights.items()
    }
    return EngineState(spread, {}, state.scalars, state.adapter)


def _save_on_two(root: Path, state: EngineState) -> None:
    save_role(root / "actor", _on_two(state, torch.clone))


def _load_on_two(root: Path, state: EngineState) -> None:
    loaded = load_role(root / "actor", _on_two(state, torch.zeros_like))
    for name, tensor in state.weights.items():
        assert torch.equal(loaded.weights[name].full_tensor(), tensor), name
