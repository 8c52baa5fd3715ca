"""Only what changed: every rank of the trainer compares its own shards with what it sent last, bit for bit.

`codec.py` is the encoding of changes, `placement.py` knows where a shard lies in its tensor, `sender.py` and
`receiver.py` are the two ends.
"""
