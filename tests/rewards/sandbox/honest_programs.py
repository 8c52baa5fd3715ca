# ruff: noqa: E501 (a program is easier to read where it is one line)
"""Programs that are right, and tests that say so: every kind of value and test that data sets of programs have."""

CALLS = [  # (program, tests)
    ("def f(n): return n * n", ["assert f(3) == 9", "assert f(-2) == 4"]),
    ("def f(a, b=1): return a + b", ["assert f(1) == 2", "assert f(1, b=5) == 6"]),
    ("f = lambda s: s[::-1]", ["assert f('abc') == 'cba'", "assert f('') == ''"]),
    ("def f(x): return tuple(x)", ["assert f([1, 2]) == (1, 2)"]),
    ("def f(x): return [list(r) for r in zip(*x)]", ["assert f([[1, 2], [3, 4]]) == [[1, 3], [2, 4]]"]),
    ("def f(x): return set(x)", ["assert f([1, 1, 2]) == {1, 2}"]),
    ("def f(x): return frozenset(x)", ["assert f([1, 1, 2]) == {1, 2}"]),
    ("def f(x): return {k: len(k) for k in x}", ["assert f(['a', 'bb']) == {'a': 1, 'bb': 2}"]),
    ("def f(x): return {(1, 2): [x]}", ["assert f(None) == {(1, 2): [None]}"]),
    ("from collections import Counter\nf = Counter", ["assert f('aab') == {'a': 2, 'b': 1}"]),
    (
        "from collections import defaultdict\ndef f(): d = defaultdict(list); d[1].append(2); return d",
        ["assert f() == {1: [2]}"],
    ),
    ("from collections import OrderedDict\ndef f(x): return OrderedDict(x)", ["assert f([(1, 2)]) == {1: 2}"]),
    ("from collections import namedtuple\nP = namedtuple('P', 'x y')\nf = P", ["assert f(1, 2) == (1, 2)"]),
    ("from enum import IntEnum\nclass C(IntEnum):\n    RED = 1\ndef f(): return C.RED", ["assert f() == 1"]),
    ("class S(str): pass\nf = S", ["assert f('a') == 'a'"]),
    ("def f(n): return n > 1", ["assert f(2) == True", "assert f(2) is True", "assert f(0) is False"]),
    ("def f(): pass", ["assert f() is None", "assert f() == None"]),
    ("def f(x): return x / 3", ["assert f(1) == 0.3333333333333333"]),
    ("def f(): return 1e400", ["assert f() == 1e400"]),
    ("def f(): return 3 + 4j", ["assert f() == 3 + 4j"]),
    ("def f(n): return 2 ** n", ["assert f(64) == 18446744073709551616", f"assert f(20000) == {hex(2**20000)}"]),
    ("def f(n): return -(2 ** n)", ["assert f(100) == -1267650600228229401496703205376"]),
    ("def f(s): return s.encode()", ["assert f('ä') == b'\\xc3\\xa4'"]),
    ("def f(s): return s + '\\ud800'", ["assert f('') == '\\ud800'"]),
    ("def f(): return '\\x00\\n\\\\\"'", ["assert f() == '\\x00\\n\\\\\"'"]),
    ("def f(s): return s.upper()", ["assert f('straße π 你') == 'STRASSE Π 你'"]),
    ("def f(n): return range(n)", ["assert f(3) == range(0, 3)"]),
    ("def f(x, t): return [e for e in x if isinstance(e, t)]", ["assert f([1, 'a'], int) == [1]"]),
    ("class Solution:\n    def f(self, n): return n + 1", ["assert f(1) == 2"]),
    ("print('loading')\ndef f(n): print(n); return n", ["assert f(1) == 1"]),
    ("import sys\nsys.setrecursionlimit(10000)\ndef f(n): return n and 1 + f(n - 1)", ["assert f(5000) == 5000"]),
    (
        "import threading\ndef f():\n    r = []\n    t = threading.Thread(target=lambda: r.append(1)); t.start(); t.join(); return r",
        ["assert f() == [1]"],
    ),
    (
        "import asyncio\nasync def g(): await asyncio.sleep(0); return 1\ndef f(): return asyncio.run(g())",
        ["assert f() == 1"],
    ),
    (
        "def f():\n    with open('/tmp/a', 'w') as o: o.write('x')\n    return open('/tmp/a').read()",
        ["assert f() == 'x'"],
    ),
    (
        "import math, heapq, bisect, itertools, functools, re, random, string, fractions, decimal, datetime, copy\ndef f(): return 1",
        ["assert f() == 1"],
    ),
    (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef f(): return P(3).x",
        ["assert f() == 3"],
    ),
    (
        "def f(n: int) -> list[int]:\n    return [*range(n)]\nif __name__ == '__main__':\n    print(f(int(input())))",
        ["assert f(2) == [0, 1]"],
    ),
    ("def sum(a, b): return a + b", ["assert sum(10, 15) == 25"]),
    ("x = [0]\ndef f(): x[0] += 1; return x[0]", ["assert f() == 1", "assert f() == 2"]),
]

TESTS = [  # (program, setup, tests, entry point)
    ("def f(x): return x ** 0.5", "", ["assert abs(f(2) - 1.41421356) < 1e-6"], ""),
    ("def f(x): return x ** 0.5", "import math", ["assert math.isclose(f(2), 1.41421356, rel_tol=1e-6)"], ""),
    ("def f(x): return sorted(x)", "", ["assert f([2, 1]) == sorted([2, 1]) and len(f([3])) == 1"], ""),
    ("def f(x): return {x}", "", ["assert 1 in f(1)", "assert 2 not in f(1)", "assert set(f(1)) == {1}"], ""),
    (
        "def f(x): raise ValueError('no')",
        "",
        ["try:\n    f(1)\nexcept ValueError as e:\n    assert str(e) == 'no'\nelse:\n    assert False"],
        "",
    ),
    ("def f(x):\n    for i in range(x): yield i", "", ["assert list(f(3)) == [0, 1, 2]", "assert sum(f(4)) == 6"], ""),
    ("def f(x): return map(str, x)", "", ["assert ''.join(f([1, 2])) == '12'"], ""),
    ("def f(x): return {1: x}.keys()", "", ["assert list(f(0)) == [1] and len(f(0)) == 1"], ""),
    (
        "import re\ndef f(s): return re.match('a+', s)",
        "",
        ["assert f('aa')", "assert not f('b')", "assert f('aa').group(0) == 'aa'"],
        "",
    ),
    (
        "class Node:\n    def __init__(self, v): self.v, self.left = v, None\ndef f(n): return n.v + (f(n.left) if n.left else 0)",
        "root = Node(1)\nroot.left = Node(2)\nroot.left.left = Node(3)",
        ["assert f(root) == 6", "assert (f(root.left)) == 5"],
        "",
    ),
    (
        "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\ndef f(ps): return sum(p.a * p.b for p in ps)",
        "",
        ["assert f([Pair(1, 2), Pair(3, 4)]) == 14"],
        "",
    ),
    (
        "class Stack:\n    def __init__(self): self.x = []\n    def push(self, v): self.x.append(v)\n    def pop(self): return self.x.pop()\n    def __len__(self): return len(self.x)",
        "",
        ["s = Stack()\ns.push(1)\ns.push([2])\nassert len(s) == 2\nassert s.pop() == [2]"],
        "",
    ),
    (
        "class D(dict): pass\nclass M:\n    def __init__(self): self.d = {}\n    def __getitem__(self, k): return self.d[k]\n    def __setitem__(self, k, v): self.d[k] = v",
        "",
        ["m = M()\nm['a'] = (1, 2)\nassert m['a'] == (1, 2)"],
        "",
    ),
    (
        "def f(x, y): return x + y",
        "import random",
        ["for _ in range(50):\n    a, b = random.random(), random.randint(0, 9)\n    assert f(a, b) == a + b"],
        "",
    ),
    (
        "def add(x, y): return x + y",
        "",
        [
            "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(-1, 1) == 0\n\ncheck(candidate)"
        ],
        "add",
    ),
    (
        "def encode(s): return s[::-1]\ndef decode(s): return s[::-1]",
        "def encode(s): return s[::-1]",
        [
            "def check(candidate):\n    for s in ('ab', 'xyz'):\n        assert candidate(encode(s)) == s\ncheck(candidate)"
        ],
        "decode",
    ),
    ("def f(x): x.append(1); return len(x)", "", ["x = [1, 2]\nassert f(x) == 3 and x == [1, 2]"], ""),
    (
        "def f(x): return int(x)",
        "",
        ["assert f(' 12 ') == int('12')", "assert isinstance(f('1'), int)", "print('done')"],
        "",
    ),
    ("PI = 3.14\ndef f(r): return PI * r", "", ["assert f(2) == PI * 2"], ""),
    ("def make(n):\n    def add(x): return x + n\n    return add", "", ["assert make(2)(3) == 5"], ""),
]

PRINTED = [  # (program, stdin, stdout)
    ("print(int(input()) ** 2)", "3\n", "9\n"),
    ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", "1 2\n3", "6"),
    ("import sys\nfor line in sys.stdin: print(line.strip()[::-1])", "ab\ncd\n", "ba\ndc"),
    ("print(1/3)", "", "0.333333"),
    ("print('1  2'); print()", "", "1 2\n"),
    ("print('ä', '你', '−1')", "", "ä 你 −1"),
    ("import os\nos.write(1, os.read(0, 99))", "raw", "raw"),
    ("def main(): print('x')\nif __name__ == '__main__': main()", "", "x"),
    (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 26)\ndef f(n): return n and 1 + f(n - 1)\nt = threading.Thread(target=lambda: print(f(30000)))\nt.start(); t.join()",
        "",
        "30000",
    ),
    ("import sys\nprint('x')\nsys.exit()", "", "x"),
]
