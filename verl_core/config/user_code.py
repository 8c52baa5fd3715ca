"""Python files that users bring along, imported by path."""

import importlib.util
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType

from verl_core.config.errors import RlxError, UserError


def import_file(file: Path, what: str) -> ModuleType:
    """The module that the file is; it may import its neighbours. An absolute path is imported once a process.

    `what` names the file in messages, e.g. "reward file". Raises UserError when it cannot be imported.
    """
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    name = f"rlx_{what.replace(' ', '_')}_{file.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(file):
        return known
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is not a Python file", hint="its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look the module up by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(
            f"{what} {file} fails at import: {describe(error)}", hint=f"try `rlx env run -- python {file}`"
        ) from error
    return module


def guarded[**P, R](
    function: Callable[P, R], what: str, hint: str = "see docs/algorithms.md, Your own"
) -> Callable[P, R]:
    """The function, whose errors are UserErrors that name `what` and the line: they are not rlx's."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except RlxError:
            raise
        except Exception as error:
            raise UserError(f"{what} fails: {describe(error)}", hint) from error

    return call


def describe(error: BaseException) -> str:
    """`Type: message (file:line)` of the innermost place the error came from, at most 300 characters of message."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace else ""
    return f"{type(error).__name__}: {error!s:.300}{place}"
