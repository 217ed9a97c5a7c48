"""Verdicts on disk: ``RUN/analysis/ANALYSER/ARM/NAME.jsonl``, beside the transcripts judged."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from ratchet.analysis.base import Verdict
from ratchet.analysis.messages import SpokenMessage
from ratchet.errors import DataError
from ratchet.tracking.files import write_atomically

FOLDER = "analysis"


@dataclass(frozen=True, slots=True)
class JudgedMessage:
    """A line of results: a verdict and the message that it is on.

    ``verdict`` is None where the answer could not be read; ``digest`` is that of the message;
    ``model`` the one that judged.
    """

    row: int
    rollout: int
    round: int
    agent: str
    channel: str
    verdict: str | None
    answer: str
    model: str
    digest: str

    @classmethod
    def of(cls, message: SpokenMessage, verdict: Verdict, model: str) -> JudgedMessage:
        """Put a verdict beside its message's place."""
        said = message.said
        return cls(
            row=message.row,
            rollout=message.rollout,
            round=said.round,
            agent=said.agent,
            channel=said.channel,
            verdict=verdict.label,
            answer=verdict.answer,
            model=model,
            digest=message.digest,
        )

    @property
    def place(self) -> tuple[int, int, str, str]:
        """Row, round, agent and channel, as of :attr:`SpokenMessage.place`."""
        return (self.row, self.round, self.agent, self.channel)


def results_file(run_folder: Path, analyser: str, transcripts: str) -> Path:
    """Return the file with an analyser's verdicts on the transcripts ``"ARM/NAME"``."""
    return run_folder / FOLDER / analyser / f"{transcripts}.jsonl"


def read_results(file: Path) -> list[JudgedMessage]:
    """Read verdicts; none if there is no file.

    Raises
    ------
    DataError
        If a line is no verdict.
    """
    if not file.exists():
        return []
    results = []
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
        if not line:
            continue
        try:
            results.append(JudgedMessage(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{file}, line {number}: {error}. Expected a verdict; analyse again with overwrite."
            ) from error
    return results


def write_results(file: Path, results: Iterable[JudgedMessage]) -> None:
    """Write verdicts atomically, in order of their places."""
    file.parent.mkdir(parents=True, exist_ok=True)
    ordered = sorted(results, key=lambda result: result.place)
    lines = [json.dumps(asdict(result), ensure_ascii=False) + "\n" for result in ordered]
    write_atomically(file, "".join(lines))
