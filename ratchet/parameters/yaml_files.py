"""Read YAML so that numbers are numbers, and mistakes have a file and a line.

PyYAML follows YAML 1.1, where ``1e-3`` is a string, ``no`` is false and a repeated key silently
wins; here ``1e-3`` is a number, only true and false are booleans, and a repeated key is an error.
Depth and size are bounded after aliases are expanded, and an alias may not contain itself.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from ratchet.errors import ParameterError, shorten, shown
from ratchet.parameters.file_defaults import with_files
from ratchet.parameters.interpolation import (
    MAX_DEPTH,
    MAX_VALUES,
    check_references,
    interpolate,
)
from ratchet.parameters.torchrl_files import uses_library_groups

_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_MAX_BITS = 1024
"""The size of integers, which every float of 64 bits has at most."""


class _Loader(yaml.SafeLoader):
    """A safe loader with YAML 1.2's numbers and booleans, no repeated keys, and bounds."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._extents: dict[int, tuple[int, int]] = {}
        """Number of values and depth of each finished node, by its identity."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401
        """Compose a node within the bounds on depth and size."""
        is_alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._check(self._depth, 1, mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if not is_alias:
            self._extents[id(node)] = self._extent(node)
        elif id(node) not in self._extents:  # its own children are still being read
            raise yaml.composer.ComposerError(None, None, "an alias contains itself", mark)
        size, height = self._extents[id(node)]
        self._check(self._depth + height - 1, size, mark)
        return node

    def _extent(self, node: yaml.Node) -> tuple[int, int]:
        """Return the number of values and the depth of a node from those of its children."""
        children = [] if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            children = [each for pair in node.value for each in pair]
        extents = [self._extents[id(each)] for each in children]
        height = max((height for _, height in extents), default=0)
        return 1 + sum(size for size, _ in extents), 1 + height

    def _check(self, depth: int, size: int, mark: yaml.Mark) -> None:
        if depth >= MAX_DEPTH:
            problem = f"nested deeper than {MAX_DEPTH} levels"
        elif size > MAX_VALUES:
            problem = f"got {size:,} values, aliases expanded, expected at most {MAX_VALUES:,}"
        else:
            return
        raise yaml.composer.ComposerError(None, None, problem, mark)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: ANN401
        """Construct a value; one that its type cannot hold is an error with a line."""
        try:
            value = super().construct_object(node, deep=deep)
            if isinstance(value, int) and value.bit_length() > _MAX_BITS:
                raise ValueError(f"expected an integer of at most {_MAX_BITS} bits")
            if isinstance(value, str):
                value.encode()  # not half of a character, such as \\ud800
                if "\0" in value:
                    raise ValueError("expected no NUL character")
            return value
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            hint = "" if kind == "str" else ". Put text in quotes"
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"invalid {kind} {shown(node.value)}: {shorten(error)}{hint}",
                node.start_mark,
            ) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            problem = None
            if not isinstance(key, Hashable):
                problem = f"the key {shown(key)} is a {type(key).__name__}, expected text"
            elif key in seen:
                problem = f"the key {shown(key)} stands here twice"
            if problem is not None:
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:bool")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))


def parse_yaml(text: str, source: str) -> Any:  # noqa: ANN401 -- YAML holds anything
    """Parse YAML that is from ``source``: a file's path or an override, for messages.

    Raises
    ------
    ParameterError
        For bad YAML, with ``source:line:column``.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        problem = shorten(error.problem, 500)
        raise ParameterError(f"{source}{place}: bad YAML: {problem}.") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ParameterError(
            f"{source}:{line}: bad YAML: character U+{error.character:04X} is not allowed."
        ) from error


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping with string keys; ``${a.b}`` is filled in.

    Files that its ``defaults`` name are read too.

    Raises
    ------
    ParameterError
        For bad YAML, a top level that is no mapping, or an interpolation to nowhere.
    """
    data = with_files(_parsed(path), path, _parsed)
    if "${" not in str(data):
        return data
    check_references(data, path)
    if uses_library_groups(data):  # which the library fills in itself
        return data
    return interpolate(data, path)


def _parsed(path: Path) -> dict[str, Any]:
    data = parse_yaml(_text_of(path), str(path))
    if not isinstance(data, dict):
        raise ParameterError(
            f"{path}: the top level is {type(data).__name__}, expected a mapping of parameters."
        )
    return data


def _text_of(path: Path) -> str:
    """Read a file of UTF-8.

    Raises
    ------
    ParameterError
        If it cannot be read or is not UTF-8, with the line and the byte.
    """
    try:
        content = path.read_bytes()
        return content.decode("utf-8")
    except OSError as error:
        raise ParameterError(f"{path}: cannot be read: {error}.") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ParameterError(
            f"{path}:{line}: not UTF-8: got byte 0x{content[error.start]:02x} at position"
            f" {error.start} ({error.reason}). Save the file as UTF-8."
        ) from error
