"""Checkpoints that other programs wrote, read for `rlx merge`.

`recognise` (recognise.py) tells by its content what a folder is and gives a `ForeignSource` (source.py): the tensors by
their Hugging Face names, read a block of rows at a time. One file a format. Files that are pickles are read by
restricted_pickle.py, which builds plain records and runs nothing.
"""
