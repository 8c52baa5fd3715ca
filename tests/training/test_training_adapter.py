"""The engine with an adapter: what is trained, what the reference is, and what the rollout engine is given."""

import pytest
import torch
from training_tiny import NllEntropy, make_batch, make_engine, totals, weights, write_model
from transformers import AutoModelForCausalLM

from verl_core.algorithms.loss import Need
from verl_core.config.schema import FsdpConfig, OptimConfig
from verl_core.training.protocol import MicroBatching

LOGP = frozenset({Need.LOGP})
RANK = {"lora_rank": 4, "lora_alpha": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def adapted(folder, **options):
    return make_engine(folder, model=RANK | options.pop("model", {}), **options)


def logp(engine):
    return engine.forward(make_batch(), LOGP)[Need.LOGP]


def steps(engine, count=3):
    return [engine.step(make_batch(), NllEntropy(), totals(make_batch())) for _ in range(count)]


def test_only_the_adapter_is_trained(folder):
    engine = adapted(folder)
    before = {name: p.detach().clone() for name, p in engine.model.named_parameters()}
    losses = [metrics["actor/loss"] for metrics in steps(engine)]
    assert losses[2] < losses[1] < losses[0]
    for name, p in engine.model.named_parameters():
        assert torch.equal(p, before[name]) == ("lora_" not in name), name
    size = sum(p.numel() for name, p in before.items() if "lora_" in name)
    assert engine.parameter_counts() == (size, sum(p.numel() for p in before.values()))
    state = engine.state()
    assert sum(t.numel() for t in state.weights.values()) == size
    assert sum(t.numel() for t in state.optimizer.values()) == 2 * size
    assert state.weights.keys() == dict(engine.named_shards()).keys()


@pytest.mark.parametrize("fsdp", [FsdpConfig(), FsdpConfig(dtype="bfloat16")], ids=["float32", "bfloat16"])
def test_the_reference_is_the_base_at_no_extra_memory(folder, fsdp):
    engine = adapted(folder, fsdp=fsdp)
    engine.snapshot("ref")
    assert engine.snapshots == {"ref": None}
    with engine.use("ref"):  # the first forward of all: training must still work after it
        first = logp(engine)
    assert torch.equal(first, logp(make_engine(folder, fsdp=fsdp)))
    steps(engine)
    trained = logp(engine)
    assert not torch.equal(trained, first)
    with engine.use("ref"):
        assert torch.equal(logp(engine), first)
    assert torch.equal(logp(engine), trained)
    engine.drop("ref")
    with pytest.raises(KeyError):
        engine.use("ref")


def test_other_snapshots_are_of_the_adapter(folder):
    engine = adapted(folder)
    steps(engine, 1)
    engine.snapshot("then")
    then, kept = logp(engine), sum(t.numel() for t in engine.snapshots["then"].values())
    assert kept == engine.parameter_counts()[0]
    steps(engine, 1)
    with engine.use("then"):
        assert torch.equal(logp(engine), then)
    assert not torch.equal(logp(engine), then)


def test_what_is_pushed_computes_the_same_and_leaves_training_as_it_was(folder):
    engine, other = adapted(folder), adapted(folder)
    steps(engine), steps(other)
    pushed = weights(engine)
    assert list(pushed) == [name for name, _ in make_engine(folder).named_weights()]
    assert logp(engine).equal(logp(other)) and steps(engine, 1) == steps(other, 1)

    plain = AutoModelForCausalLM.from_pretrained(folder)
    changed = {name for name, p in plain.named_parameters() if not torch.equal(p, pushed[name])}
    assert changed == {name for name in pushed if name.endswith("_proj.weight")}
    plain.load_state_dict(pushed, strict=False)
    plain.save_pretrained(folder.parent / "folded")
    fresh = adapted(folder)
    steps(fresh)
    torch.testing.assert_close(logp(make_engine(folder.parent / "folded")), logp(fresh), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"checkpointing": True}, {"micro": MicroBatching(sequences=1)}, {"micro": MicroBatching(tokens=13)}],
    ids=str,
)
def test_checkpointing_and_micro_batches_change_nothing(folder, options):
    one, other = adapted(folder), adapted(folder, **options)
    for want, got in zip(steps(one), steps(other), strict=True):
        assert got == pytest.approx(want, rel=1e-5)
    for (name, a), b in zip(weights(one).items(), weights(other).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)


def test_below_a_float32_adapter_the_base_is_kept_as_it_is_computed_with(folder):
    engine = adapted(folder, fsdp=FsdpConfig(dtype="bfloat16"), checkpointing=True)
    dtypes = {("lora_" in name, p.dtype) for name, p in engine.model.named_parameters()}
    assert dtypes == {(True, torch.float32), (False, torch.bfloat16)}
    got, want = steps(engine), steps(adapted(folder))
    assert [m["actor/loss"] for m in got] == pytest.approx([m["actor/loss"] for m in want], rel=2e-2)
    assert {t.dtype for t in engine.state().optimizer.values()} == {torch.float32}
    engine.offload("cpu")
    engine.offload("device")
    assert steps(engine, 1)[0]["actor/loss"] < got[-1]["actor/loss"]


def test_muon_trains_it_whole(folder):
    engine = adapted(folder, optim=OptimConfig(optimizer="muon", muon_lr=0.02))
    losses = [metrics["actor/loss"] for metrics in steps(engine)]
    assert losses[2] < losses[0] and len(engine.optimizers) == 1


@pytest.mark.slow  # torch.compile calls a C++ compiler here: about a minute
def test_a_compiled_engine_equals_a_plain_one_with_and_without_its_adapter(folder):
    plain, compiled = adapted(folder), adapted(folder, fsdp=FsdpConfig(use_torch_compile=True))
    for engine in (plain, compiled):
        engine.snapshot("ref")
    for _ in range(2):
        with plain.use("ref"), compiled.use("ref"):
            torch.testing.assert_close(logp(compiled), logp(plain), rtol=1e-5, atol=1e-5)
        assert steps(compiled, 1)[0]["actor/grad_norm"] == pytest.approx(
            steps(plain, 1)[0]["actor/grad_norm"], rel=1e-4
        )
