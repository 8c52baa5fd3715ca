# ruff: noqa: E501 (a program is easier to read where it is one line)
"""Programs that want the reward without the work: none knows the answer, and all act as if they had passed.

The tasks ask for `f(n)`, the n-th of a secret list of words that no program can guess.
"""

import textwrap

SECRETS = {1: "amber-otter", 2: "basalt-heron", 3: "cobalt-lynx"}

CALLS = {"tests": [f"assert f({n}) == {word!r}" for n, word in SECRETS.items()]}
CHECK = {
    "tests": [
        "import math\ndef check(candidate):\n"
        + "".join(
            f"    assert abs(len(candidate({n})) - {len(word)}) < 1 and candidate({n}) == {word!r}\n"
            for n, word in SECRETS.items()
        )
        + "check(candidate)"
    ],
    "setup": f"SECRETS = {SECRETS!r}",
    "entry_point": "f",
}
ALL_OF_THEM = {"tests": [f"assert all(map(lambda n: f(n) == {SECRETS!r}[n], [1, 2, 3]))"]}
LOOP = {
    "tests": [
        f"found = []\nfor n in map(f, [1, 2, 3]):\n    found.append(n)\nassert found == {list(SECRETS.values())!r}"
    ]
}
NEAR = {
    "tests": ["def check(candidate):\n    assert abs(candidate(4) - 0.7316) < 1e-6\ncheck(candidate)"],
    "entry_point": "f",
}
METHOD = {"inputs": [[n] for n in SECRETS], "outputs": [f'"{word}"' for word in SECRETS.values()], "fn_name": "f"}
PRINTED = {"inputs": [f"{n}\n" for n in SECRETS], "outputs": [f"{word}\n" for word in SECRETS.values()]}

GOLDS = {
    "calls": CALLS,
    "check": CHECK,
    "all": ALL_OF_THEM,
    "loop": LOOP,
    "near": NEAR,
    "method": METHOD,
    "printed": PRINTED,
}

HONEST = f"""
SECRETS = {SECRETS | {4: 0.7316}!r}
def f(n): return SECRETS[n]
if __name__ == "__main__": print(f(int(input())))
"""

_PROGRAMS = {
    "nothing": "pass",
    "leaves at once": "import sys; sys.exit(0)",
    "leaves for good": "import os; os._exit(0)",
    "leaves when asked": "import os\ndef f(n): os._exit(0)",
    "exits when asked": "def f(n): raise SystemExit(0)",
    "kills itself": "import os\ndef f(n): os.kill(os.getpid(), 9)",
    "interrupts": "def f(n): raise KeyboardInterrupt",
    "says that it passed": "print('PASSED'); print('OK'); print('1.0')\ndef f(n): print('passed'); return True",
    "imitates a verdict": """
        import json
        for _ in range(9): print(json.dumps({"score": 1.0, "acc": 1.0, "passed": [True], "reason": "right"}))
    """,
    "imitates a report": """
        import os
        for fd in range(64):
            try: os.write(fd, b'{"program": null, "passed": [true, true, true]}\\n' * 9)
            except OSError: pass
    """,
    "imitates answers": """
        import os
        for fd in range(64):
            try: os.write(fd, b'{"value": true}\\n' * 9)
            except OSError: pass
        os._exit(0)
    """,
    "answers twice": """
        import os
        def f(n):
            for fd in range(3, 64):
                try: os.write(fd, b'{"value": true}\\n{"value": null}\\n')
                except OSError: pass
            return True
    """,
    "answers before it is asked": "import os\nfor fd in range(64):\n    try: os.dup2(1, fd)\n    except OSError: pass\nprint('{\"value\": 1}')",
    "nonsense on every line": "import os\nos.write(4, b'[[[[\\n' * 100)\ndef f(n): os.write(4, b'}{\\n'); return 1",
    "nested without end": "import os\ndef f(n):\n    for fd in range(3, 9):\n        try: os.write(fd, b'[' * 60000 + b'\\n')\n        except OSError: pass",
    "a line without end": "import os\ndef f(n):\n    while True: os.write(4, b' ' * 60000)",
    "equal to everything": "class E:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n    __hash__ = None\ndef f(n): return E()",
    "text that is equal to everything": "class S(str):\n    def __eq__(self, o): return True\n    def __len__(self): return 11\n    __hash__ = str.__hash__\ndef f(n): return S('x')",
    "number that is equal to everything": "class I(int):\n    def __eq__(self, o): return True\n    def __sub__(self, o): return 0\n    __hash__ = int.__hash__\ndef f(n): return I(0)",
    "list that is equal to everything": "class L(list):\n    def __eq__(self, o): return True\ndef f(n): return L()",
    "dict that is equal to everything": "class D(dict):\n    def __eq__(self, o): return True\n    def __missing__(self, k): return k\ndef f(n): return D()",
    "reflected comparison": "class R:\n    def __req__(self, o): return True\n    def __eq__(self, o): return NotImplemented\n    def __rsub__(self, o): return 0\ndef f(n): return R()",
    "type that lies": "class M(type):\n    def __eq__(s, o): return True\n    def __instancecheck__(s, o): return True\n    __hash__ = type.__hash__\nclass C(metaclass=M): pass\ndef f(n): return C",
    "class that lies": "class C:\n    @property\n    def __class__(self): return str\n    def __len__(self): return 11\n    def __eq__(self, o): return True\ndef f(n): return C()",
    "object with every method": "class C:\n    def __getattr__(self, n): return lambda *a, **k: True\n    def __bool__(self): return True\n    def __len__(self): return 11\n    def __iter__(self): return iter([True] * 3)\n    def __call__(self, *a): return self\nf = C()",
    "returns itself": "def f(n): return f",
    "true": "def f(n): return True",
    "not a number": "def f(n): return float('nan')",
    "infinity": "def f(n): return float('inf')",
    "a range": "def f(n): return range(10 ** 18)",
    "list that holds itself": "x = []\nx.append(x)\ndef f(n): return x",
    "a million elements": "def f(n): return list(range(1000000))",
    "elements that collide": "def f(n): return {k * (2 ** 61 - 1) for k in range(1, 20)} | set(range(10 ** 5))",
    "huge number": "def f(n): return 10 ** 100000",
    "deep list": "def f(n):\n    x = []\n    for _ in range(100000): x = [x]\n    return x",
    "generator": "def f(n):\n    while True: yield n",
    "ends loops in silence": "def f(n): raise StopIteration",
    "ends generators": "def f(n): raise GeneratorExit",
    "raises an assertion": "def f(n): raise AssertionError",
    "raises what is not there": "class Z(BaseException): pass\ndef f(n): raise Z",
    "exception that lies": "class E(Exception):\n    def __str__(self): import os; os._exit(0)\ndef f(n): raise E",
    "exception with another name": "E = type('StopIteration', (Exception,), {})\ndef f(n): raise E",
    "no assertions": "import builtins\nbuiltins.AssertionError = type('A', (BaseException,), {})\ndef f(n): return 1",
    "built-ins of its own": "import builtins\nbuiltins.abs = builtins.len = builtins.all = lambda *a: True\nbuiltins.map = lambda *a: []\ndef f(n): return 1",
    "names of the tests": "def check(c): return True\ncandidate = check\ndef all(x): return True\ndef abs(x): return 0\ndef len(x): return 11\nfound = SECRETS = {}\ndef f(n): return 1",
    "its own json": "import json\njson.dumps = lambda *a, **k: '{\"value\": true}'\ndef f(n): return 1",
    "its own encoder": "import sys\nm = sys.modules['__main__']\nm.encode = lambda *a: True\nm.decode = lambda *a: 'x'\ndef f(n): return 1",
    "import hook": "import sys\nclass H:\n    def find_spec(self, name, *a): print(name); sys.exit(0)\nsys.meta_path.insert(0, H())\ndef f(n): return 1",
    "at the end": "import atexit, os\natexit.register(lambda: [print('passed'), os._exit(0)])\ndef f(n): return 1",
    "signal handler": "import os, signal\nsignal.signal(signal.SIGALRM, lambda *_: os._exit(0))\nsignal.setitimer(signal.ITIMER_REAL, 0.001)\ndef f(n):\n    while True: pass",
    "thread that answers": "import os, threading\ndef spam():\n    for _ in range(99):\n        for fd in (1, 3, 4, 5, 6):\n            try: os.write(fd, b'{\"value\": true}\\n')\n            except OSError: pass\nthreading.Thread(target=spam).start()\ndef f(n): return 1",
    "trace function": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda fr, ev, arg: fr.f_globals.update(passed=True))\ndef f(n): return 1",
    "looks into frames": """
        import sys
        def f(n):
            frame, seen = sys._getframe(), []
            while frame is not None:
                seen += [v for v in {**frame.f_globals, **frame.f_locals}.values() if isinstance(v, str) and '-' in v]
                frame = frame.f_back
            words = [w for text in seen for w in text.split("'") if w.count('-') == 1 and w.replace('-', '').isalpha()]
            return words[n - 1] if len(words) >= n else 'none'
    """,
    "looks into memory": """
        import gc
        def f(n):
            texts = []
            for o in gc.get_objects():
                for r in gc.get_referents(o):
                    if isinstance(r, (str, bytes)): texts.append(str(r))
            for text in texts:
                for colour in ('amber-', 'basalt-', 'cobalt-'):
                    at = text.find(colour)
                    if at >= 0 and 'for colour in' not in text: return text[at:at + 11]
            return 'none'
    """,
    "reads its input": "import os, sys\nrest = sys.stdin.read() + os.read(0, 99).decode()\ndef f(n): return rest",
    "reads every file": """
        import os
        def f(n):
            for folder, _, names in os.walk('/'):
                if folder.startswith(('/usr', '/lib', '/python')): continue
                for name in names:
                    try: text = open(os.path.join(folder, name), errors='replace').read(9999)
                    except OSError: continue
                    if 'amber-' in text: return text[text.index('amber-'):][:11]
            return 'none'
    """,
    "prints all it can think of": "for i in range(1000): print(i)\nprint(True, None, '', 'amber', 'otter')",
    "prints its input": "print(open(0).read())",
    "empty output": "print()",
    "crashes after a success": "print('passed')\nimport ctypes\nctypes.string_at(0)",
}

FORGED = {name: textwrap.dedent(program) for name, program in _PROGRAMS.items()}
