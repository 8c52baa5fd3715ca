"""When two mathematical answers are the same.

`text` unifies spelling, `read` makes a value (`values`) of a text with `split`, `relations` and `units`, `expression`
reads one expression into a tree, `identity` compares trees by their values, `scalars`, `equations` and `equality` put
the verdict together, and `symbolic` asks math-verify what they leave open. `equality.same_answer` is the entry.
"""
