"""ChildEngine: a rollout engine that runs in another process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from verl_core.config.errors import RlxError, RunError
from verl_core.rollout.child.errors import EngineLost, EngineStalled, from_wire
from verl_core.rollout.child.flat import pack_requests, unpack_completions, unpack_parts
from verl_core.rollout.child.process import HostProcess
from verl_core.rollout.child.wire import Arrays, Wire
from verl_core.rollout.parts import OnParts
from verl_core.rollout.protocol import Completion, PauseMode, TokenRequest

if TYPE_CHECKING:
    from torch import Tensor

_BEATS = 4  # in stall_s
_CLOSE_S = 5.0  # for an engine to end in its own way


@dataclass
class _Open:
    """A call that is not answered yet."""

    future: Future[Any]
    read: Callable[[dict[str, Any], Arrays], Any]
    on_parts: OnParts | None


class ChildEngine:
    """Starts `python -m verl_core.rollout.child.host`, which calls `factory` there, and passes every call on. Keeps
    `verl_core.rollout.protocol.RolloutEngine`; any number of threads may call it at the same time.

    The process ends with this one, however this one ends, and takes along whatever it has started.

    Args:
        factory: `module:function` that returns a RolloutEngine, imported in the engine's process only.
        options: the function's keyword arguments, JSON.
        python: the interpreter of the engine's environment; None: this one.
        env: variables on top of this process's, e.g. CUDA_VISIBLE_DEVICES.
        log: file to which what it prints is appended; None: only its last lines are kept, for errors.
        start_s: longest start, seconds.
        stall_s: seconds without a sign of life after which it counts as hanging while requests are open.
        name: what errors call the engine; None: its factory.

    Raises:
        EnvError: the interpreter lacks a package of the engine.
        RunError: it ended, or was not ready within `start_s`; whatever RlxError the factory raised.
    """

    def __init__(
        self,
        factory: str,
        options: Mapping[str, Any],
        *,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        log: str | Path | None = None,
        start_s: float = 900.0,
        stall_s: float = 60.0,
        name: str | None = None,
    ):
        self._factory, self.name = factory, name or factory
        self._look = f"look at what it printed last{f', in {log}' if log is not None else ''}"
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._open: dict[int, _Open] = {}
        self._calls = 0
        self._lost: EngineLost | None = None
        self._ready = self._closing = False
        self._heard = self._asked = 0.0  # when the last message came; when a call found none open
        self._process = HostProcess(python, env, Path(log) if log is not None else None)
        self._wire = Wire(self._process.connection)
        self._reader = threading.Thread(target=self._read, name=f"reader of {factory}", daemon=True)
        self._reader.start()
        try:
            self.pid = self._start(dict(options), start_s)
        except BaseException:
            self.close()
            raise
        self._heard, self._ready = time.monotonic(), True

    @property
    def alive(self) -> bool:
        """Whether calls can still be answered."""
        return self._lost is None

    def generate(self, requests: Sequence[TokenRequest], on_parts: OnParts | None = None) -> list[Completion]:
        """As RolloutEngine.generate. `on_parts` hears of tokens on the way, where the engine tells them; it is called
        in the reader's thread; what it raises is raised here.

        Raises:
            EngineLost: the process has ended, or EngineStalled: it hung and was killed.
        """
        head, arrays = pack_requests(requests)
        head = {"do": "generate", "parts": on_parts is not None, **head}
        return self._ask(head, arrays, lambda *answer: unpack_completions(requests, *answer), on_parts).result()

    def call(self, method: str, *args: Any, **named: Any) -> Future[Any]:
        """Calls any other method of the engine with JSON values; the future holds what it returns, or raises what it
        raised (RlxErrors, KeyError, ValueError, TypeError, NotImplementedError as such, others as RunError)."""
        head = {"do": "call", "method": method, "args": args, "named": named}
        return self._ask(head, {}, lambda answer, _: answer["result"])

    def abort(self, request_ids: Iterable[str]) -> None:
        self.call("abort", list(request_ids)).result()

    def pause(self, mode: PauseMode) -> None:
        self.call("pause", mode).result()

    def resume(self) -> None:
        self.call("resume").result()

    def sleep(self) -> None:
        self.call("sleep").result()

    def wake(self) -> None:
        self.call("wake").result()

    def update_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Through files in memory: a copy of the whole model. The transports of `verl_core.weights` need none."""
        from verl_core.rollout.child.shared_weights import written

        with written(stream) as files:
            self._ask({"do": "take", "files": files, "version": version}, {}, lambda *_: None).result()

    def close(self) -> None:
        """Ends the process; open calls raise EngineLost. May be called twice."""
        self._closing = True
        if self._ready and self.alive:
            self._send({"do": "close"}, {})
            self._process.wait(_CLOSE_S)
        self._process.end()
        if threading.current_thread() is not self._reader:
            self._reader.join()
            self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- the calling threads ----------------------------------------------------------------------------------------

    def _start(self, options: dict[str, Any], start_s: float) -> int:
        """Its process id, once the engine is there."""
        head = {"do": "start", "factory": self._factory, "options": options, "beat_s": self._stall_s / _BEATS}
        try:
            return self._ask(head, {}, lambda answer, _: answer["pid"]).result(start_s)
        except EngineLost as error:
            raise RunError(f"the start failed: {error.message}", error.hint) from None
        except TimeoutError:
            what = self._with_last_words(f"the rollout engine {self.name} was not ready after {start_s:g} s")
            raise RunError(what, self._look) from None
        except RlxError:
            raise
        except Exception as error:
            what = self._with_last_words(f"the rollout engine {self.name} cannot start: {error}")
            raise RunError(what, f"{self._look}, and at its options") from error

    def _ask(
        self,
        head: dict[str, Any],
        arrays: Arrays,
        read: Callable[[dict[str, Any], Arrays], Any],
        on_parts: OnParts | None = None,
    ) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # a call that is under way cannot be taken back
        with self._lock:
            if self._lost is not None:
                future.set_exception(_again(self._lost))
                return future
            if not self._open:
                self._asked = time.monotonic()
            self._calls += 1
            call = self._calls
            self._open[call] = _Open(future, read, on_parts)
        try:
            self._send({"id": call, **head}, arrays)
        except BaseException:  # not JSON
            self._open.pop(call, None)
            raise
        return future

    def _send(self, head: dict[str, Any], arrays: Arrays) -> None:
        with contextlib.suppress(OSError):  # it has ended: the reader notices, and answers every open call
            self._wire.send(head, arrays)

    # --- the reader's thread ----------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while True:
                overdue_s = self._overdue_s()
                if self._wire.wait(max(0.0, -overdue_s)):
                    head, arrays = self._wire.receive()
                    self._heard = time.monotonic()
                    self._take(head, arrays)
                elif overdue_s >= 0:
                    self._process.end()
                    what = f"the rollout engine {self.name} gave no sign of life for {self._stall_s:g} s"
                    return self._give_up(EngineStalled(f"{what} and was killed", _STALL_HINT))
        except (EOFError, OSError):
            how = "was closed" if self._closing else self._process.how_it_ended()
            what = self._with_last_words(f"the rollout engine {self.name} {how}")
            self._give_up(EngineLost(what, _KILL_HINT if "SIGKILL" in how else self._look))
        except Exception as error:  # no message of ours: what follows cannot be read either
            self._process.end()
            what = f"the rollout engine {self.name} sent what cannot be read ({error}) and was killed"
            self._give_up(EngineLost(self._with_last_words(what), self._look))

    def _overdue_s(self) -> float:
        """Seconds since it should have given a sign of life; below 0 while there is time."""
        with self._lock:
            if not self._open or not self._ready:
                return -self._stall_s
            return time.monotonic() - max(self._heard, self._asked) - self._stall_s

    def _take(self, head: dict[str, Any], arrays: Arrays) -> None:
        if "parts_of" in head:
            call = self._open.get(head["parts_of"])
            if call is not None and call.on_parts is not None:
                try:
                    call.on_parts(unpack_parts(head, arrays))
                except Exception as error:  # the caller's own: its call fails, the others are still read
                    self._open.pop(head["parts_of"])
                    call.future.set_exception(error)
        elif "id" in head:
            with self._lock:
                call = self._open.pop(head["id"], None)
            if call is None:  # failed already
                return
            if "error" in head:
                call.future.set_exception(from_wire(head["error"]))
                return
            try:
                call.future.set_result(call.read(head, arrays))
            except Exception as error:  # more or fewer completions than requests, or half of one
                what = f"{type(error).__name__}: {error}"
                call.future.set_exception(RunError(f"the rollout engine {self.name} answered wrongly: {what}"))

    def _give_up(self, error: EngineLost) -> None:
        with self._lock:
            self._lost = error
            calls, self._open = list(self._open.values()), {}
        for call in calls:
            call.future.set_exception(_again(error))

    def _with_last_words(self, what: str) -> str:
        return "\n  ".join([what, *self._process.last_words()])


_STALL_HINT = "look at what else the machine does (`nvidia-smi`, `top`, `dmesg`); a longer limit is rollout.stall_s"
_KILL_HINT = "the kernel kills what takes too much memory: look at dmesg, and lower rollout.max_num_seqs"


def _again(error: EngineLost) -> EngineLost:
    """The same error for one more caller: an exception that several threads raise collects all their tracebacks."""
    return type(error)(error.message, error.hint)
