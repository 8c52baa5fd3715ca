"""The program's side of its tests: runs the program, then answers what is asked of it, one line of JSON for another.

stdin: first `{"program": text}`, then requests `[operation, argument, ...]`; stdout: `{"value": ...}` or
`{"error": [type, message]}` for each, the program included. All of it is the program's word: it may write here what it
likes, and whoever reads must take every line for a claim.
"""

import json
import os
import sys
import types


def main(encode, decode):
    requests, answers = _private(0, "r"), _private(1, "w")
    for fd in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    module = sys.modules["solution"] = types.ModuleType("solution")
    objects: list = []
    numbers: dict = {}

    def keep(value):
        if id(value) not in numbers:
            numbers[id(value)] = len(objects)
            objects.append(value)
        return numbers[id(value)]

    def find(name):
        """A name of the program, or a method of its class Solution."""
        if hasattr(module, name):
            return getattr(module, name)
        if hasattr(module, "Solution"):
            return getattr(module.Solution(), name)
        raise NameError(f"name {name!r} is not defined")

    operations: dict = {
        "find": find,
        "run": lambda name, args, kwargs: find(name)(*args, **kwargs),
        "call": lambda function, args, kwargs: function(*args, **kwargs),
        "getattr": getattr,
        "setattr": setattr,
        "getitem": lambda owner, key: owner[key],
        "setitem": lambda owner, key, value: owner.__setitem__(key, value),
        "list": list,
        "len": len,
        "bool": bool,
    }

    def answer(request):
        if isinstance(request, dict):
            return exec(compile(request["program"], "main.py", "exec"), module.__dict__)
        operation, *arguments = request
        return operations[operation](*(decode(argument, objects.__getitem__) for argument in arguments))

    for line in requests:
        try:
            said = json.dumps({"value": encode(answer(json.loads(line)), keep)})
        except BaseException as e:
            said = json.dumps({"error": [type(e).__name__, str(e)[:200]]})
        answers.write(said + "\n")
        answers.flush()
    os._exit(0)  # whatever the program has left to do


def _private(fd, mode):
    return os.fdopen(os.dup(fd), mode, encoding="ascii")
