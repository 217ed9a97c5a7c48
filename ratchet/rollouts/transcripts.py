"""Transcripts as files: YAML or JSON for people, JSON lines for the report and analysers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from ratchet.errors import DataError, ParameterError
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.transcript_content import (
    Transcript,
    processed_transcripts,
    prompt_transcripts,
    raw_transcripts,
    report_transcripts,
)
from ratchet.rollouts.yaml_text import to_yaml

__all__ = [
    "Transcript",
    "TranscriptFormat",
    "processed_transcripts",
    "prompt_transcripts",
    "raw_transcripts",
    "read_report_transcripts",
    "report_transcripts",
    "sampled_transcripts",
    "save_report_transcripts",
    "write_report_transcripts",
    "write_transcripts",
]

TranscriptFormat: TypeAlias = Literal["yaml", "json"]

_KINDS = {
    "raw": raw_transcripts,
    "processed": processed_transcripts,
    "prompts": prompt_transcripts,
}


def write_transcripts(
    folder: Path | str,
    rollouts: NestedArrayDict,
    agent_names: Sequence[str],
    channel_names: Sequence[str],
    *,
    verifier_name: str | None = None,
    format: TranscriptFormat = "yaml",
) -> list[Path]:
    """Write ``raw``, ``processed`` and ``prompts`` files of all rollouts; return the files.

    ``format``, ``"yaml"`` or ``"json"``, is also the files' suffix. For the rest see
    :func:`raw_transcripts`.

    Raises
    ------
    ParameterError
        If there is no such format.
    """
    if format not in ("yaml", "json"):
        raise ParameterError(f"transcript_format: got {format!r}, expected 'yaml' or 'json'.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for kind, make in _KINDS.items():
        transcripts = make(rollouts, agent_names, channel_names, verifier_name=verifier_name)
        file = folder / f"{kind}.{format}"
        file.write_text(_dump(transcripts, format), encoding="utf-8")
        files.append(file)
    return files


def write_report_transcripts(
    file: Path | str,
    rollouts: NestedArrayDict,
    agent_names: Sequence[str],
    channel_names: Sequence[str],
    *,
    verifier_name: str | None = None,
    label_texts: Sequence[str] = (),
) -> None:
    """Write ``transcripts.jsonl``: one line a rollout, as the report reads it."""
    transcripts = report_transcripts(
        rollouts,
        agent_names,
        channel_names,
        verifier_name=verifier_name,
        label_texts=label_texts,
    )
    save_report_transcripts(file, transcripts)


def save_report_transcripts(file: Path | str, transcripts: Sequence[Transcript]) -> None:
    """Write lines that :func:`read_report_transcripts` reads."""
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(one, ensure_ascii=False) + "\n" for one in transcripts)
    file.write_text("".join(lines), encoding="utf-8")


def sampled_transcripts(file: Path | str, number: int) -> str:
    """Return ``transcripts.jsonl`` with what was said in so many rollouts, evenly spread.

    The others keep what came of them, so that nothing that is counted changes.
    """
    transcripts = list(read_report_transcripts(file))
    count = min(number, len(transcripts))
    chosen = {place * len(transcripts) // count for place in range(count)}
    unsaid: Transcript = {"question": "", "solution": "", "rounds": []}
    sampled = [t if row in chosen else t | unsaid for row, t in enumerate(transcripts)]
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in sampled)


def read_report_transcripts(file: Path | str) -> Iterator[Transcript]:
    """Read ``transcripts.jsonl`` line by line.

    Raises
    ------
    DataError
        If a line is no JSON object; with its number.
    """
    with Path(file).open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                transcript = json.loads(line)
            except ValueError as error:
                raise DataError(
                    f"{file}, line {number}: {error}. Expected a JSON object."
                ) from error
            if not isinstance(transcript, dict):
                raise DataError(f"{file}, line {number}: got {line[:40]!r}, expected an object.")
            yield transcript


def _dump(transcripts: list[Transcript], format: TranscriptFormat) -> str:
    if format == "json":
        return json.dumps(transcripts, ensure_ascii=False, indent=2) + "\n"
    return to_yaml(transcripts)
