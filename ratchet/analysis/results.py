"""Results of an analysis: verdicts in ``RUN/analysis/ANALYSER/ARM/NAME.jsonl`` and summaries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ratchet.analysis.base import Verdict
from ratchet.analysis.messages import TranscriptMessage
from ratchet.errors import DataError
from ratchet.tracking.files import write_atomically

FOLDER = "analysis"


@dataclass(frozen=True, slots=True)
class JudgedMessage:
    """A line of results: a message's position and its verdict.

    ``verdict`` is None if the answer could not be parsed; ``digest`` is that of the message;
    ``model`` the name of the judge.
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
    def from_message(
        cls, message: TranscriptMessage, verdict: Verdict, model: str
    ) -> JudgedMessage:
        """Combine a verdict with its message's position."""
        utterance = message.said
        return cls(
            row=message.row,
            rollout=message.rollout,
            round=utterance.round,
            agent=utterance.agent,
            channel=utterance.channel,
            verdict=verdict.label,
            answer=verdict.answer,
            model=model,
            digest=message.digest,
        )

    @property
    def position(self) -> tuple[int, int, str, str]:
        """Row, round, agent and channel, as :attr:`TranscriptMessage.position`."""
        return (self.row, self.round, self.agent, self.channel)


def results_file(run_folder: Path, analyser: str, transcripts: str) -> Path:
    """Return the path of an analyser's verdicts on the transcripts ``"ARM/NAME"``."""
    return run_folder / FOLDER / analyser / f"{transcripts}.jsonl"


def read_results(file: Path) -> list[JudgedMessage]:
    """Read verdicts; return an empty list if the file does not exist."""
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
    """Write verdicts atomically, ordered by position."""
    file.parent.mkdir(parents=True, exist_ok=True)
    ordered = sorted(results, key=lambda result: result.position)
    lines = [json.dumps(asdict(result), ensure_ascii=False) + "\n" for result in ordered]
    write_atomically(file, "".join(lines))


@dataclass(frozen=True)
class AnalyserSummary:
    """Summary of one analyser.

    Attributes
    ----------
    num_messages
        Number of messages to judge.
    num_kept
        Messages whose earlier verdict is kept.
    num_calls
        Calls made; in a dry run, expected calls if all answers can be parsed.
    prompt_tokens, completion_tokens
        Tokens used; in a dry run, estimates with all completions at their limit.
    cost
        In the price table's currency; None if the model has no price.
    verdicts
        Number of messages per label; ``"unreadable"`` if no label could be parsed.
    num_too_long
        Messages skipped because the prompt exceeds the model's context.
    """

    name: str
    num_messages: int
    num_kept: int
    num_calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    verdicts: Mapping[str, int]
    num_too_long: int = 0


@dataclass(frozen=True)
class AnalysisSummary:
    """Summaries of all analysers; estimates if ``is_dry_run``."""

    model: str
    is_dry_run: bool
    analysers: tuple[AnalyserSummary, ...]

    @property
    def num_calls(self) -> int:
        """Number of calls of all analysers."""
        return sum(analyser.num_calls for analyser in self.analysers)

    @property
    def num_too_long(self) -> int:
        """Number of messages skipped as too long, over all analysers."""
        return sum(analyser.num_too_long for analyser in self.analysers)

    @property
    def cost(self) -> float | None:
        """Cost of all analysers; None if the model has no price."""
        costs = [analyser.cost for analyser in self.analysers]
        return None if None in costs else sum(cost for cost in costs if cost is not None)
