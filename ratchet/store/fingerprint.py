"""The code fingerprint: which sources decide what a stage does.

Follows the imports of the classes' modules through the project's own packages and the user's
plug-ins, so that an edited loss changes the keys of what it trained, and nothing else. Installed
libraries are not followed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ratchet.errors import StageKeyError
from ratchet.store.closure import Closure
from ratchet.store.keys import canonical_json


@dataclass(frozen=True)
class Fingerprint:
    """Digests of modules by name, and the digest of them all."""

    digest: str
    modules: dict[str, str]

    @classmethod
    def of_modules(cls, modules: Mapping[str, str]) -> Fingerprint:
        """Make a fingerprint from the digests of modules."""
        ordered = {name: modules[name] for name in sorted(modules)}
        return cls(hashlib.sha256(canonical_json(ordered)).hexdigest(), ordered)

    def difference(self, other: Fingerprint) -> list[str]:
        """Return what is different here, now, from an earlier fingerprint, sorted by name.

        ``"NAME changed"``, ``"NAME added"`` (it is only in this one) or ``"NAME removed"`` for each
        module.
        """
        lines = []
        for name in sorted(self.modules.keys() | other.modules.keys()):
            ours, theirs = self.modules.get(name), other.modules.get(name)
            if ours != theirs:
                word = "removed" if ours is None else "added" if theirs is None else "changed"
                lines.append(f"{name} {word}")
        return lines


def code_fingerprint(
    *objects: type | ModuleType | Callable[..., object],
    extra_roots: Sequence[str | Path] = (),
) -> Fingerprint:
    """Compute the fingerprint of all project code that the objects stand on.

    Parameters
    ----------
    objects
        Classes, functions or modules that do the stage's work, the project's or a plug-in's.
        A class brings its bases too.
    extra_roots
        Files that count as well, and folders whose modules count when they are imported.

    Raises
    ------
    StageKeyError
        If nothing is given, or the source of an object can't be found or read.
    """
    if not objects and not extra_roots:
        raise StageKeyError("code fingerprint: got no class, function or module to look at.")
    closure = Closure()
    for root in map(Path, extra_roots):
        if root.is_dir():
            closure.folders.append(root.resolve())
        else:
            closure.add_file(root.resolve(), root.stem)
    for item in objects:
        closure.add_object(item)
    closure.follow()
    return Fingerprint.of_modules(closure.digests())
