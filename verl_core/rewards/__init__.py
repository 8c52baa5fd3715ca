"""Rewards: rules that score one answer, and the pool of processes that runs them.

One file a task family (`gsm8k`, `show_your_work`), each with veRL's `compute_score(data_source, solution_str,
ground_truth, extra_info=None)`; `registry` finds the rule of a data source or the user's own; `pool.ScorerPool` runs
rules with a hard time limit an answer, so that no rule can stop a run. Nothing here imports torch.
"""
