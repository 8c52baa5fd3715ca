"""What a batch says about itself: rewards, advantages, values and lengths, under veRL's metric names."""

from __future__ import annotations

from torch import Tensor

from verl_core.algorithms.advantages import sequence_rewards
from verl_core.algorithms.produced import produced
from verl_core.batch import Batch


def batch_metrics(batch: Batch, scored: bool = True) -> dict[str, float]:
    """Numbers for every batch, also an empty one or one in which nothing was produced (0 for what has no entries).
    `scored`: its answers were generated and scored, not read from a data set, of which only lengths are told.

    critic/{score,rewards}/{mean,max,min} over sequences: reward_S, and that less the KL penalty.
    critic/{advantages,returns,values}/{mean,max,min} over produced tokens, for the columns present; with both returns
    and values critic/vf_explained_var = 1 - var(returns - values) / var(returns).
    response_length/{mean,max,min} and prompt_length/{mean,max,min}, tokens; a response is everything after the prompt,
    tool text included. response_length/clip_ratio: share of answers cut off at a limit, by finish reason.
    response/aborted_ratio: share of sequences in which nothing was produced. response/nan_tokens: log-probs of the
    engine that are no finite numbers, with rollout_logp_N.
    """
    at = produced(batch)
    response_S = batch.length_S - batch["prompt_len_S"]
    metrics = {
        **_spread("response_length", response_S),
        "response_length/clip_ratio": _mean(batch["truncated_S"]),
        **_spread("prompt_length", batch["prompt_len_S"]),
    }
    if not scored:
        return metrics
    metrics |= {
        **_spread("critic/score", batch["reward_S"]),
        **_spread("critic/rewards", sequence_rewards(batch)),
        "response/aborted_ratio": _mean(at.count_S == 0),
    }
    if "rollout_logp_N" in batch:
        metrics["response/nan_tokens"] = float((~batch["rollout_logp_N"].isfinite()).sum())
    for name in ("advantages", "returns", "values"):
        if f"{name}_N" in batch:
            metrics |= _spread(f"critic/{name}", at.pick(batch[f"{name}_N"]))
    if "returns_N" in batch and "values_N" in batch:
        metrics["critic/vf_explained_var"] = explained_variance(at.pick(batch["values_N"]), at.pick(batch["returns_N"]))
    return metrics


def explained_variance(predicted_M: Tensor, target_M: Tensor) -> float:
    """1 - var(target - predicted) / var(target): 1 is perfect, 0 no better than a constant. 0 where the targets vary by
    no more than float32 rounding, so that there is nothing to explain."""
    if len(target_M) < 2:
        return 0.0
    target_M, predicted_M = target_M.double(), predicted_M.double()
    total = float(target_M.var())
    return 1 - float((target_M - predicted_M).var()) / total if total > 1e-10 else 0.0


def _mean(value: Tensor) -> float:
    return float(value.double().mean()) if len(value) else 0.0


def _spread(name: str, value: Tensor) -> dict[str, float]:
    if len(value) == 0:
        return {f"{name}/{how}": 0.0 for how in ("mean", "max", "min")}
    return {f"{name}/mean": _mean(value), f"{name}/max": float(value.max()), f"{name}/min": float(value.min())}
