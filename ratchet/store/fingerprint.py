"""Code fingerprint: digests of all sources that can affect a stage's result.

Follows the names that the stage's classes use through the project's packages and the user's
plug-ins, so that an edited loss changes the keys of the stages that use it, and no others.
Installed libraries are not followed.

Each release ships a table of code digests with equivalent earlier code, ``equivalents.json``, so
that stored stages survive an upgrade. ``make equivalents`` runs the golden experiments with the
earlier release and with this one, and adds a row for each digest whose stages have bit for bit the
same outputs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ratchet.errors import StageKeyError
from ratchet.store.closure import Closure, KnownCode, is_project
from ratchet.store.keys import canonical_json
from ratchet.store.source_cache import read_source
from ratchet.store.sources import Source, SourceFacts

TABLE = Path(__file__).with_name("equivalents.json")


@dataclass(frozen=True)
class Fingerprint:
    """Digests of modules and files by name, and one digest of them all.

    In ``digest``, Ratchet's own modules count as the oldest release whose code is equivalent, so it
    survives an upgrade that changes no result.
    """

    digest: str
    modules: dict[str, str]

    @classmethod
    def from_modules(cls, modules: Mapping[str, str]) -> Fingerprint:
        """Return the fingerprint of digests of modules and files."""
        ordered = {name: modules[name] for name in sorted(modules)}
        others = {name: each for name, each in ordered.items() if not is_project(name)}
        code = code_digest(ordered)
        content = [_equivalents().get(code, code), others]
        return cls(hashlib.sha256(canonical_json(content)).hexdigest(), ordered)

    def difference(self, other: Fingerprint) -> list[str]:
        """Return the modules that differ from an earlier fingerprint, sorted by name.

        Each line is ``"NAME changed"``, ``"NAME added"`` (only in this one) or ``"NAME removed"``.
        """
        lines = []
        for name in sorted(self.modules.keys() | other.modules.keys()):
            new, old = self.modules.get(name), other.modules.get(name)
            if new != old:
                word = "removed" if new is None else "added" if old is None else "changed"
                lines.append(f"{name} {word}")
        return lines


def code_digest(modules: Mapping[str, str]) -> str:
    """Return the digest of Ratchet's own modules among those of a fingerprint."""
    project = {name: modules[name] for name in sorted(modules) if is_project(name)}
    return hashlib.sha256(canonical_json(project)).hexdigest()


_PROJECT_DIGESTS: dict[object, tuple[list[tuple[Source, SourceFacts]], dict[str, str]]] = {}
"""Roots of a closure without plug-ins → its sources as they were read, and its digests."""


_FOLLOWING = threading.Lock()
"""Held while code is followed: threads that compute keys of one run share what they have read."""


def code_fingerprint(
    *objects: type | ModuleType | Callable[..., object],
    extra_roots: Sequence[str | Path] = (),
    definitions: Sequence[tuple[str, str]] = (),
    excluded: Sequence[tuple[str, str]] = (),
    code: KnownCode | None = None,
    shared: Sequence[type | ModuleType | Callable[..., object]] = (),
) -> Fingerprint:
    """Compute the fingerprint of all project code that the objects use.

    Parameters
    ----------
    objects
        Classes (with their bases), functions or modules that compute the stage.
    extra_roots
        Files that count as well, and folders whose modules count if they are imported.
    definitions
        Definitions of the project that count as well, as module and name; not imported for this.
    excluded
        Definitions that don't count, nor what only they use, since the stage never executes them.
    code
        Code read before, if files have not changed since; extended by new reads.
    shared
        Objects that count as well, and are those of other stages too: with ``code``, their uses are
        followed once.

    Raises
    ------
    StageKeyError
        If all arguments are empty, or the source of an object can't be found or read.
    """
    if not objects and not extra_roots and not definitions and not shared:
        raise StageKeyError("code fingerprint: got no class, function or module.")
    folders = tuple(map(str, extra_roots))
    roots = (frozenset((*objects, *shared)), folders, frozenset(definitions), tuple(excluded))
    if code is not None and roots in code.closures:
        return Fingerprint.from_modules(code.closures[roots])
    known = _PROJECT_DIGESTS.get(roots)
    if known is not None and all(read_source(source) is facts for source, facts in known[0]):
        return Fingerprint.from_modules(known[1])
    with _FOLLOWING:
        closure = _shared_closure(shared, excluded, code or KnownCode())
        for root in map(Path, extra_roots):
            if root.is_dir():
                closure.add_folder(root.resolve())
            else:
                closure.add_file(root.resolve(), root.stem)
        for item in objects:
            closure.add_object(item)
        for module, name in definitions:
            closure.add_definition(module, name)
        closure.follow()
        modules = closure.digests()
    if not closure.has_plugins and not closure.folders:
        _PROJECT_DIGESTS[roots] = closure.read_sources, modules
    if code is not None:
        code.closures[roots] = modules
    return Fingerprint.from_modules(modules)


def _shared_closure(
    objects: Sequence[object], excluded: Sequence[tuple[str, str]], code: KnownCode
) -> Closure:
    """Return a closure of objects, which is followed once and may be extended."""
    roots = (frozenset(objects), tuple(excluded))
    if roots not in code.shared:
        closure = Closure.sharing(code, excluded)
        for item in objects:
            closure.add_object(item)
        closure.follow()
        code.shared[roots] = closure
    return code.shared[roots].copy()


def find_definition(modules: Sequence[str], name: str) -> tuple[str, str]:
    """Return the first of the project's modules that defines or imports a name, and the name."""
    closure = Closure()
    for module in modules:
        source = closure.locate(module)
        facts = None if source is None else read_source(source)
        if facts is not None and (name in facts.definitions or name in facts.bindings):
            return module, name
    raise StageKeyError(f"code fingerprint: found no {name!r} in {', '.join(modules)}.")


@functools.cache
def _equivalents() -> Mapping[str, str]:
    return read_equivalents(TABLE)


def read_equivalents(path: Path) -> dict[str, str]:
    """Read a table: digest of code → digest of the oldest equivalent code."""
    try:
        rows: dict[str, str] = json.loads(path.read_text())["code"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StageKeyError(
            f"{path}: not a table of equivalent code ({type(error).__name__}: {error}). Install"
            " Ratchet again."
        ) from error
    chained = sorted(rows.keys() & set(rows.values()))
    if chained:
        raise StageKeyError(
            f"{path}: {chained[0]} is equivalent to other code, and other code to it; expected"
            " every row to lead to the oldest release. Write it with `make equivalents`."
        )
    return rows
