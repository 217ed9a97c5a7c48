"""Why a stage is not in the store: what is different from the nearest finished one."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.store.fingerprint import Fingerprint
from ratchet.store.manifest import Manifest
from ratchet.store.store import StageStore

_ABSENT = object()
_SHOWN = 5


def explain_miss(
    store: StageStore,
    stage: str,
    iteration: int,
    parameters: Mapping[str, object],
    inputs: Mapping[str, str | int],
    fingerprint: Fingerprint,
) -> str:
    """Return why a stage must be made, by comparison with the finished stage that is most like it.

    For example ``"rl.lr: 0.003 → 0.001; code: trainers.loss changed"``, where the arrow goes from
    the finished stage to the wanted one, or ``"no finished stage like this"``.
    """
    nearest: Manifest | None = None
    fewest = 0
    for manifest in store.iterate():
        if manifest.stage != stage or manifest.iteration != iteration:
            continue
        count = (
            _count(manifest.parameters, parameters)
            + _count(manifest.inputs, inputs)
            + _count(manifest.fingerprint.modules, fingerprint.modules)
        )
        newer = nearest is None or manifest.created > nearest.created
        if nearest is None or count < fewest or (count == fewest and newer):
            nearest, fewest = manifest, count
    if nearest is None:
        return "no finished stage like this"
    lines = _differences(nearest, parameters, inputs, fingerprint)
    if not lines:
        return "nothing differs: it is finished by now"
    more = len(lines) - _SHOWN
    return "; ".join(lines[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _count(old: object, new: object) -> int:
    """Count the leaves that differ, without a look into what is equal."""
    if old == new:
        return 0
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = old.keys() | new.keys()
        return sum(_count(old.get(name, _ABSENT), new.get(name, _ABSENT)) for name in names)
    return 1


def _differences(
    manifest: Manifest,
    parameters: Mapping[str, object],
    inputs: Mapping[str, str | int],
    fingerprint: Fingerprint,
) -> list[str]:
    lines = [
        f"{path}: {old} → {new}"
        for path, old, new in _changed(_flat(manifest.parameters), _flat(parameters))
    ]
    lines += [
        f"input {name}: {_short(old)} → {_short(new)}"
        for name, old, new in _changed(_flat(manifest.inputs), _flat(inputs))
    ]
    lines += [f"code: {line}" for line in fingerprint.difference(manifest.fingerprint)]
    return lines


def _flat(value: object, path: str = "") -> dict[str, object]:
    """Return the leaves of nested data by dotted path; empty mappings and lists are leaves."""
    pairs: list[tuple[str, object]] = []
    if isinstance(value, Mapping):
        pairs = [(str(name), item) for name, item in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [(str(index), item) for index, item in enumerate(value)]
    if not pairs:
        return {path: [] if isinstance(value, tuple) else value}
    leaves: dict[str, object] = {}
    for name, item in pairs:
        leaves |= _flat(item, f"{path}.{name}" if path else name)
    return leaves


def _changed(
    old: Mapping[str, object], new: Mapping[str, object]
) -> list[tuple[str, object, object]]:
    """List the paths whose values differ, also in type, with what stands on each side."""
    result = []
    for path in sorted(old.keys() | new.keys()):
        before, after = old.get(path, _ABSENT), new.get(path, _ABSENT)
        if type(before) is not type(after) or before != after:
            result.append((path or "all", _shown(before), _shown(after)))
    return result


def _shown(value: object) -> object:
    return "(absent)" if value is _ABSENT else value


def _short(value: object) -> object:
    """Return the first digits of a key; a short value whole."""
    return value[:8] if isinstance(value, str) and len(value) == 64 else value
