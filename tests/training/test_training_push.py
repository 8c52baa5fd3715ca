"""Weights pushed in place: the rollout engine samples from exactly the distribution the trainer computes."""

import torch
from training_tiny import VOCAB, NllEntropy, make_batch, make_engine, totals, write_model

from verl_core.algorithms.loss import Need
from verl_core.batch import Batch
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
