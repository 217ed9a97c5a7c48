"""``StageIndex``: a store's finished stages, listed once, and why a stage is not one of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from ratchet.store.keys import canonical_json

if TYPE_CHECKING:
    from ratchet.store.fingerprint import Fingerprint
    from ratchet.store.manifest import Manifest
    from ratchet.store.store import StageStore

_MAX_DIFFERENCES = 5
_ABSENT = object()


class StageIndex:
    """The stages that a store has when they are first requested, by name and iteration.

    A manifest is read completely when a stage like it is requested.
    """

    def __init__(self, store: StageStore) -> None:
        self._store = store
        self._by_content: dict[tuple[str, int], dict[bytes, list[Manifest]]] = {}

    @cached_property
    def _keys(self) -> dict[tuple[str, int], list[str]]:
        keys: dict[tuple[str, int], list[str]] = {}
        for key, stage, iteration in self._store.identities():
            keys.setdefault((stage, iteration), []).append(key)
        return keys

    @property
    def names(self) -> set[str]:
        """The names of the stages."""
        return {stage for stage, _ in self._keys}

    def stages(self, stage: str, iteration: int) -> list[Manifest]:
        """Return the finished stages of a name and iteration, by key."""
        keys = self._keys.get((stage, iteration), ())
        manifests = (self._store.peek(key) for key in keys)
        return [manifest for manifest in manifests if manifest is not None]

    def with_other_code(
        self,
        stage: str,
        iteration: int,
        parameters: Mapping[str, object],
        inputs: Mapping[str, str | int],
    ) -> Manifest | None:
        """Return the newest stage with these parameters and inputs; None without one."""
        identity = (stage, iteration)
        if identity not in self._by_content:
            by_content: dict[bytes, list[Manifest]] = {}
            for manifest in self.stages(*identity):
                content = canonical_json([manifest.parameters, manifest.inputs])
                by_content.setdefault(content, []).append(manifest)
            self._by_content[identity] = by_content
        matches = self._by_content[identity].get(canonical_json([parameters, inputs]), ())
        return max(matches, key=lambda manifest: manifest.created, default=None)

    def explain_miss(
        self,
        stage: str,
        iteration: int,
        parameters: Mapping[str, object],
        inputs: Mapping[str, str | int],
        fingerprint: Fingerprint,
        preferred: Collection[str] = (),
    ) -> str:
        """Return the differences between a stage and the most similar finished stage.

        For example ``"rl.lr: 0.003 → 0.001; code: trainers.loss changed"``, where the arrow leads
        from the finished stage to the requested one, or ``"no finished stage like this"``. Stages
        of the same scenario are compared first, and of them the ``preferred`` keys.
        """

        def distance(manifest: Manifest) -> tuple[bool, bool, int]:
            return (
                manifest.parameters.get("scenario") != parameters.get("scenario"),
                manifest.key not in preferred,
                _count(manifest.parameters, parameters)
                + _count(manifest.inputs, inputs)
                + _count(manifest.fingerprint.modules, fingerprint.modules),
            )

        newest_first = sorted(self.stages(stage, iteration), key=lambda m: m.created, reverse=True)
        nearest = min(newest_first, key=distance, default=None)
        if nearest is None:
            return "no finished stage like this"
        lines = [f"{p}: {old} → {new}" for p, old, new in _changed(nearest.parameters, parameters)]
        for name, old, new in _changed(nearest.inputs, inputs):
            lines.append(f"input {name}: {_short(old)} → {_short(new)}")
        lines += [f"code: {line}" for line in fingerprint.difference(nearest.fingerprint)]
        if not lines:
            return "no difference: it is finished by now"
        more = len(lines) - _MAX_DIFFERENCES
        return "; ".join(lines[:_MAX_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")


def _count(old: object, new: object) -> int:
    """Count the leaves that differ, without traversing equal parts."""
    if old == new:
        return 0
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = old.keys() | new.keys()
        return sum(_count(old.get(name, _ABSENT), new.get(name, _ABSENT)) for name in names)
    return 1


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


def _changed(before: object, after: object) -> list[tuple[str, object, object]]:
    """List the paths whose values differ, also in type, with both values."""
    result = []
    olds, news = _flat(before), _flat(after)
    for path in sorted(olds.keys() | news.keys()):
        old, new = olds.get(path, _ABSENT), news.get(path, _ABSENT)
        if type(old) is not type(new) or old != new:
            old, new = ("(absent)" if value is _ABSENT else value for value in (old, new))
            result.append((path or "all", old, new))
    return result


def _short(value: object) -> object:
    """Return the first digits of a key; other values unchanged."""
    return value[:8] if isinstance(value, str) and len(value) == 64 else value
