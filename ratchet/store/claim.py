"""A claim: the result of a finished stage, or the exclusive right to compute it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.errors import StageKeyError, StoreError
from ratchet.store.backend import Backend, store_errors
from ratchet.store.fingerprint import Fingerprint
from ratchet.store.keys import canonical_json, stage_key
from ratchet.store.local import seal_files
from ratchet.store.manifest import IterationMetrics, Manifest, metric_points


class Claim:
    """Result of :meth:`StageStore.claim`.

    ``existing`` is the manifest of the finished stage; None if it must be computed.
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
        """An empty folder for the stage's files; removed if the claim ends without a commit.

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
        versions: Mapping[str, str] | None = None,
    ) -> Manifest:
        """Store the files in ``workdir`` as the finished stage, atomically.

        Parameters
        ----------
        stage, iteration, parameters, inputs, fingerprint
            The values from which the key was computed.
        metrics
            Points, or mappings ``{"iteration": i, "values": {name: number}}``.
        start_iteration
            The iteration at which the stage started; ``iteration`` when it covers none.
        seconds
            The duration of the work; since the claim when None.
        run_id
            The run that computed it, for information.
        versions
            The versions of Ratchet and the libraries that computed it, for information.

        Returns
        -------
        Manifest
            That of the finished stage; of another process if that has stored it first.

        Raises
        ------
        StageKeyError
            If the key of these values is not the claimed key.
        StoreError
            If the stage is finished already, or can't be written; then no file is stored.
        """
        work = self._open_work()
        computed = stage_key(stage, iteration, parameters, inputs, fingerprint.digest)
        if computed != self.key:
            raise StageKeyError(
                f"stage {stage} {iteration}: its values have key {computed}, but {self.key} was"
                " claimed. Pass the same values to commit() as to stage_key()."
            )
        plain = json.loads(canonical_json(parameters))
        with store_errors(f"store stage {stage} {iteration} ({self.key})", self._backend.location):
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
                versions=dict(versions or {}),
            )
            self.existing = self._publish(work, manifest)
        return self.existing

    def adopt(self, manifest: Manifest) -> Manifest:
        """Store the files in ``workdir`` as a stage computed elsewhere, atomically.

        Raises
        ------
        StageKeyError
            If the manifest's values don't have the claimed key.
        StoreError
            If the files don't match the manifest, or can't be written; then no file is stored.
        """
        work = self._open_work()
        computed = manifest.computed_key()
        if not self.key == manifest.key == computed:
            raise StageKeyError(
                f"stage {manifest.stage} {manifest.iteration}: its values have key {computed}, but"
                f" {self.key} was claimed and its manifest has {manifest.key}."
            )
        with store_errors(f"store stage {self.key}", self._backend.location):
            if seal_files(work) != manifest.stored_files:
                raise StoreError(f"stage {self.key}: its files don't match its manifest.")
            self.existing = self._publish(work, manifest)
        return self.existing

    def _publish(self, work: Path, manifest: Manifest) -> Manifest:
        if self._backend.publish(work, self.key, manifest):
            return manifest
        text = self._backend.read_manifest(self.key)
        if text is None:
            raise StoreError(f"stage {self.key} was stored concurrently, and then removed.")
        return Manifest.from_bytes(text, self.key)

    def _open_work(self) -> Path:
        if self._work is None or self.existing is not None:
            raise StoreError(
                f"stage {self.key} is finished and cannot be written again. Check"
                " `claim.existing` first."
            )
        return self._work
