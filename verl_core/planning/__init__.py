"""Estimates of memory, communication and time for a configuration, without a GPU or weights (filled by `rlx plan`)."""
