"""Looking at data files before a run does: what `rlx data show`, `stats` and `check` become.

`subject.py` reads files as a run would, `figures.py` counts, `faults.py` finds what is wrong, `view.py` shows rows.
"""
