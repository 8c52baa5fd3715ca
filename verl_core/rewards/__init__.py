"""Rewards: rules and models that score answers, and the processes that run the rules.

- A rule is a file of its own (`gsm8k`, `qa`, `countdown`, ...) with veRL's `compute_score(data_source, solution_str,
  ground_truth, extra_info=None)` and keywords of its own. What rules share: `final_answer` and `boxed` find an answer,
  `numbers`, `plain_text`, `arithmetic` and `mathematics/` read it.
- `compose.Scorers` adds up the parts of `reward.scorers`: rules in `pool.ScorerPool`, where no answer can stop a run,
  and the models of `models/`. `registry` finds the rule of a data source, or the user's own.
- `sandbox/` runs programs for the rule `code`.
- `length` and `overlong` are terms that the controller adds, because they need lengths in tokens, and whole groups.

Nothing here imports torch.
"""
