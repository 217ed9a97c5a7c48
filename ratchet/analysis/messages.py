"""Read a run's transcripts: each message with the messages before it.

Transcripts are in ``RUN/transcripts/ARM/NAME.jsonl``, one line per rollout, as written by
``ratchet.rollouts.transcripts``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import DataError, RunNotFoundError
from ratchet.rollouts.transcripts import Transcript, read_report_transcripts

FOLDER = "transcripts"


@dataclass(frozen=True, slots=True)
class Utterance:
    """A message of an agent in a channel."""

    round: int
    agent: str
    channel: str
    text: str


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """A message with its context.

    Attributes
    ----------
    row
        Line in the transcript file, from 0.
    prover_stance
        1 if a single prover argues that the solution is correct, 0 if it argues for a bug.
    earlier
        Utterances of earlier rounds, in order.
    """

    row: int
    rollout: int
    said: Utterance
    question: str
    solution: str
    prover_stance: int
    agents: tuple[str, ...]
    earlier: tuple[Utterance, ...]

    @property
    def position(self) -> tuple[int, int, str, str]:
        """Row, round, agent and channel: unique within the file."""
        return (self.row, self.said.round, self.said.agent, self.said.channel)

    @property
    def digest(self) -> str:
        """SHA-256 of the inputs of a verdict: text, speaker, side and earlier messages."""
        digest = hashlib.sha256()
        before = [part for turn in self.earlier for part in (turn.agent, turn.channel, turn.text)]
        facts = (self.question, self.solution, str(self.prover_stance), self.said.agent)
        for part in (*facts, *before, self.said.text):
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
        return digest.hexdigest()


def transcript_files(run_folder: Path) -> dict[str, Path]:
    """Find a run's transcript files: ``"ARM/NAME"`` → file, sorted."""
    if not run_folder.is_dir():
        raise RunNotFoundError(f"no run folder {run_folder}. `ratchet runs` lists all runs.")
    folder = run_folder / FOLDER
    files = sorted(folder.rglob("*.jsonl"))
    if not files:
        raise DataError(
            f"{run_folder} has no transcripts: expected files {folder}/ARM/NAME.jsonl, which runs"
            " of text scenarios write when text_rl.save_transcripts is true."
        )
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def read_messages(file: Path) -> Iterator[TranscriptMessage]:
    """Read all messages of a transcript file."""
    for row, transcript in enumerate(read_report_transcripts(file)):
        try:
            yield from _messages(row, transcript)
        except (KeyError, TypeError) as error:
            raise DataError(
                f"{file}, line {row + 1}: {type(error).__name__}: {error}. Expected a transcript"
                " with question, solution, rewards and rounds."
            ) from error


def _messages(row: int, transcript: Transcript) -> Iterator[TranscriptMessage]:
    earlier: tuple[Utterance, ...] = ()
    for played in transcript["rounds"]:
        utterances = tuple(
            Utterance(played["round"], message["agent"], message["channel"], message["text"])
            for message in played["messages"]
        )
        for utterance in utterances:
            yield TranscriptMessage(
                row=row,
                rollout=transcript["rollout"],
                said=utterance,
                question=transcript["question"] or "",
                solution=transcript["solution"] or "",
                prover_stance=transcript["prover_stance"],
                agents=tuple(transcript["rewards"]),
                earlier=earlier,
            )
        earlier += utterances
