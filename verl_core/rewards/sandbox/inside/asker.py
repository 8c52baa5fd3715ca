"""The tests' side: runs the tests in an interpreter of their own, where the program's names stand for what its process
answers, and reports on stdout which tests passed.

stdin is one JSON object: `program`, `setup`, `tests`, `names` (those that are the program's), `entry_point`.
sys.argv: the numbers of the open files that answers come from and requests go to (see answerer).
"""

import builtins
import json
import os
import sys


class Foreign:
    """An object of the program's process that is not plain data. It can be called, indexed, iterated and asked for
    attributes, over there; it has no operators, and is equal to itself only, whatever it would say of that."""

    def __init__(self, number, ask):
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_ask", ask)

    def __call__(self, *args, **kwargs):
        return self._ask("call", self, args, kwargs)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("getattr", self, name)

    def __setattr__(self, name, value):
        self._ask("setattr", self, name, value)

    def __getitem__(self, key):
        return self._ask("getitem", self, key)

    def __setitem__(self, key, value):
        self._ask("setitem", self, key, value)

    def __iter__(self):
        return iter(self._ask("list", self))

    def __len__(self):
        return self._ask("len", self)

    def __bool__(self):
        return self._ask("bool", self)

    def __eq__(self, other):
        return isinstance(other, Foreign) and other._number == self._number

    def __hash__(self):
        return hash(self._number)


class Silence(Exception):
    """The program's process has ended."""


class Line:
    """Asks the program's process, and waits for what it says."""

    def __init__(self, answers, requests, encode, decode):
        self._answers, self._requests = answers, requests
        self._encode, self._decode = encode, decode

    def ask(self, *request):
        return self.send([self._encode(part, self._number) for part in request])

    def send(self, request):
        """What the answer holds. Raises the exception that it names where that is a usual one, else RuntimeError."""
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
        except BrokenPipeError:
            raise Silence from None
        line = self._answers.readline()
        if not line.endswith("\n"):
            raise Silence
        answer = json.loads(line)
        if "error" in answer:
            name, message = map(str, answer["error"])
            raise usual_exception(name)(message)
        return self._decode(answer["value"], lambda number: Foreign(number, self.ask))

    @staticmethod
    def _number(value):
        if isinstance(value, Foreign):
            return value._number
        raise TypeError(f"a test hands over a {type(value).__name__}, which is not plain data")


def usual_exception(name):
    """The built-in exception of that name. What ends a loop in silence (StopIteration) or a process is none."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _SILENT):
        return kind
    return RuntimeError


_SILENT = (StopIteration, StopAsyncIteration, UnicodeError)  # the last takes other arguments than a message


def judge(task, line):
    """{"program": the error of the program itself or null, "passed": one boolean a test}."""
    none = [False] * len(task["tests"])
    try:
        line.send({"program": task["program"]})
    except Exception as e:
        return {"program": type(e).__name__, "passed": none}
    namespace = {"__name__": "tests"}
    for name, called in [*((name, name) for name in task["names"]), ("candidate", task["entry_point"])]:
        try:
            namespace[name] = line.ask("find", called)
        except Exception:
            continue  # the tests that use it will fail
    passed = [passes(test, namespace) for test in task["tests"]] if passes(task["setup"], namespace) else none
    return {"program": None, "passed": passed}


def passes(text, namespace):
    try:
        exec(compile(text, "tests.py", "exec"), namespace)
    except BaseException:
        return False
    return True


def main(encode, decode):
    report = os.fdopen(os.dup(1), "w")
    task = json.loads(sys.stdin.buffer.read())
    for fd in (0, 1, 2):  # tests may print
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    answers, requests = (
        os.fdopen(int(sys.argv[1]), encoding="ascii"),
        os.fdopen(int(sys.argv[2]), "w", encoding="ascii"),
    )
    json.dump(judge(task, Line(answers, requests, encode, decode)), report)
    report.close()
    os._exit(0)
