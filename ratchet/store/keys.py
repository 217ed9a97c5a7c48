"""Keys of stages: SHA-256 of canonical JSON.

Two stages share a key exactly if everything that affects their result is equal. A value whose
text could differ between two processes is refused, since its stage would never be a cache hit.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping

from ratchet.errors import StageKeyError

SCHEMA_VERSION = 1
"""Incremented when the meaning of a key or a manifest changes; older stages are then misses."""

_MAX_DEPTH = 64
_KEY = re.compile(r"[0-9a-f]{64}")


def canonical_json(value: object) -> bytes:
    """Return plain data as canonical JSON: equal data has equal text.

    Mappings are sorted by key; there is no white space; text is UTF-8. ``1`` and ``1.0`` differ,
    as do ``1`` and ``True``; a list and a tuple of equal elements are the same.

    Parameters
    ----------
    value
        Mappings with text keys, lists, tuples, text, integers, finite floats, booleans, None.

    Raises
    ------
    StageKeyError
        For anything else; the message has the dotted path, the value and the expected type.
    """
    plain = _plain(value, "", 0)
    text = json.dumps(
        plain, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    return text.encode()


def stage_key(
    stage: str,
    iteration: int,
    parameters: Mapping[str, object],
    inputs: Mapping[str, str | int],
    fingerprint: str,
) -> str:
    """Return the key of a stage, 64 hexadecimal digits.

    Parameters
    ----------
    iteration
        Number of finished iterations after the stage, from 0.
    parameters
        The hyper-parameters that the stage reads, no others.
    inputs
        Keys of the stages whose results it reads, by role.

    Raises
    ------
    StageKeyError
        If any part cannot be written as canonical JSON, or stage or fingerprint is empty.
    """
    for name, text in (("stage", stage), ("fingerprint", fingerprint)):
        if not isinstance(text, str) or not text:
            raise StageKeyError(f"stage key: {name} is {text!r}, expected non-empty text.")
    if type(iteration) is not int or iteration < 0:
        raise StageKeyError(f"stage key: iteration is {iteration!r}, expected an integer from 0.")
    for name, mapping in (("parameters", parameters), ("inputs", inputs)):
        if not isinstance(mapping, Mapping):
            raise StageKeyError(f"stage key: {name} is {mapping!r}, expected a mapping.")
    content = {
        "schema": SCHEMA_VERSION,
        "stage": stage,
        "iteration": iteration,
        "parameters": parameters,
        "inputs": inputs,
        "fingerprint": fingerprint,
    }
    return hashlib.sha256(canonical_json(content)).hexdigest()


def is_key(name: str) -> bool:
    """Return whether a name is a stage's key: 64 lower-case hexadecimal digits."""
    return _KEY.fullmatch(name) is not None


def check_key(key: str) -> str:
    """Return a valid key unchanged."""
    if not isinstance(key, str) or not is_key(key):
        raise StageKeyError(
            f"stage key: got {key!r}, expected 64 lower-case hexadecimal digits from stage_key()."
        )
    return key


def _plain(value: object, path: str, depth: int) -> object:
    """Copy plain data; raise for values without canonical JSON."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        assert isinstance(value, int)
        if value.bit_length() > 1024:
            raise _refusal(path, f"an integer of {value.bit_length()} bits", "at most 1024 bits")
        return value
    if kind is str:
        return _checked_text(value, path)
    if kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]  # its type is float
            raise _refusal(path, value, "a finite number")
        return value
    if depth >= _MAX_DEPTH:
        raise _refusal(path, value, f"at most {_MAX_DEPTH} levels; does it contain itself?")
    if isinstance(value, Mapping):
        result = {}
        for key, item in value.items():
            if type(key) is not str:
                raise _refusal(_join(path, repr(key)), key, "text as the key of a mapping")
            inner = _join(path, key.encode("utf-8", "backslashreplace").decode())
            result[_checked_text(key, inner)] = _plain(item, inner, depth + 1)
        return result
    if kind in (list, tuple):
        assert isinstance(value, list | tuple)
        return [_plain(item, _join(path, str(i)), depth + 1) for i, item in enumerate(value)]
    raise _refusal(
        path, value, "a mapping, list, text, integer, finite float, boolean or None (exact types)"
    )


def _checked_text(value: object, path: str) -> str:
    assert isinstance(value, str)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _refusal(path, value, "text that UTF-8 can encode") from error
    return value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _refusal(path: str, value: object, expected: str) -> StageKeyError:
    representation = repr(value)
    if len(representation) > 80:
        representation = representation[:77] + "..."
    return StageKeyError(
        f"stage key: {path or 'the value'} is {representation} of type {type(value).__name__},"
        f" expected {expected}. Convert it to plain data first."
    )
