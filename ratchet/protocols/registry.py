"""From the name of a protocol to its handler.

Imports no protocol but the one asked for, and none to list their names; ``zero_knowledge``
wraps whichever it is.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import ratchet.protocols
from ratchet.errors import ParameterError, UnknownNameError, nearest
from ratchet.plugins import is_class_spec, load_class

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.handler import ProtocolHandler

ENTRY_POINT_GROUP = "ratchet.protocols"
_NOT_PROTOCOLS = frozenset(
    {
        "base",
        "checks",
        "handler",
        "long_protocol",
        "registry",
        "text_specs",
        "two_provers",
        "zero_knowledge",
    }
)
_REGISTERED: dict[str, type[ProtocolHandler]] = {}

_Handler = TypeVar("_Handler", bound="type[ProtocolHandler]")


def register_protocol_handler(name: str) -> Callable[[_Handler], _Handler]:
    """Give a protocol a name for ``interaction_protocol``.

    Parameters
    ----------
    name
        What stands in an experiment file.

    Raises
    ------
    ParameterError
        If another class has taken the name.
    """

    def decorate(handler_class: _Handler) -> _Handler:
        taken = _REGISTERED.get(name)
        if name in _built_in_names() and handler_class.__module__ != f"ratchet.protocols.{name}":
            owner = f"ratchet.protocols.{name}"
        elif taken is not None and _origin(taken) != _origin(handler_class):
            owner = _full_name(taken)
        else:
            _REGISTERED[name] = handler_class
            return handler_class
        raise ParameterError(
            f"protocol {name!r} is taken by {owner}; got {_full_name(handler_class)}."
            " Choose another name."
        )

    return decorate


def protocol_names() -> list[str]:
    """List the names of all protocols that can be played, without importing any."""
    return sorted({*_built_in_names(), *_installed(), *_REGISTERED})


def protocol_handler_class(name: str, *, base_dir: Path | None = None) -> type[ProtocolHandler]:
    """Find the class of a protocol.

    Parameters
    ----------
    name
        A registered name, or ``path/to/file.py:ClassName``.
    base_dir
        The folder that such a path starts from; the working folder if not given.

    Raises
    ------
    UnknownNameError
        If there is no such protocol; with the nearest name.
    ParameterError
        If the file or the class in it is no protocol handler.
    """
    if is_class_spec(name):
        from ratchet.protocols.handler import ProtocolHandler

        return load_class(name, base_dir, base=ProtocolHandler)  # type: ignore[type-abstract]
    check_protocol_name(name)
    if name in _built_in_names():
        import_module(f"ratchet.protocols.{name}")
    elif name not in _REGISTERED:
        loaded: type[ProtocolHandler] = _installed()[name].load()
        _REGISTERED.setdefault(name, loaded)
    return _REGISTERED[name]


def check_protocol_name(name: str) -> None:
    """Check that a protocol of that name exists, importing none.

    Raises
    ------
    UnknownNameError
        With the nearest name.
    """
    if not is_class_spec(name) and name not in protocol_names():
        raise UnknownNameError(
            f"interaction_protocol: unknown {name!r}.{nearest(name, protocol_names())}"
            " A protocol of your own is given as 'path/to/file.py:ClassName'."
        )


def build_protocol_handler(
    hyper_params: HyperParameters, *, base_dir: Path | None = None
) -> ProtocolHandler:
    """Make the handler of the experiment's protocol.

    Parameters
    ----------
    hyper_params
        Of these, ``interaction_protocol`` says which; with ``protocol_common.zero_knowledge``
        it is played in its zero-knowledge version.
    base_dir
        The folder that the path of a user's protocol starts from.

    Raises
    ------
    UnknownNameError, ParameterError
        If there is no such protocol, or it doesn't fit the other parameters.
    ProtocolSpecificationError
        If the protocol contradicts itself.
    """
    from ratchet.protocols.checks import check_agent_names, check_common_parameters

    handler_class = protocol_handler_class(hyper_params.interaction_protocol, base_dir=base_dir)
    handler: ProtocolHandler = handler_class.build(hyper_params, base_dir)
    check_agent_names(hyper_params, handler)
    check_common_parameters(hyper_params, handler)
    if not hyper_params.protocol_common.zero_knowledge:
        return handler
    # By name, since an edit of that module must not change the code fingerprint of other games.
    zero_knowledge = import_module("ratchet.protocols.zero_knowledge")
    wrapped: ProtocolHandler = zero_knowledge.ZeroKnowledgeProtocolHandler.around(handler)
    return wrapped


def check_protocol_parameters(
    hyper_params: HyperParameters, *, base_dir: Path | None = None
) -> None:
    """Check all that parameters say of the protocol, importing no more than that needs.

    Nothing heavy for a plain experiment; the protocol itself where its agents matter.

    Raises
    ------
    UnknownNameError, ParameterError, ProtocolSpecificationError
        As :func:`build_protocol_handler`.
    """
    check_protocol_name(hyper_params.interaction_protocol)
    common = hyper_params.protocol_common
    if common.randomize_prover_stance or common.zero_knowledge:
        build_protocol_handler(hyper_params, base_dir=base_dir)


@cache
def _built_in_names() -> frozenset[str]:
    found = pkgutil.iter_modules(ratchet.protocols.__path__)
    return frozenset(module.name for module in found) - _NOT_PROTOCOLS


@cache
def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _origin(handler_class: type) -> tuple[str, str]:
    """Return file and name: a plug-in may be run as a script, imported and loaded by path."""
    module = sys.modules.get(handler_class.__module__)
    file = getattr(module, "__file__", None)
    place = str(Path(file).resolve()) if file else handler_class.__module__
    return place, handler_class.__qualname__


def _full_name(handler_class: type) -> str:
    return f"{handler_class.__module__}.{handler_class.__qualname__}"
