"""The rlx command."""
