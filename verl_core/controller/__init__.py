"""The single controller: it owns the order of events and no tensors of a model.

`trainer.py` is the top loop, on one page; `job.py` is what the command becomes; `sources.py` and `buffer.py` bring
scored groups; `roles.py` speaks to the ranks through `executors/`; `worker.py` is what runs on a rank. Every call to a
rank is awaited, so a mode that overlaps generation and updates needs no new loop.
"""
