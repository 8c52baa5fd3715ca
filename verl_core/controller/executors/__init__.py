"""Executors place workers and carry calls to them: `local` (one rank, in this process, where a debugger works) and
`ray` (two ranks or more, on one machine or many). The worker's code is the same under both."""

from verl_core.controller.executors.base import Executor, WorkerGroup

__all__ = ["Executor", "WorkerGroup"]
