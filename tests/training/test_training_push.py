"""Weights pushed in place: the rollout engine samples from exactly the distribution the trainer computes."""

import pytest
import torch
from training_tiny import VOCAB, NllEntropy, make_batch, make_engine, totals, write_model

from verl_core.algorithms.loss import Need
from verl_core.batch import Batch
from verl_core.config.errors import RunError
from verl_core.config.schema import ModelConfig
from verl_core.models.pretrained import load_hf_config
from verl_core.rollout.hf import HfEngine
from verl_core.rollout.protocol import Sampling, TokenRequest
from verl_core.weights.inplace import push


def test_engine_log_probs_equal_the_trainers_after_every_push(tmp_path):
    folder = write_model(tmp_path)
    engine, batch = make_engine(folder), make_batch()
    config = load_hf_config(ModelConfig(path=str(folder)))
    limits = {"max_num_seqs": 4, "max_model_len": 32, "eos_ids": ()}
    rollout = HfEngine(config, None, device="cpu", dtype=torch.float32, **limits)
    prompts = [tuple(range(1, 4 + i)) for i in range(6)]
    sampling = Sampling(max_tokens=8)
    requests = [TokenRequest(str(i), str(i), ids, sampling, seed=i) for i, ids in enumerate(prompts)]
    seen = []
    for version in (1, 2):
        push(engine, rollout, version)
        answers = rollout.generate(requests)
        assert all(set(a.versions) == {version} and max(a.ids) < VOCAB for a in answers)
        rows = [list(p) + a.ids for p, a in zip(prompts, answers, strict=True)]
        together = Batch(torch.tensor([len(r) for r in rows]), torch.arange(len(rows)), {})
        prompt_N = torch.repeat_interleave(torch.tensor([len(p) for p in prompts]), together.length_S)
        together.add(ids_N=torch.tensor([i for r in rows for i in r]), mask_N=together.position_N >= prompt_N)
        trainer = engine.forward(together, frozenset({Need.LOGP}))[Need.LOGP][together["mask_N"]]
        sampled = torch.tensor([x for a in answers for x in a.logps])
        torch.testing.assert_close(sampled, trainer, rtol=0, atol=1e-5)
        seen.append(sampled)
        engine.step(batch, NllEntropy(), totals(batch))
    assert not torch.equal(*seen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_verified_push_of_tied_weights_names_what_the_engine_generates_with_instead(tmp_path, monkeypatch, dtype):
    """In the trainer's dtype its tensors are the engine's, all but the fused ones; in another one all are copies."""
    folder = write_model(tmp_path, tie_word_embeddings=True)
    engine = make_engine(folder)
    config = load_hf_config(ModelConfig(path=str(folder)))
    rollout = HfEngine(config, None, device="cpu", dtype=dtype, max_num_seqs=4, max_model_len=32, eos_ids=())
    push(engine, rollout, 1, verify=True)
    load = type(rollout._decoder).load
    stale = [name for name, _ in engine.named_weights() if name.endswith("1.self_attn.k_proj.weight")]

    def forgets_one(decoder, weights):
        load(decoder, weights | {name: torch.zeros_like(weights[name]) for name in stale})

    monkeypatch.setattr(type(rollout._decoder), "load", forgets_one)
    with pytest.raises(RunError, match=rf"holds other bytes than were sent: {stale[0]}"):
        push(engine, rollout, 2, verify=True)
