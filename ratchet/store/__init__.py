"""The stage store: finished stages, each a folder named by its key, complete or absent.

Names are imported on first use, so that ``import ratchet.store`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.store.claim import Claim as Claim
    from ratchet.store.fingerprint import Fingerprint as Fingerprint
    from ratchet.store.fingerprint import code_fingerprint as code_fingerprint
    from ratchet.store.keys import canonical_json as canonical_json
    from ratchet.store.keys import stage_key as stage_key
    from ratchet.store.manifest import FileEntry as FileEntry
    from ratchet.store.manifest import IterationMetrics as IterationMetrics
    from ratchet.store.manifest import Manifest as Manifest
    from ratchet.store.store import Damage as Damage
    from ratchet.store.store import StageStore as StageStore

export_lazily(__name__)
