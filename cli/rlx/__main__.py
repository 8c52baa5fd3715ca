"""`python -m rlx`: the same command as `rlx`, for places where only an interpreter is at hand."""

from rlx.main import main

main()
