"""Estimates of memory, communication and time for a configuration, without a GPU or weights; empty in this release."""
