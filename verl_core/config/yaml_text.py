"""YAML text to plain values and back, with YAML 1.2's plain scalars: `off` is text, `1e-6` a number, `010` ten.

Reading and writing share the rules, so that what is written reads back as it was. PyYAML alone follows YAML 1.1, where
`trainer.parity=off` would be a boolean and `lr: 1e-6` text.
"""

import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import yaml

COMMENT_COLUMN = 44
MOST_VALUES = 100_000
"""Values of a document with its aliases written out: ten lines of them can stand for 10^10."""

_SCALARS = {  # tag: (pattern, first characters), YAML 1.2 core schema
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+", list("-+0123456789")),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    "merge": (r"<<", ["<"]),
}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses a key given twice and a value that contains itself."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_document(self, node: yaml.Node) -> Any:
        self.deep_construct = True  # whole values at once: PyYAML then notices a value that contains itself
        if _count(node, {}) > MOST_VALUES:
            raise yaml.constructor.ConstructorError(
                None, None, f"more than {MOST_VALUES} values, with aliases (*name) written out", node.start_mark
            )
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key.value!r} given twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _count(node: yaml.Node, counted: dict[yaml.Node, int]) -> int:
    """Values in a node, those behind an alias each time it stands there."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if node not in counted:
        counted[node] = 0  # one that contains itself ends here, and is refused when it is constructed
        pairs = node.value if isinstance(node, yaml.MappingNode) else [(item,) for item in node.value]
        counted[node] = 1 + sum(_count(child, counted) for pair in pairs for child in pair)
    return counted[node]


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, (_pattern, _first) in _SCALARS.items():
    for _cls in (_Loader, _Dumper):
        _cls.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))


def read(text: str) -> Any:
    """The plain value of a YAML document. Raises ValueError with a one-line reason."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark and (mark.line or mark.column) else ""
        raise ValueError(f"{place}{error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def write(value: Any) -> str:
    """YAML text in block style, keys in the given order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def annotate(text: str, comments: Mapping[str, str]) -> str:
    """YAML as `write` makes it, with a comment behind each value whose dotted key has one."""
    lines = text.splitlines()
    root = yaml.compose(text, Loader=_Loader)
    for key, line in _value_lines(root, "") if isinstance(root, yaml.MappingNode) else ():
        if key in comments:
            lines[line] = f"{lines[line].ljust(COMMENT_COLUMN)}  # {' '.join(comments[key].split())}"
    return "\n".join(lines) + "\n"


def _value_lines(mapping: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, int]]:
    """(dotted key, number of the line a comment may end) of every value that is no mapping of others."""
    for key, value in mapping.value:
        path = prefix + key.value
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _value_lines(value, f"{path}.")
        else:
            block = isinstance(value, yaml.SequenceNode) and not value.flow_style and value.value
            yield path, (key if block else value).end_mark.line
