"""Rewards that a model gives: a reward model with one output (`reward_model`), and a language model that judges in
words (`judge`). Both are parts of the composition beside rules, with `check`, `score` and `close` as the scorer pool
has them. Nothing here imports torch: who computes is handed in."""
