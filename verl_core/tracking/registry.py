"""Every metric a run can log: its name, unit and meaning. docs/metrics.md is made from this table by

    python -m verl_core.tracking.registry > docs/metrics.md

Names are veRL's where the thing is the same. In a name `{a,b}` stands for either, `<x>` for any text. Values that
cannot repeat from run to run stand only under the prefixes of UNREPEATABLE; all others repeat bitwise with the same
seed, configuration and device.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

UNREPEATABLE = ("timing_s/", "timing_per_token_ms/", "perf/")


@dataclass(frozen=True)
class Metric:
    """One name or family of names."""

    name: str
    unit: str
    meaning: str

    @property
    def repeatable(self) -> bool:
        return not self.name.startswith(UNREPEATABLE)

    def matches(self, name: str) -> bool:
        return _pattern(self.name).fullmatch(name) is not None


@cache
def _pattern(name: str) -> re.Pattern[str]:
    parts = re.split(r"(\{[^}]*\}|<[^>]*>)", name)
    as_regex = {"{": lambda p: "(?:" + "|".join(map(re.escape, p[1:-1].split(","))) + ")", "<": lambda p: ".+"}
    return re.compile("".join(as_regex.get(p[:1], re.escape)(p) for p in parts))


SECTIONS: dict[str, tuple[Metric, ...]] = {
    "Reward": (
        Metric("critic/score/{mean,max,min}", "reward", "the scorer's reward of the step's answers"),
        Metric(
            "critic/rewards/{mean,max,min}", "reward", "the same less the KL penalty (`algorithm.use_kl_in_reward`)"
        ),
        Metric("reward/failed", "answers", "answers whose scorer raised, crashed or ran out of time; each counts as 0"),
        Metric("reward/timeouts", "answers", "those of them that ran out of time (`reward.timeout_s`)"),
        Metric("reward/<part>/failed", "answers", "answers on which a part of `reward.scorers` failed; it counts as 0"),
        Metric(
            "reward/<part>/mean",
            "part's own",
            "mean of a part that the scorer returned beside its score; `overlong`: the length penalty; `length`: the "
            "term of `reward.length_shaping`",
        ),
    ),
    "Validation": (
        Metric("val/test_score/<data_source>", "reward", "mean reward of the held-out answers"),
        Metric(
            "val/acc/<data_source>",
            "share",
            "right answers, where the scorer says what is right; pairs in the right order, where answers are read",
        ),
        Metric("val/loss/<data_source>", "nats", "the algorithm's loss on held-out examples, where answers are read"),
        Metric("val/response_length/<data_source>", "tokens", "mean length of the held-out answers"),
        Metric("val-core/<data_source>/reward/mean@<n>", "reward", "mean over a prompt's n answers, n > 1"),
        Metric("val-core/<data_source>/reward/best@<n>", "reward", "the best of a prompt's n answers"),
        Metric("val-core/<data_source>/reward/maj@<n>", "reward", "reward of the answer given most often among n"),
    ),
    "Policy": (
        Metric("actor/loss", "nats", "the whole loss: policy, KL and entropy terms"),
        Metric("actor/pg_loss", "nats", "policy-gradient term"),
        Metric("actor/pg_clipfrac", "share", "tokens whose ratio was clipped"),
        Metric("actor/pg_clipfrac_lower", "share", "tokens bounded by the dual clip (`actor.clip_ratio_c`)"),
        Metric("actor/ppo_kl", "nats", "mean old minus new log-prob of the sampled tokens (k1)"),
        Metric("actor/entropy", "nats", "mean entropy of the next-token distribution"),
        Metric("actor/entropy_coeff", "", "weight of the entropy bonus in the step"),
        Metric("actor/positive_lm_loss", "nats", "cross entropy of the right answers (`actor.positive_lm_coef`)"),
        Metric("actor/kl_loss", "nats", "KL to the reference in the loss (`actor.use_kl_loss`)"),
        Metric("actor/reward_kl_penalty", "nats", "KL to the reference in the reward (`algorithm.use_kl_in_reward`)"),
        Metric("actor/reward_kl_penalty_coeff", "", "its coefficient, which `algorithm.kl_ctrl` may steer"),
        Metric("actor/grad_norm", "", "norm of the whole gradient before clipping"),
        Metric("actor/lr", "", "learning rate of the step"),
        Metric("actor/skipped_steps", "steps", "optimizer steps left out because the gradient was not finite"),
    ),
    "Preferences": (
        Metric(
            "actor/rewards/{chosen,rejected}",
            "nats",
            "mean implicit reward: `algorithm.preference.beta` times the answer's log-ratio to the reference; simpo: "
            "times its mean log-prob a token; sppo, orpo: without beta",
        ),
        Metric("actor/rewards/margin", "nats", "how far answers are on the right side, as the loss measures it"),
        Metric("actor/rewards/accuracy", "share", "pairs, or answers (kto, sppo), whose margin is above 0"),
        Metric("actor/rewards/ties", "share", "prompts left out because all of their answers have one reward"),
        Metric("val/margin/<data_source>", "", "<role>/rewards/margin of the held-out pairs, or answers"),
    ),
    "Distillation": (
        Metric("distillation/loss", "nats", "the KL to the teacher as `distillation.loss_mode` has it, a token"),
        Metric("distillation/reverse_kl", "nats", "mean log-prob of sampled tokens, student's less teacher's"),
        Metric("distillation/teacher_logp", "nats", "mean log-prob of the sampled tokens under the teacher"),
        Metric("distillation/topk_mass", "share", "what the teacher's `distillation.topk` likeliest tokens have of it"),
        Metric("distillation/{reverse_kl,teacher_logp,topk_mass}/<teacher>", "", "the same of one of several teachers"),
    ),
    "Reward model": (
        Metric("reward_model/loss", "nats", "the whole loss"),
        Metric("reward_model/accuracy", "share", "prime: answers that it judges as the scorer does"),
        Metric("reward_model/process_reward", "nats", "prime: mean process reward of the produced tokens"),
        Metric("reward_model/kept_prompts", "share", "prime: prompts within the accuracy bounds"),
        Metric("reward_model/rewards/{chosen,rejected}", "reward", "mean of the answers of either side of the pairs"),
        Metric("reward_model/rewards/margin", "reward", "mean of the chosen answer's less the rejected one's"),
        Metric("reward_model/rewards/accuracy", "share", "pairs whose chosen answer has the larger reward"),
        Metric("reward_model/grad_norm", "", "norm of the whole gradient before clipping"),
        Metric("reward_model/lr", "", "learning rate of the step"),
        Metric("reward_model/skipped_steps", "steps", "optimizer steps left out because the gradient was not finite"),
    ),
    "Critic": (
        Metric("critic/loss", "reward²", "the whole loss"),
        Metric("critic/vf_loss", "reward²", "half the squared error of the values, clipped"),
        Metric("critic/vf_clipfrac", "share", "tokens whose value was clipped (`critic.cliprange_value`)"),
        Metric("critic/vpred_mean", "reward", "mean predicted value"),
        Metric("critic/vf_explained_var", "share", "variance of the returns that the values explain; 1 is perfect"),
        Metric("critic/advantages/{mean,max,min}", "", "advantages of the produced tokens"),
        Metric("critic/returns/{mean,max,min}", "reward", "returns of the produced tokens"),
        Metric("critic/values/{mean,max,min}", "reward", "values before the update"),
        Metric("critic/grad_norm", "", "norm of the whole gradient before clipping"),
        Metric("critic/lr", "", "learning rate of the step"),
        Metric("critic/skipped_steps", "steps", "optimizer steps left out because the gradient was not finite"),
    ),
    "Dynamic sampling": (
        Metric("filter_groups/gen_batches", "batches", "training batches of prompts that the step generated"),
        Metric("filter_groups/dropped", "groups", "groups left out because their answers were all worth the same"),
        Metric("filter_groups/surplus", "groups", "groups kept for the next step"),
        Metric(
            "filter_groups/stale_tokens", "tokens", "tokens of the batch that older weights sampled, from a surplus"
        ),
        Metric("filter_groups/score/mean", "reward", "mean reward of all answers the step generated, dropped ones too"),
    ),
    "Lengths": (
        Metric("response_length/{mean,max,min}", "tokens", "everything after the prompt, tool text included"),
        Metric("response_length/clip_ratio", "share", "answers cut off at `data.max_response_length`"),
        Metric("response/aborted_ratio", "share", "sequences in which the model produced nothing"),
        Metric("response/nan", "answers", "answers that NaN in the engine cut short; what they had counts"),
        Metric("response/nan_tokens", "tokens", "tokens left out because the engine's log-prob is not a finite number"),
        Metric("prompt_length/{mean,max,min}", "tokens", "prompts, chat template included"),
    ),
    "Training": (
        Metric("training/global_step", "steps", "steps taken; the line's `step`"),
        Metric("training/epoch", "epochs", "pass over the training prompts, from 0"),
        Metric("training/epoch/<source>", "epochs", "the same of a source of `data.mixture`"),
        Metric("training/curriculum_prompts", "prompts", "what `data.curriculum` has in this epoch"),
        Metric("training/curriculum_prompts/<source>", "prompts", "the same of a source of `data.mixture`"),
        Metric("rollout/restarts", "engines", "rollout engines started again in this process, failed starts too"),
    ),
    "Engine and trainer": (
        Metric(
            "training/rollout_logp_diff_{mean,max}", "nats", "|trainer - rollout engine| of log-probs, same weights"
        ),
        Metric("training/rollout_probs_diff_{mean,max}", "", "the same of probabilities"),
        Metric(
            "training/rollout_actor_probs_pearson_corr", "", "correlation of the two sides' probabilities; 1 is equal"
        ),
        Metric("rollout_corr/kl", "nats", "KL(engine, trainer) a token, mean of engine less trainer log-prob (k1)"),
        Metric("rollout_corr/k3_kl", "nats", "the same by k3, which is never negative"),
        Metric("rollout_corr/{training,rollout}_ppl", "", "mean over sequences of the perplexity on either side"),
        Metric("rollout_corr/ppl_ratio", "", "mean over sequences of trainer's over engine's perplexity"),
        Metric("rollout_corr/log_ppl_{diff,abs_diff}", "nats", "the same as difference of logarithms, and its size"),
        Metric(
            "rollout_corr/chi2_{token,seq}", "", "mean squared ratio trainer / engine less 1, of tokens, of sequences"
        ),
        Metric(
            "rollout_corr/rollout_is_{mean,std,min,max}", "", "importance weights as used (`rollout_is`), over tokens"
        ),
        Metric("rollout_corr/rollout_is_seq_{mean,min,max}", "", "the same of each sequence's mean weight"),
        Metric("rollout_corr/rollout_is_ratio_fraction_{high,low}", "share", "tokens whose ratio is beyond a bound"),
        Metric("rollout_corr/rollout_is_oob_ratio", "share", "tokens dropped because it is beyond either (low_high)"),
        Metric("rollout_corr/rollout_is_eff_sample_size", "share", "1 where all weights are equal"),
        Metric("rollout_corr/rollout_is_batch_norm_factor", "", "mean that the weights were divided by"),
        Metric("rollout_corr/rollout_rs_masked_fraction", "share", "tokens that `rollout_rs` rejected"),
        Metric("rollout_corr/rollout_rs_seq_masked_fraction", "share", "sequences that lost at least one token"),
        Metric("rollout_corr/rollout_rs_<rule>_masked_fraction", "share", "the same by rule"),
        Metric("rollout_corr/rollout_rs_<rule>_seq_masked_fraction", "share", "the same by rule"),
    ),
    "Warm-up (warmup.jsonl)": (
        Metric("warmup/loss", "nats", "cross entropy of the demonstrations' answers"),
        Metric("warmup/phase", "", "number of the phase, from 0"),
        Metric("warmup/{grad_norm,lr,skipped_steps}", "", "as the actor's"),
    ),
    "Time and hardware": (
        Metric("timing_s/gen", "s", "answers generated and scored, or read"),
        Metric("timing_s/reward", "s", "scoring alone, where it does not overlap generation"),
        Metric("timing_s/old_log_prob", "s", "old log-probs recomputed by the trainer (`rollout.old_log_prob`)"),
        Metric("timing_s/ref", "s", "log-probs of the reference"),
        Metric("timing_s/values", "s", "values of the critic"),
        Metric("timing_s/teacher", "s", "log-probs of the teachers"),
        Metric(
            "timing_s/reward_model",
            "s",
            "scores of reward.reward_model; log-probs of prime's reward model and of its reference",
        ),
        Metric("timing_s/adv", "s", "advantages"),
        Metric("timing_s/update_{actor,critic,reward_model}", "s", "optimizer steps"),
        Metric("timing_s/update_weights", "s", "new weights to the rollout engine"),
        Metric("timing_s/testing", "s", "validation"),
        Metric("timing_s/save_checkpoint", "s", "waiting for the checkpoint of the step before"),
        Metric("timing_s/step", "s", "the whole step, wall clock"),
        Metric(
            "timing_per_token_ms/{gen,old_log_prob,ref,values,teacher,reward_model,adv,update_actor,update_critic,"
            "update_reward_model}",
            "ms",
            "a phase's time over its tokens: produced ones for gen, all for the others",
        ),
        Metric("perf/total_num_tokens", "tokens", "prompts and responses of the step, all ranks"),
        Metric("perf/time_per_step", "s", "as timing_s/step"),
        Metric("perf/throughput", "tokens/s", "total_num_tokens / time_per_step on each rank"),
        Metric("perf/tokens_per_s_per_gpu", "tokens/s", "the same number by NeMo-RL's name"),
        Metric(
            "perf/mfu/{actor,critic,reward_model}",
            "share",
            "of the ranks' peak FLOP/s: FLOPs of the model in the update, none counted twice for recomputation, over "
            "the phase's time; null where the peak is not known",
        ),
        Metric("perf/mfu/{actor_infer,ref,values}", "share", "the same of the passes old_log_prob, ref and values"),
        Metric("perf/mfu/{teacher,reward_model_infer}", "share", "the same of the passes teacher and reward_model"),
        Metric(
            "perf/memory/<phase>/peak_gb",
            "GiB",
            "most that was allocated within rollout, old_log_prob, ref, values, teacher, update_<role>, push or "
            "checkpoint (the one after the step before), on the rank that had most; on a CPU all resident memory",
        ),
        Metric("perf/memory/<phase>/resident_gb", "GiB", "what was still allocated after it"),
        Metric(
            "perf/memory/residue_gb",
            "GiB",
            "what a rank still kept of its GPU after param_offload or optimizer_offload had sent away what they name",
        ),
        Metric(
            "perf/max_memory_{allocated,reserved}_gb",
            "GiB",
            "peak of the run so far, on the rank that had most; on a CPU the resident peak",
        ),
    ),
}


def find(name: str) -> Metric | None:
    """The registry's entry for a logged name; None: unknown. A literal entry wins over one with a placeholder."""
    found = [m for section in SECTIONS.values() for m in section if m.matches(name)]
    return min(found, key=lambda m: "<" in m.name, default=None)


def check_known(names: Iterable[str]) -> None:
    """Raises ValueError naming every metric the registry lacks. For tests: a run never stops over a name."""
    unknown = sorted(name for name in names if name != "step" and find(name) is None)
    if unknown:
        raise ValueError(f"not in verl_core/tracking/registry.py: {', '.join(unknown)}")


def markdown() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "<!-- Made from verl_core/tracking/registry.py: python -m verl_core.tracking.registry > docs/metrics.md -->",
        "",
        "One JSON object a step in `metrics.jsonl`, key `step` first; the same numbers go to every tracker of",
        "`trainer.logger`. Names are veRL's where the thing is the same; `{a,b}` is either, `<x>` any text.",
        "A number that is not finite is written as null. Step 0 is the validation before the first step.",
        "",
        f"Only values under {', '.join(f'`{p}`' for p in UNREPEATABLE)} differ between two runs with the same seed,",
        "configuration and device; all others are bitwise equal, also across `kill -9` and `--resume`.",
    ]
    for title, metrics in SECTIONS.items():
        lines += ["", f"## {title}", "", "| metric | unit | meaning |", "|---|---|---|"]
        lines += [f"| `{m.name}` | {m.unit} | {m.meaning} |" for m in metrics]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
