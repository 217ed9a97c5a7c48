"""``ExperimentResult``: what an experiment has come to. Plain data, so that Prefect can keep it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True)
class ExperimentResult:
    """What an experiment has come to.

    Attributes
    ----------
    metrics
        Arm → name of a test ("test", "test-NAME") → its metrics.
    states
        Arm → key of its final state in the store; arms without one are left out.
    made, found
        The numbers of stages that this flow run made, and that it found in the store.
    flow_run_id
        The Prefect flow run's.
    """

    run_id: str
    folder: str
    metrics: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    made: int = 0
    found: int = 0
    flow_run_id: str | None = None

    @property
    def report(self) -> Path:
        """The file of the report."""
        return Path(self.folder) / "report.html"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Make a result of what :meth:`to_dict` returned."""
        return cls(**data)
