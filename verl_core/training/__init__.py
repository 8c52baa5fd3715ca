"""Training engines: what a loss may ask for, the `TrainEngine` protocol, and the FSDP2 engine on transformers models.

`protocol.py` is the border; `fsdp/` implements it. An engine knows no algorithm (it is handed a loss), and a loss never
sees logits (it is handed the per-token quantities it declared), so other back ends can serve the same losses.
"""
