"""The stage store: finished stages, each a folder named by its key, there whole or not at all.

Names are imported on first use, so that ``import ratchet.store`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.store.claim import Claim
    from ratchet.store.fingerprint import Fingerprint, code_fingerprint
    from ratchet.store.keys import canonical_json, stage_key
    from ratchet.store.manifest import FileEntry, IterationMetrics, Manifest
    from ratchet.store.misses import explain_miss
    from ratchet.store.store import Damage, StageStore

__all__ = [
    "Claim",
    "Damage",
    "FileEntry",
    "Fingerprint",
    "IterationMetrics",
    "Manifest",
    "StageStore",
    "canonical_json",
    "code_fingerprint",
    "explain_miss",
    "stage_key",
]

_HOMES = {
    "Claim": "ratchet.store.claim",
    "Damage": "ratchet.store.store",
    "FileEntry": "ratchet.store.manifest",
    "Fingerprint": "ratchet.store.fingerprint",
    "Manifest": "ratchet.store.manifest",
    "IterationMetrics": "ratchet.store.manifest",
    "StageStore": "ratchet.store.store",
    "canonical_json": "ratchet.store.keys",
    "code_fingerprint": "ratchet.store.fingerprint",
    "explain_miss": "ratchet.store.misses",
    "stage_key": "ratchet.store.keys",
}


__getattr__ = lazy_names(__name__, _HOMES)
