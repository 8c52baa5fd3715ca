"""Scores programs by tests: MBPP (arXiv 2108.07732), HumanEval (2107.03374), APPS (2105.09938) and their like.

The ground truth of a row is a mapping, or its JSON text, in one of two forms.

By asserts, what MBPP and HumanEval have:

* `tests`: a list of texts, each a test that passes when it runs without raising, such as `"assert f(2) == 4"`. A text
  may hold several statements (HumanEval's `def check(candidate): ...` with `check(candidate)` behind it).
* `setup` (optional): statements that run before the tests and belong to them: imports, and helpers such as the ones
  that HumanEval's prompts define. A name that `setup` defines is the tests' own, whatever the program defines.
* `entry_point` (optional): the name of the program's function that the tests call `candidate`.
* `preamble` (optional): statements that are put before the program, such as the imports of HumanEval's prompt.

By input and output, as veRL's rows of APPS, TACO, CodeContests and Codeforces have it:

* `inputs`, `outputs`: lists of the same length. Without `fn_name` they are texts: stdin, and what stdout must be.
* `fn_name` (optional): the function, or the method of `class Solution`, that is called instead. Then an input is a list
  of arguments, or their JSON texts one a line, and an output what must be returned.
* `preamble` (optional), as above.
"""
