"""Transcripts of a report: read from the run folder and compressed for the page.

Each file of ``transcripts/ARM/`` is one test or one iteration's rollouts; the page decompresses
a file only when it is selected.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from ratchet.errors import DataError
from ratchet.reports.labels import arm_label, number
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.results import accuracy
from ratchet.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from ratchet.rollouts.transcript_content import Transcript

MAX_PACKED_BYTES = 40_000_000
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class PackedTranscripts:
    """One file of transcripts.

    Attributes
    ----------
    run, arm, label, name
        Their origin: ``label`` is the arm's label, ``name`` that of the file, such as "3" or
        "test".
    title
        Displayed title: "Iteration 3", "Test at iteration 3", "Final test".
    accuracy
        Share of correct rollouts, with an interval over datapoints; None without rollouts or if
        the correctness of a rollout is unknown.
    told
        Summary in the list: "3 of 8 right", "mean reward 0.31".
    packed
        The rollouts with messages as JSON, compressed (gzip), in base 64; empty if the page would
        become too large.
    """

    run: str
    arm: str
    label: str
    name: str
    title: str
    number: int
    right: int
    accuracy: Estimate | None
    told: str
    packed: str

    @property
    def is_test(self) -> bool:
        """Whether these are test rollouts, not training rollouts."""
        return "test" in self.name

    @property
    def iteration(self) -> int | None:
        """The iteration at whose start they were collected; None for the final test."""
        number = _NUMBER.search(self.name)
        return int(number.group()) if number else None

    @property
    def identifier(self) -> str:
        """The id of the element that contains them."""
        return f"transcripts-{self.run}-{self.arm}-{self.name}"


def read_transcripts(
    folders: Sequence[RunFolder], limit: int = MAX_PACKED_BYTES
) -> list[PackedTranscripts]:
    """Read all transcripts of the given runs.

    Parameters
    ----------
    limit
        Maximum bytes of packed text in the page. Files beyond it are listed without content; the
        first and last of each arm take precedence.

    Returns
    -------
    list of PackedTranscripts
        By run, by arm, then in the order of the iterations, tests after the rollouts they follow.
    """
    files = [
        (folder, arm, path)
        for folder in folders
        for arm in _arms(folder)
        for path in sorted((folder.transcripts_path / arm).glob("*.jsonl"), key=_place)
    ]
    ends = _ends(files)
    read: dict[int, PackedTranscripts] = {}
    room = limit
    for index in sorted(range(len(files)), key=lambda index: index not in ends):
        folder, arm, path = files[index]
        label = arm_label(folder.run_id, arm, several=len(folders) > 1)
        transcripts = _read(folder.run_id, arm, label, path)
        if len(transcripts.packed) > room:
            transcripts = replace(transcripts, packed="")
        room -= len(transcripts.packed)
        read[index] = transcripts
    return [read[index] for index in sorted(read)]


def _arms(folder: RunFolder) -> list[str]:
    """List the arms that have transcripts, in the run's order."""
    names = {path.name for path in folder.transcripts_path.glob("*") if path.is_dir()}
    known = [arm for arm in folder.manifest.arms if arm in names]
    return known + sorted(names - set(known))


def _ends(files: Sequence[tuple[RunFolder, str, Path]]) -> set[int]:
    """Return the indices of each arm's first and last file."""
    first: dict[tuple[str, str], int] = {}
    last: dict[tuple[str, str], int] = {}
    for index, (folder, arm, _) in enumerate(files):
        first.setdefault((folder.run_id, arm), index)
        last[folder.run_id, arm] = index
    return {*first.values(), *last.values()}


def _place(path: Path) -> tuple[float, bool, str]:
    """Sort by iteration, rollouts before tests; files without a number last."""
    number = _NUMBER.search(path.stem)
    return (int(number.group()) if number else float("inf"), "test" in path.stem, path.stem)


def _title(name: str) -> str:
    number = _NUMBER.search(name)
    if "test" in name:
        return f"Test at iteration {int(number.group())}" if number else "Final test"
    return f"Iteration {int(number.group())}" if number else name


def _read(run: str, arm: str, label: str, path: Path) -> PackedTranscripts:
    from ratchet.rollouts.transcripts import read_report_transcripts

    try:
        rollouts = list(read_report_transcripts(path))
    except DataError as error:
        raise DataError(
            f"{error} Delete the file; `ratchet resume {run}` writes it again."
        ) from error
    nonempty_rollouts = [rollout for rollout in rollouts if rollout["rounds"]]
    text = json.dumps(nonempty_rollouts, ensure_ascii=False, separators=(",", ":"))
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    right = sum(bool(rollout["correct"]) for rollout in rollouts)
    is_known = all(rollout["correct"] is not None for rollout in rollouts)
    columns = {name: [one[name] for one in rollouts] for name in ("datapoint_id", "correct")}
    return PackedTranscripts(
        run=run,
        arm=arm,
        label=label,
        name=path.stem,
        title=_title(path.stem),
        number=len(rollouts),
        right=right,
        accuracy=accuracy(columns) if rollouts and is_known else None,
        told=f"{right} of {len(rollouts)} right" if is_known else _mean_reward(rollouts),
        packed=packed,
    )


def _mean_reward(rollouts: Sequence[Transcript]) -> str:
    paid = [reward for rollout in rollouts for reward in rollout["rewards"].values()]
    return f"mean reward {number(fmean(paid))}"
