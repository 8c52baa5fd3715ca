"""Follows a script's statements in order: assignments, tests, commands. Nothing is run."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from verl_core.config.errors import UserError
from verl_core.config.verl_script import launch
from verl_core.config.verl_script.assignments import assign, is_assignment
from verl_core.config.verl_script.conditions import decide
from verl_core.config.verl_script.expansion import Expansions
from verl_core.config.verl_script.launch import Launch
from verl_core.config.verl_script.text import Text
from verl_core.config.verl_script.variables import Variables, merge
from verl_core.config.verl_script.words import value, words

if TYPE_CHECKING:
    from tree_sitter import Node

_LOOPS = ("for_statement", "c_style_for_statement", "while_statement", "function_definition")
_WORDY = ("command", "declaration_command", "variable_assignment", "variable_assignments", "unset_command")
_ESCAPED_BLANKS = re.compile(rb"(?:\\[ \t])+")
_ASCII = bytes(range(128)) + b"x" * 128
"""Letters beyond ASCII as x, byte by byte: tree-sitter-bash 0.25 crashes on some of them."""
DEEPEST = 5
"""Scripts inside of `bash -c` inside of ..."""


@dataclass
class Note:
    """Something that was not followed."""

    line: int
    text: str


@dataclass
class Script:
    launches: list[Launch] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    exports: dict[str, Text] = field(default_factory=dict)
    """Environment variables the script sets for what it starts."""
    assumed_unset: set[str] = field(default_factory=set)
    """Variables whose absence decided a test or chose a default."""


def read_script(text: str, given: Mapping[str, str] | None = None) -> Script:
    """What a script launches; `given` are variables it expects from outside (`1`, `2` for its arguments).

    Raises UserError for a script whose nesting or values have no end.
    """
    script, variables = Script(), Variables(given)
    arguments = [name for name in (given or {}) if name.isdigit()]
    variables.set("@", [Text((given or {})[name]) for name in sorted(arguments, key=int)])
    try:
        _Walk(script, variables).source(text.replace("\r\n", "\n"))
    except RecursionError:
        raise UserError(
            "the script is nested too deeply to be read", "write the launch in a script of its own"
        ) from None
    script.assumed_unset = variables.assumed_unset
    return script


class _Walk:
    def __init__(self, script: Script, variables: Variables, depth: int = 0, first_line: int = 1, doubt: str = ""):
        self.script, self.variables, self.depth = script, variables, depth
        self.first_line, self.doubt = first_line, doubt
        self.expansions = Expansions(variables)

    def source(self, text: str) -> None:
        """Follows shell text from its first statement to its last."""
        from tree_sitter import Language, Parser
        from tree_sitter_bash import language

        self.expansions.source = source = text.replace("\0", "").encode("utf-8", "replace")
        tree = Parser(Language(language())).parse(source.translate(_ASCII))
        self.block(tree.root_node.children)

    def block(self, nodes: list["Node"]) -> bool:
        """Follows statements; whether the script goes on behind them (it ends at `exit`)."""
        return all(self.statement(node) for node in nodes)

    def statement(self, node: "Node") -> bool:
        """Follows one statement; whether the script goes on behind it."""
        kind = node.type
        if node.is_missing or kind == "ERROR":
            self.note(node, f"not understood: {_line(self.text(node))}")
            return self.block(node.named_children)
        if kind in _WORDY:
            return self.command(node, self.text(node))
        if kind == "redirected_statement":
            return self.redirected(node)
        if kind == "if_statement":
            return self.ways(node, _branches(node))
        if kind == "case_statement":
            return self.case(node)
        if kind == "list":
            return self.chain(node)[0]
        if kind in ("pipeline", "negated_command"):
            return self.block(node.named_children)
        if kind == "subshell":
            self.inside(self.variables.copy()).block(node.named_children)
        elif kind == "compound_statement" and not self.text(node).startswith("(("):
            return self.block(node.named_children)
        elif kind in _LOOPS or kind == "compound_statement":
            self.not_followed(node)
        return True

    def command(self, node: "Node", source: str) -> bool:
        """An assignment or a simple command; whether the script goes on behind it."""
        if node.type in _WORDY[1:4] or is_assignment(source):
            for name, text in assign(source, self.variables, self.expansions):
                self.script.exports[name] = text
            return True
        found = words(source, self.expansions)
        name = found[0].text if found else ""
        if node.type == "unset_command":
            for word in found[1:]:
                self.variables.unset(word.text)
        elif started := launch.find(found, self.line(node)):
            started.doubt = self.doubt
            self.script.launches.append(started)
            self.script.exports |= launch.environment(found)
            return name != "exec"
        elif (inner := launch.script_in(found)) and self.depth < DEEPEST:
            self.script.exports |= launch.environment(found)
            here = self.variables if name == "eval" else Variables()
            if name != "eval":
                here.values |= self.script.exports
                here.assumed_unset = self.variables.assumed_unset
            _Walk(self.script, here, self.depth + 1, self.line(node), self.doubt).source(inner.text)
        elif name == "shift":
            by = int(found[1].text) if len(found) > 1 and found[1].text.isdigit() else 1
            self._shift(by)
        elif name in ("source", "."):
            self.note(node, f"{_line(source)}: another script, which is not read")
        elif name in ("read", "mapfile", "readarray", "getopts", "let"):
            for word in found[1:]:
                variable = word.text.partition("=")[0]
                self.variables.doubt(variable, f"{variable} is set by {name} in line {self.line(node)}")
        elif re.match(r"[+~]*[a-z_]+(\.\w+)+=", name) and self.script.launches:
            self.note(node, f"{_line(source)}: stands behind the end of the launch, so veRL does not see it either")
        return name not in ("exit", "return") and not (name == "exec" and len(found) > 1)

    def redirected(self, node: "Node") -> bool:
        body = node.child_by_field_name("body")
        if body is not None and body.type not in _WORDY:
            return self.statement(body)
        heredoc = next((child for child in node.children if child.type.startswith("heredoc")), None)
        return self.command(body or node, self.text(node, heredoc.start_byte if heredoc else None))

    def chain(self, node: "Node") -> tuple[bool, bool | None]:
        """`left && right` and `left || right`: whether the script goes on, and what it gives."""
        if len(node.named_children) != 2:
            return self.block(node.named_children), None
        left, right = node.named_children
        goes_on, verdict = self.link(left)
        if not goes_on:
            return False, verdict
        if verdict is None:
            return self.undecided(node, [[right], []]), None
        wanted = any(child.type == "&&" for child in node.children)
        return self.link(right) if verdict == wanted else (True, verdict)

    def link(self, node: "Node") -> tuple[bool, bool | None]:
        """One part of a chain; a command that is no test is taken to succeed."""
        if node.type == "list":
            return self.chain(node)
        verdict = decide(node, self.expansions)
        return (True, verdict) if verdict is not None or _is_test(node) else (self.statement(node), True)

    def case(self, node: "Node") -> bool:
        subject = value(self.text(node.named_children[0]), self.expansions) if node.named_children else Text()
        items = [child for child in node.named_children if child.type == "case_item"]
        if subject.unknown or subject.outside:
            return self.undecided(node, [_body_of_case(item)[1] for item in items])
        for item in items:
            patterns, body = _body_of_case(item)
            if any(fnmatchcase(subject.text, value(self.text(pattern), self.expansions).text) for pattern in patterns):
                return self.block(body)
        return True

    def ways(self, node: "Node", branches: list[tuple[list["Node"], list["Node"]]]) -> bool:
        """The first branch whose test holds; from one that is not decided on, all of them."""
        for i, (tests, body) in enumerate(branches):
            verdict = decide(tests[-1], self.expansions) if tests else True
            if verdict is None:
                return self.undecided(node, [body for _, body in branches[i:]])
            if verdict:
                return self.block(body)
        return True

    def undecided(self, node: "Node", bodies: list[list["Node"]]) -> bool:
        """Follows every branch by itself; what they leave differently is not known from here on."""
        line = self.line(node)
        test = _line(self.text(node).split("\n")[0])
        self.note(node, f"`{test}` is not decided by the script: every way was read")
        ends = []
        for body in bodies:
            walk = self.inside(self.variables.copy(), f"line {line} tests what the script does not decide")
            if walk.block(body):
                ends.append(walk.variables)
        if ends:
            self.variables.values = merge(ends, line).values
        return bool(ends)

    def not_followed(self, node: "Node") -> None:
        """A loop or function: its variables are not known from here on, and its launches are named."""
        line = self.line(node)
        what = {"function_definition": "a function", "compound_statement": "arithmetic"}.get(node.type, "a loop")
        why = f"{what} in line {line}, which is not followed"
        for name in _assigned(node):
            self.variables.doubt(name, f"{name} is set in {why}")
        self.note(node, f"{what} is not followed: {_line(self.text(node).split(chr(10))[0])}")
        if node.type != "compound_statement":
            self.inside(self.variables.copy(), why).block(_bodies(node))

    def inside(self, variables: Variables, doubt: str = "") -> "_Walk":
        walk = _Walk(self.script, variables, self.depth, self.first_line, self.doubt or doubt)
        walk.expansions.source = self.expansions.source
        return walk

    def text(self, node: "Node", end: int | None = None) -> str:
        """A command's source, with escaped blanks at its end, which tree-sitter takes for space between commands."""
        source = self.expansions.source
        if end is None:
            left_out = _ESCAPED_BLANKS.match(source, node.end_byte)
            end = left_out.end() if left_out else node.end_byte
        return source[node.start_byte : end].decode("utf-8", "replace")

    def note(self, node: "Node", text: str) -> None:
        self.script.notes.append(Note(self.line(node), text))

    def line(self, node: "Node") -> int:
        return self.first_line + node.start_point[0]

    def _shift(self, by: int) -> None:
        arguments = self.variables.items("@")[by:]
        self.variables.set("@", arguments)
        for name in [name for name in self.variables.values if name.isdigit()]:
            self.variables.unset(name)
        for i, argument in enumerate(arguments, 1):
            self.variables.set(str(i), argument)


def _branches(node: "Node") -> list[tuple[list["Node"], list["Node"]]]:
    """(tests, body) of each branch of an `if`; the last one has no test, and an empty body when there is no else."""
    found = [_branch(node)]
    for clause in node.children:
        if clause.type == "elif_clause":
            found.append(_branch(clause))
        elif clause.type == "else_clause":
            return [*found, ([], clause.named_children)]
    return [*found, ([], [])]


def _branch(node: "Node") -> tuple[list["Node"], list["Node"]]:
    then = next((i for i, child in enumerate(node.children) if child.type == "then"), len(node.children))
    clauses = ("comment", "elif_clause", "else_clause")
    tests, body = (
        [child for child in part if child.is_named and child.type not in clauses]
        for part in (node.children[:then], node.children[then:])
    )
    return tests, body


def _body_of_case(item: "Node") -> tuple[list["Node"], list["Node"]]:
    ended = next((i for i, child in enumerate(item.children) if child.type == ")"), len(item.children))
    patterns = [child for child in item.children[:ended] if child.is_named]
    return patterns, [child for child in item.children[ended:] if child.is_named]


def _bodies(node: "Node") -> list["Node"]:
    """The statements of a loop or function."""
    bodies = [child for child in node.named_children if child.type in ("do_group", "compound_statement")]
    return [statement for body in bodies for statement in body.named_children]


def _assigned(node: "Node") -> Iterator[str]:
    """Names of variables that are set anywhere in a node."""
    for child in node.children:
        if child.type == "variable_name" and node.type in (
            "variable_assignment",
            "for_statement",
            "postfix_expression",
            "subscript",
        ):
            yield _name(child)
        elif node.type == "compound_statement" and child.type in ("binary_expression", "postfix_expression"):
            yield from re.findall(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)", _name(child))
        yield from _assigned(child)


def _is_test(node: "Node") -> bool:
    found = re.match(r"!?\s*(\[|\(\(|test\b|grep\b|command\b|which\b|pgrep\b)", _name(node))
    return found is not None


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else line[:77] + "..."


def _name(node: "Node") -> str:
    """The text of a node that is ASCII by its kind."""
    return (node.text or b"").decode()
