"""A claim: the result of a finished stage, or the sole right to make it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.errors import StageKeyError, StoreError
from ratchet.store.backend import Backend
from ratchet.store.failures import store_errors
from ratchet.store.fingerprint import Fingerprint
from ratchet.store.keys import canonical_json, stage_key
from ratchet.store.local import seal_files
from ratchet.store.manifest import IterationMetrics, Manifest, metric_points


class Claim:
    """What :meth:`StageStore.claim` yields.

    ``existing`` is the manifest of the finished stage; None if it is to be made.
    """

    def __init__(
        self, backend: Backend, key: str, existing: Manifest | None, work: Path | None
    ) -> None:
        self.key = key
        self.existing = existing
        self._backend = backend
        self._work = work
        self._started = time.monotonic()

    @property
    def workdir(self) -> Path:
        """An empty folder for the stage's files; gone when the claim ends without a commit.

        Raises
        ------
        StoreError
            If the stage is finished.
        """
        return self._open_work()

    def commit(
        self,
        *,
        stage: str,
        iteration: int,
        parameters: Mapping[str, Any],
        inputs: Mapping[str, str | int],
        fingerprint: Fingerprint,
        metrics: Sequence[IterationMetrics | Mapping[str, Any]] = (),
        start_iteration: int | None = None,
        seconds: float | None = None,
        run_id: str | None = None,
    ) -> Manifest:
        """Store the files in ``workdir`` as the finished stage, all at once.

        Parameters
        ----------
        stage, iteration, parameters, inputs, fingerprint
            What the key was computed from.
        metrics
            Points, or mappings ``{"iteration": i, "values": {name: number}}``.
        start_iteration
            Where the stage started from; ``iteration`` when it covers none.
        seconds
            What the work took; since the claim when None.
        run_id
            The run that did it, for readers.

        Returns
        -------
        Manifest
            That of the finished stage; somebody else's if it was put there meanwhile.

        Raises
        ------
        StageKeyError
            If the key of these values is not the claimed one.
        StoreError
            If the stage is finished already, or can't be written; then nothing is stored.
        """
        work = self._open_work()
        computed = stage_key(stage, iteration, parameters, inputs, fingerprint.digest)
        if computed != self.key:
            raise StageKeyError(
                f"stage {stage} {iteration}: its values have key {computed}, but {self.key} was"
                " claimed. Pass commit() what was passed to stage_key()."
            )
        plain = json.loads(canonical_json(parameters))
        with store_errors(f"store stage {stage} {iteration} ({self.key})", self._backend.place):
            manifest = Manifest(
                key=self.key,
                stage=stage,
                iteration=iteration,
                start_iteration=iteration if start_iteration is None else start_iteration,
                inputs=dict(inputs),
                files=seal_files(work),
                metrics=metric_points(metrics),
                fingerprint=fingerprint,
                parameters=plain,
                created=datetime.now(UTC).isoformat(timespec="milliseconds"),
                seconds=time.monotonic() - self._started if seconds is None else seconds,
                run_id=run_id,
            )
            self.existing = self._publish(work, manifest)
        return self.existing

    def adopt(self, manifest: Manifest) -> Manifest:
        """Store the files in ``workdir`` as a stage that was made elsewhere, all at once.

        Raises
        ------
        StageKeyError
            If the manifest's values don't have the claimed key.
        StoreError
            If the files are not those of the manifest, or can't be written; nothing is stored then.
        """
        work = self._open_work()
        computed = manifest.computed_key()
        if not self.key == manifest.key == computed:
            raise StageKeyError(
                f"stage {manifest.stage} {manifest.iteration}: its values have key {computed}, but"
                f" {self.key} was claimed and its manifest says {manifest.key}."
            )
        with store_errors(f"store stage {self.key}", self._backend.place):
            if seal_files(work) != manifest.files:
                raise StoreError(f"stage {self.key}: its files are not those of its manifest.")
            self.existing = self._publish(work, manifest)
        return self.existing

    def _publish(self, work: Path, manifest: Manifest) -> Manifest:
        if self._backend.publish(work, self.key, manifest):
            return manifest
        text = self._backend.read_manifest(self.key)
        if text is None:
            raise StoreError(f"stage {self.key} appeared in {self._backend.place} and went away.")
        return Manifest.from_bytes(text, self.key)

    def _open_work(self) -> Path:
        if self._work is None or self.existing is not None:
            raise StoreError(
                f"stage {self.key} is finished: there is nothing to write. Look at"
                " `claim.existing` first."
            )
        return self._work
