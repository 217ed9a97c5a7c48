"""The sentence at the top of a report: what came out, and compared with what."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.reports.content import Arm
from ratchet.reports.returns import ReturnRow, returns_headline
from ratchet.reports.tables import AccuracyRow, DifferenceRow
from ratchet.reports.transcripts import PackedTranscripts
from ratchet.statistics.estimate import Estimate


def headline(
    accuracies: Sequence[AccuracyRow],
    differences: Sequence[DifferenceRow],
    arms: Sequence[Arm] = (),
    transcripts: Sequence[PackedTranscripts] = (),
    returns: Sequence[ReturnRow] = (),
) -> str:
    """Return what came out in a sentence, or nothing if there is no test yet.

    Of arms that differ in their seed alone the range is said; they are not compared.
    """
    tested = [row for row in accuracies if row.dataset == "test" and not row.alone]
    if not tested:
        return returns_headline(returns)
    before = _before_training(transcripts, [row.arm for row in tested])
    if are_repetitions(arms) and len(tested) > 1:
        return _of_repetitions(tested, before)
    first = tested[0]
    sentence = f"“{first.arm}” {_share(first)}"
    if before:
        sentence += f", {before[0].percent()} before training"
    rivals = [row for row in differences if row.dataset == "test"]
    if not rivals:
        return f"{sentence}."
    rival = rivals[0]
    beyond = "more than" if rival.estimate.excludes_zero else "no more than"
    verdict = f"{beyond} the draw of test data explains (one training run each)"
    points = f"{rival.estimate.points()} percentage points"
    return f"{sentence}; the difference to “{rival.second}” is {points}, {verdict}."


def are_repetitions(arms: Sequence[Arm]) -> bool:
    """Return whether there are several arms that differ in nothing but their seeds."""
    plain = [{name: v for name, v in arm.hyper_params.items() if name != "seed"} for arm in arms]
    return len(plain) > 1 and all(parameters == plain[0] for parameters in plain)


def _before_training(
    transcripts: Sequence[PackedTranscripts], arms: Sequence[str]
) -> list[Estimate]:
    """Return what the arms' first models reached in tests, where they were tested, in order."""
    found = {
        one.label: one.accuracy
        for one in transcripts
        if one.is_test and one.iteration == 0 and one.accuracy is not None
    }
    return [found[arm] for arm in arms if arm in found]


def _of_repetitions(tested: Sequence[AccuracyRow], before: Sequence[Estimate]) -> str:
    share = f"{_range([row.estimate for row in tested])} of {tested[0].estimate.n:,}"
    what = "test datapoints are decided" if tested[0].is_decided else "test tasks are done"
    sentence = f"Over {len(tested)} seeds, {share} {what} rightly"
    return f"{sentence}; before training {_range(before)}." if before else f"{sentence}."


def _share(row: AccuracyRow) -> str:
    """Say what was done rightly: of how many datapoints, or of how many tasks."""
    share = f"{row.estimate.percent()} of {row.estimate.n:,} test"
    return f"decides {share} datapoints rightly" if row.is_decided else f"gets {share} tasks right"


def _range(estimates: Sequence[Estimate]) -> str:
    values = [100 * estimate.value for estimate in estimates]
    return f"{min(values):.1f} to {max(values):.1f} %"
