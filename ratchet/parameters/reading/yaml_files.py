"""Read YAML so that numbers are numbers, and mistakes have a file and a line.

PyYAML follows YAML 1.1, where ``1e-3`` is a string, ``no`` is false and a repeated key silently
wins; here ``1e-3`` is a number, only true and false are booleans, and a repeated key is an error.
Depth and size are bounded after aliases are expanded, and an alias may not contain itself.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import tomllib
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from ratchet.errors import ParameterError, kind_of, shorten, shown
from ratchet.parameters.compatibility.hydra import with_files
from ratchet.parameters.compatibility.other_systems import refuse_other_systems
from ratchet.parameters.compatibility.torchrl_files import uses_library_groups

_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_OLD_INTEGER = re.compile(r"[-+]?(0[0-7_]+|[1-9][0-9_]*(:[0-5]?[0-9])+)")
"""An octal number or one of base 60 in YAML 1.1, which YAML 1.2 reads otherwise."""
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_MAX_BITS = 1024
"""The size of integers, which every float of 64 bits has at most."""


class _Loader(yaml.SafeLoader):
    """A safe loader with YAML 1.2's numbers and booleans, no repeated keys, and bounds."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._extents: dict[int, tuple[int, int]] = {}
        """Number of values and depth of each finished node, by identity."""

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
            if node.tag.endswith(":int") and _OLD_INTEGER.fullmatch(node.value):
                raise ValueError("expected a decimal number without leading zeros or colons")
            value = super().construct_object(node, deep=deep)
            if isinstance(value, int) and value.bit_length() > _MAX_BITS:
                raise ValueError(f"expected an integer of at most {_MAX_BITS} bits")
            if isinstance(value, str):
                value.encode()  # refuses half of a surrogate pair, such as \\ud800
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
                problem = f"the key {shown(key)} is {kind_of(key)}, expected text"
            elif key in seen:
                problem = f"duplicate key {shown(key)}"
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
    """Parse YAML that is from ``source``: a file's path or an override, for messages."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        problem = shorten(error.problem, 500)
        raise ParameterError(f"{source}{position}: bad YAML: {problem}.") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ParameterError(
            f"{source}:{line}: bad YAML: character U+{error.character:04X} is not allowed."
        ) from error


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping with string keys; ``${a.b}`` is filled in.

    Files that its ``defaults`` name are read too.
    """
    data = with_files(_parsed(path), path, _parsed)
    if "${" not in str(data):
        return data
    if uses_library_groups(data):  # which the library fills in itself
        return data
    return interpolate(data, path)


def header_comment(path: Path) -> str | None:
    """Return the comment at the start of a YAML file, without the number signs; None without."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), _text_of(path).splitlines())
    return "\n".join(line[1:].removeprefix(" ").rstrip() for line in lines).strip("\n") or None


def _parsed(path: Path) -> dict[str, Any]:
    if path.suffix.lower() == ".toml":
        with contextlib.suppress(tomllib.TOMLDecodeError):
            refuse_other_systems(tomllib.loads(_text_of(path)), path)
        raise ParameterError(f"{path}: got a TOML file, expected an experiment file in YAML.")
    data = parse_yaml(_text_of(path), str(path))
    if not isinstance(data, dict):
        got = "the file is empty" if data is None else f"the top level is {kind_of(data)}"
        raise ParameterError(
            f"{path}: {got}, expected a mapping of parameters (scenario, trainer, dataset …)."
        )
    return data


def _text_of(path: Path) -> str:
    """Read a file of UTF-8."""
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


MAX_DEPTH = 100
MAX_VALUES = 100_000
"""The number of values of a file, with all values that its aliases stand for."""


def interpolate(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a file's values with all references filled in."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        result = OmegaConf.to_container(OmegaConf.create(data), resolve=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "?"
        first_line = str(error).splitlines()[0]
        raise ParameterError(f"{path}: {shorten(key)}: {shorten(first_line, 500)}.") from error
    assert isinstance(result, dict)  # from a dict
    return {str(key): value for key, value in result.items()}
