"""Transcripts of rollouts as readable YAML, in which text of several lines is a block.

The writer is three times as fast as PyYAML with libyaml on long texts, and it also writes lines
with trailing spaces as blocks. Any YAML library reads the same values back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ratchet.errors import DataError, ParameterError
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.transcript_content import (
    Transcript,
    processed_transcripts,
    prompt_transcripts,
    raw_transcripts,
    report_transcripts,
)

_Parts: TypeAlias = dict[str, Any] | list[Any]
Plain: TypeAlias = _Parts | str | float | bool | None

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
# Characters that YAML escapes, or that some readers treat as line ends.
_UNPRINTABLE = re.compile(
    "[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)

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


def to_yaml(value: Plain) -> str:
    """Return plain values as YAML, with a line end at the end.

    Parameters
    ----------
    value
        Dictionaries with text as keys, lists, text, numbers, booleans and None.
    """
    lines: list[str] = []
    if value and isinstance(value, dict | list):
        _add_parts(lines, value, "", "")
    else:
        lines.append(_scalar(value, "  "))
    return "\n".join(lines) + "\n"


def _add_parts(lines: list[str], parts: _Parts, first: str, pad: str) -> None:
    """Add the lines of a dictionary or list that isn't empty.

    ``first`` precedes the first line, ``pad``, of the same length, the others.
    """
    start, inner_pad = first, pad + "  "
    if isinstance(parts, dict):
        for key, value in parts.items():
            if value and isinstance(value, dict | list):
                lines.append(f"{start}{_quoted(key)}:")
                deeper = inner_pad if isinstance(value, dict) else pad
                _add_parts(lines, value, deeper, deeper)
            else:
                lines.append(f"{start}{_quoted(key)}: {_scalar(value, inner_pad)}")
            start = pad
        return
    for value in parts:
        if value and isinstance(value, dict | list):
            _add_parts(lines, value, f"{start}- ", inner_pad)
        else:
            lines.append(f"{start}- {_scalar(value, inner_pad)}")
        start = pad


def _scalar(value: Plain, pad: str) -> str:
    """Write a value on its key's line; further lines get the padding."""
    if isinstance(value, str):
        return _block(value, pad) if _can_be_block(value) else _quoted(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _float(value)
    if value in ({}, []):
        return str(value)
    raise DataError(f"got {value!r} of type {type(value).__name__}, expected plain values.")


def _can_be_block(text: str) -> bool:
    if "\n" not in text or text[0] in " \t\n" or text.endswith("\n\n"):
        return False
    return not _UNPRINTABLE.search(text)


def _block(text: str, pad: str) -> str:
    sign = "|" if text.endswith("\n") else "|-"
    lines = text.removesuffix("\n").split("\n")
    return "\n".join([sign, *(pad + line if line else "" for line in lines)])


def _quoted(text: str) -> str:
    if _WORD.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\U{ord(match[0]):08x}", quoted)


def _float(value: float) -> str:
    if value != value:
        return ".nan"
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    digits, sign, exponent = repr(float(value)).partition("e")
    return digits + (".0" if sign and "." not in digits else "") + sign + exponent


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
    """
    if format not in ("yaml", "json"):
        raise ParameterError(f"transcript_format: got {format!r}, expected 'yaml' or 'json'.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for kind, make in _KINDS.items():
        transcripts = make(rollouts, agent_names, channel_names, verifier_name=verifier_name)
        file = folder / f"{kind}.{format}"
        if format == "json":
            text = json.dumps(transcripts, ensure_ascii=False, indent=2) + "\n"
        else:
            text = to_yaml(transcripts)
        file.write_text(text, encoding="utf-8")
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
    """Return ``transcripts.jsonl`` with the messages of N rollouts, evenly spread.

    The others keep their outcomes, so that statistics don't change.
    """
    transcripts = list(read_report_transcripts(file))
    count = min(number, len(transcripts))
    chosen = {sample * len(transcripts) // count for sample in range(count)}
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
