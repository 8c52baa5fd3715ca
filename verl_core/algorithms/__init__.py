"""Pure functions on ragged batches: advantages, policy losses, KL estimators, aggregation, value loss.

`loss.py` is the border to the training engines. Nothing here imports transformers or Ray.
"""
