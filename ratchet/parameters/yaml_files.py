"""Read YAML so that numbers are numbers, and mistakes have a file and a line.

PyYAML follows YAML 1.1, where ``1e-3`` is a string, ``no`` is false and a repeated key silently
wins; here ``1e-3`` is a number, only true and false are booleans, and a repeated key is an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ratchet.errors import ParameterError
from ratchet.parameters.file_defaults import with_files
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


class _Loader(yaml.SafeLoader):
    """A safe loader with YAML 1.2's numbers and booleans, and no repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands here twice", key_node.start_mark
                )
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
        raise ParameterError(f"{source}{place}: bad YAML: {error.problem}.") from error
    except yaml.YAMLError as error:
        raise ParameterError(f"{source}: bad YAML: {error}.") from error


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping with string keys; ``${a.b}`` is filled in.

    Files that its ``defaults`` name are read too.

    Raises
    ------
    ParameterError
        For bad YAML, a top level that is no mapping, or an interpolation to nowhere.
    """
    data = with_files(_parsed(path), path, _parsed)
    if uses_library_groups(data) or "${" not in str(data):  # which the library fills in itself
        return data
    return _interpolate(data, path)


def _parsed(path: Path) -> dict[str, Any]:
    data = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(data, dict):
        raise ParameterError(
            f"{path}: the top level is {type(data).__name__}, expected a mapping of parameters."
        )
    return data


def _interpolate(data: dict[str, Any], path: Path) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        result = OmegaConf.to_container(OmegaConf.create(data), resolve=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "?"
        first_line = str(error).splitlines()[0]
        raise ParameterError(f"{path}: {key}: {first_line}.") from error
    assert isinstance(result, dict)  # made from a dict
    return {str(key): value for key, value in result.items()}
