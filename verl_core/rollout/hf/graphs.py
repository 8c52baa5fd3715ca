"""A decode step as CUDA graphs: hundreds of kernels for one launch by the host."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch


class StepGraphs:
    """Graphs of a step, one for each shape, in one memory pool. They hold the addresses of everything the step reads:
    `clear` when weights, cache or state lie elsewhere.

    Nothing that a step leaves behind may lie in memory it allocates: the graphs overwrite each other's.
    """

    def __init__(self, device: torch.device):
        self._device = device
        # One stream for good: cuBLAS keeps a workspace for each stream on which it was used.
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, shape: Hashable, step: Callable[[], None]) -> None:
        """Does `step` once. A shape's first time runs it on a side stream, which sets up what libraries need, and then
        records it; later times replay the record."""
        graph = self._graphs.get(shape)
        if graph is not None:
            graph.replay()
            return
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            step()
            self._graphs[shape] = self._record(step)
        here.wait_stream(self._stream)

    def _record(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        # Not `with torch.cuda.graph(...)`, which empties the allocator's cache each time. Other threads may use the GPU
        # meanwhile: only what this one does could spoil the record.
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            step()
        finally:
            graph.capture_end()
        return graph

    def clear(self) -> None:
        """Drops all graphs and gives their memory back, to other processes too."""
        if not self._graphs:
            return
        torch.cuda.synchronize(self._device)  # the last ones may still run
        self._graphs.clear()
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()
