"""Where a step's wall-clock time goes."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

# The phase works on the answers' tokens only; every other phase sees the prompts' too.
RESPONSE_PHASES = frozenset({"gen"})
# Phases whose time does not grow with the tokens of the step.
NOT_PER_TOKEN = frozenset({"reward", "update_weights", "save_checkpoint", "testing", "step"})


class Timer:
    """Collects the seconds of named phases within a step.

    A phase entered twice in a step adds up. Phases of different names may nest or overlap (asynchronous modes do), so
    their sum is not the step's time; that is measured on its own, from one `end_step` (or `begin_step`) to the next.
    """

    def __init__(self) -> None:
        self._phase: defaultdict[str, float] = defaultdict(float)
        self._began = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times the body, also when it raises. `name` is the part after `timing_s/`, e.g. gen."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - began)

    def add(self, name: str, seconds: float) -> None:
        """Adds seconds measured elsewhere (a worker process) to a phase."""
        self._phase[name] += seconds

    def begin_step(self) -> None:
        """Forgets the time since the last step, such as set-up before the first one."""
        self._phase.clear()
        self._began = time.perf_counter()

    def end_step(self, tokens: int = 0, response_tokens: int = 0, ranks: int = 1) -> dict[str, float]:
        """The step's metrics, and a new step begins.

        tokens: prompt and response tokens of the step on all ranks; response_tokens: those the model produced. With
        tokens = 0 (validation before the first step) the step's time and the rates are left out.
        Returns timing_s/*, timing_per_token_ms/*, perf/{time_per_step, total_num_tokens, throughput,
        tokens_per_s_per_gpu}; the last two are tokens a second on each rank, by veRL's name and by NeMo-RL's.
        """
        step = time.perf_counter() - self._began
        metrics = self.unlogged()
        if tokens:
            metrics["timing_s/step"] = step
            for name, s in self._phase.items():
                count = response_tokens if name in RESPONSE_PHASES else tokens
                if name not in NOT_PER_TOKEN and count:
                    metrics[f"timing_per_token_ms/{name}"] = 1000 * s / count
            metrics["perf/time_per_step"] = step
            metrics["perf/total_num_tokens"] = tokens
            metrics["perf/throughput"] = metrics["perf/tokens_per_s_per_gpu"] = tokens / step / ranks
        self.begin_step()
        return metrics

    def unlogged(self) -> dict[str, float]:
        """timing_s/* of phases since the last `end_step`: the final checkpoint is saved after the last step's line."""
        return {f"timing_s/{name}": s for name, s in self._phase.items()}
