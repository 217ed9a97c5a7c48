"""``StageCall``: one stage of an experiment, with all inputs of its key; and ``StageOutcome``.

Values without access to the store. Calls are created by the keys of a family, in a sequence of
steps, and executed by :mod:`tasks.stages.driver`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from ratchet.store.fingerprint import Fingerprint
from ratchet.store.keys import stage_key
from ratchet.store.manifest import Manifest
from ratchet.tracking.stage_kinds import StageKind

TEST_DATASET = "test"


@dataclass(frozen=True)
class StageCall:
    """One stage of one arm.

    ``arm`` is never in the key, so that arms share stages.

    Attributes
    ----------
    kind
        The kind of stage.
    parameters
        The hyper-parameters that the stage reads.
    inputs
        Keys of the stages whose results it reads, by role, and further identifying values.
    fingerprint
        The code that computes it.
    iteration, start_iteration
        Iterations done after and before it.
    detail
        The agent or the dataset that it is about.
    pinned_key
        The key under which an earlier run stored the stage, used instead of the computed one.
    """

    arm: str
    kind: StageKind
    parameters: dict[str, Any]
    inputs: dict[str, str | int]
    fingerprint: Fingerprint
    iteration: int = 0
    start_iteration: int = 0
    detail: str = ""
    pinned_key: str | None = None

    @property
    def stage(self) -> str:
        """The name of the kind."""
        return self.kind.name

    @cached_property
    def computed_key(self) -> str:
        """The key that follows from parameters, inputs and code."""
        return stage_key(
            self.stage, self.iteration, self.parameters, self.inputs, self.fingerprint.digest
        )

    @property
    def key(self) -> str:
        """The key under which the stage's result is stored."""
        return self.pinned_key or self.computed_key

    @property
    def name(self) -> str:
        """The stage's name in run folders, such as "train" or "pretrain-verifier"."""
        if not self.detail or (self.stage == "test" and self.detail == TEST_DATASET):
            return self.stage
        return f"{self.stage}-{self.detail}"

    @property
    def title(self) -> str:
        """Default progress description, such as "Build scenario" or "Test wl2"."""
        words = self.name.replace("_", " ").replace("-", " ")
        return words[:1].upper() + words[1:]

    @property
    def label(self) -> str:
        """Readable name, such as "train main 10-20" or "sample rollouts main 3"."""
        words = [self.stage.replace("_", " "), self.arm, self.detail]
        if self.kind.span == "iterations":
            words.append(f"{self.start_iteration}-{self.iteration}")
        elif self.kind.span != "run":
            words.append(str(self.iteration))
        return " ".join(filter(None, words))


ParallelChains: TypeAlias = tuple[Iterator[StageCall], ...]
"""Chains that run concurrently; in each, a stage reads the result of the one before it.

A chain's first stage may also wait for that of another chain (``find_result`` of its session).
"""
Step: TypeAlias = StageCall | ParallelChains


@dataclass(frozen=True)
class StageOutcome:
    """A finished stage, cached or computed."""

    call: StageCall
    manifest: Manifest
    hit: bool
    reason: str

    def __str__(self) -> str:
        if not self.hit:
            return f"computed in {self.manifest.seconds:.1f} s"
        return "found in the store" if self.reason == "stored" else self.reason
