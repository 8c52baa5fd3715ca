"""The engine's end of the connection: makes the engine, then answers calls, each in a thread of its own."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from verl_core.config import garbage
from verl_core.config.errors import EnvError, UserError
from verl_core.rollout.child.errors import to_wire
from verl_core.rollout.child.flat import pack_completions, pack_parts, unpack_requests
from verl_core.rollout.child.wire import Arrays, Wire
from verl_core.rollout.parts import Part

LAST_ANSWERS_S = 2.0  # for calls that are open when the engine turns out to be broken

# What a caller has asked wrongly; the engine is none the worse.
_CALLERS = (UserError, KeyError, ValueError, TypeError, NotImplementedError)


class Host:
    """Serves one engine until the parent closes the connection or says `close`.

    While calls are open a beat goes out every `beat_s` seconds. An engine that can notice that it hangs or is broken
    offers `health()`: as long as that blocks no beat goes out, and what it raises ends the process.
    """

    def __init__(self, wire: Wire):
        self._wire = wire
        self._engine: Any = None
        self._open = 0  # calls
        self._change = threading.Condition()

    def run(self) -> None:
        """Never returns: the process ends, whatever threads the engine has left behind."""
        code = 0
        try:
            start, _ = self._wire.receive()
            if self._started(start):
                threading.Thread(target=self._beat, args=(start["beat_s"],), daemon=True).start()
                self._serve()
                if hasattr(self._engine, "close"):
                    self._engine.close()
            else:
                code = 1
        except (EOFError, OSError):  # the parent has gone
            pass
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code)

    def _started(self, start: dict[str, Any]) -> bool:
        try:
            self._engine = _make(start["factory"], start["options"])
        except BaseException as error:
            self._wire.send({"id": start["id"], "error": to_wire(error)})
            return False
        self._wire.send({"id": start["id"], "pid": os.getpid()})
        return True

    def _serve(self) -> None:
        while True:
            head, arrays = self._wire.receive()
            if head["do"] == "close":
                return
            with self._change:
                self._open += 1
                self._change.notify_all()
            threading.Thread(target=self._answer, args=(head, arrays), daemon=True).start()

    def _answer(self, head: dict[str, Any], arrays: Arrays) -> None:
        try:
            answer, columns = self._do(head, arrays)
            self._wire.send({"id": head["id"], **answer}, columns)
        except BaseException as error:
            if not isinstance(error, _CALLERS):
                self._end_if_broken(error)
            with contextlib.suppress(OSError):  # the parent has gone
                self._wire.send({"id": head["id"], "error": to_wire(error)})
        finally:
            with self._change:
                self._open -= 1
                self._change.notify_all()

    def _do(self, head: dict[str, Any], arrays: Arrays) -> tuple[Mapping[str, Any], Arrays]:
        match head["do"]:
            case "generate":
                return pack_completions(self._generate(head, arrays))
            case "take":
                from verl_core.rollout.child.shared_weights import mapped

                self._engine.update_weights(mapped(head["files"]), head["version"])
                return {}, {}
            case _:
                method = getattr(self._engine, head["method"], None)
                if method is None or head["method"].startswith("_"):
                    raise NotImplementedError(f"{type(self._engine).__name__} has no method {head['method']!r}")
                return {"result": method(*head["args"], **head["named"])}, {}

    def _generate(self, head: dict[str, Any], arrays: Arrays) -> Any:
        requests = unpack_requests(head, arrays)
        if not head["parts"] or "on_parts" not in inspect.signature(self._engine.generate).parameters:
            return self._engine.generate(requests)

        def tell(parts: Sequence[Part]) -> None:
            news, columns = pack_parts(parts)
            self._wire.send({"parts_of": head["id"], **news}, columns)

        return self._engine.generate(requests, on_parts=tell)

    def _end_if_broken(self, error: BaseException) -> None:
        """The error of an engine that has failed is its end, which the parent notices as such: another engine can do
        what this one was asked for."""
        try:
            getattr(self._engine, "health", _well)()
        except BaseException:
            traceback.print_exception(error)
            self._end(own=1)

    def _end(self, own: int) -> NoReturn:
        """Ends the process. What broke the engine may be the error of another call, which its caller is to hear: calls
        that are open, but for `own` of them, have a moment to answer."""
        with self._change:
            self._open -= own
            self._change.notify_all()
            self._change.wait_for(lambda: not self._open, timeout=LAST_ANSWERS_S)
        os._exit(1)

    def _beat(self, every_s: float) -> None:
        health = getattr(self._engine, "health", None)
        while True:
            with self._change:
                self._change.wait_for(lambda: self._open)
            try:
                if health is not None:
                    health()
                self._wire.send({"beat": True})
            except BaseException:
                traceback.print_exc()
                self._end(own=0)
            time.sleep(every_s)


def _well() -> None:
    """Of an engine that cannot tell."""


def _make(factory: str, options: dict[str, Any]) -> Any:
    """What `module:function` returns.

    Raises EnvError when the interpreter lacks a package that it needs, UserError when there is no such function.
    """
    module, _, function = factory.partition(":")
    garbage.look_seldom()
    try:
        make = getattr(importlib.import_module(module), function, None)
        garbage.look_as_usual()
        if make is None:
            raise UserError(f"{module} has no function {function!r} that makes a rollout engine")
        return make(**options)
    except ModuleNotFoundError as error:
        package = (error.name or "?").split(".")[0]
        if package == "verl_core":  # a fault of ours, or of the one who named the factory
            raise
        raise EnvError(
            f"the environment {sys.prefix} lacks the package {package!r}, which the rollout engine {factory} needs",
            "make the engine's environment with `rlx env sync`, or name another rollout.engine",
        ) from error
