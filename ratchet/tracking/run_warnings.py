"""Warnings about a run: training that learns nothing, agents that never act or get no data.

Computed from the recorded metrics, so that the terminal, the report and the mirrors agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ratchet.tracking.metrics import MetricPoint
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.stage_kinds import Span, kind_of

WARNING = "warning"
"""The kind of event."""
_TURNS, _UNREAD, _SILENT = ".num_turns", ".num_invalid_replies", ".num_turns_without_reply"
_NO_DATA = ".insufficient_data"
_READABLE_SHARE = 0.5
_RIGHT, _ANSWERS = "rollout/exact_match", "rollout/num_rollouts"
_HOPELESS_SHARE = 0.02


def run_warnings(folder: RunFolder) -> list[str]:
    """Return the warnings of all arms of a run; those of several arms name the arm."""
    by_arm: dict[str, list[MetricPoint]] = {}
    for point in folder.read_metrics():
        by_arm.setdefault(point.arm, []).append(point)
    several = len(folder.manifest.arms.keys() | by_arm.keys()) > 1
    return [
        f"{text} (arm {arm})" if several else text
        for arm, points in by_arm.items()
        for text in arm_warnings(points)
    ]


def arm_warnings(points: Sequence[MetricPoint]) -> list[str]:
    """Return the warnings of one arm's metrics."""
    counts = _counts(points)
    return [*_about_turns(counts), *_about_data(points), *about_training(points)]


def _counts(points: Sequence[MetricPoint]) -> Mapping[str, Mapping[str, float]]:
    """Sum the counts of turns and replies over all stages, by agent."""
    counts: dict[str, dict[str, float]] = {}
    for point in points:
        for name, value in point.values.items():
            for count in (_TURNS, _UNREAD, _SILENT):
                if name.endswith(count):
                    agent = name.removeprefix("test_").removesuffix(count)
                    agent_counts = counts.setdefault(agent, defaultdict(float))
                    agent_counts[count] += value
    return {agent: agent_counts for agent, agent_counts in counts.items() if _TURNS in agent_counts}


def _about_turns(counts: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    for agent, agent_counts in counts.items():
        turns = agent_counts[_TURNS]
        if turns == 0:
            yield (
                f"Agent {agent!r} never acted: every episode ended before its first turn."
                " `ratchet plan` lists the rounds in which agents act and decide; set the"
                " protocol's min_message_rounds, or protocol_common.verifier_first."
            )
            continue
        replies = turns - agent_counts.get(_SILENT, 0.0) + agent_counts.get(_UNREAD, 0.0)
        unread = agent_counts.get(_UNREAD, 0.0)
        if unread > _READABLE_SHARE * replies:
            yield (
                f"Agent {agent!r}: {unread:.0f} of {replies:.0f} replies could not be read."
                " State the reply format in its prompt (the transcripts contain the replies'"
                " reasons), or set use_supervisor_message."
            )


def _about_data(points: Sequence[MetricPoint]) -> Iterator[str]:
    lacking_by_group: dict[str, list[float]] = {}
    for point in points:
        for name, value in point.values.items():
            if name.endswith(_NO_DATA):
                lacking_by_group.setdefault(name.removesuffix(_NO_DATA), []).append(value)
    for group, lacked in lacking_by_group.items():
        if all(lacked):
            yield (
                f"Model group {group!r} never learned: none of {len(lacked)} iterations gave it"
                " training examples."
            )


_ZERO = (
    ("all advantages{} were", ("critic/advantages/min", "critic/advantages/max")),
    ("the gradient{} was", ("actor/grad_norm", "grad_norm", "grad_norm_0")),
    # a loss of centred advantages can be 0 where its gradient is not
    ("the loss{} was", ("actor/loss", "actor/grad_norm")),
    ("the loss{} was", ("loss_objective", "loss")),
)
"""Quantities that are exactly 0 without learning, with the metrics that are then all 0."""


def about_training(points: Sequence[MetricPoint]) -> list[str]:
    """Warn about training without an effect, and about answers that are hardly ever rewarded."""
    return [*_about_learning(points), *_about_answers(points)]


def _spans(point: MetricPoint, *spans: Span) -> bool:
    return kind_of(point.stage).span in spans


def _about_answers(points: Sequence[MetricPoint]) -> Iterator[str]:
    """Warn if a language model's answers are hardly ever right from its first iteration on."""
    names = {_RIGHT, _ANSWERS}
    trained = [
        point for point in points if _spans(point, "iterations") and names <= point.values.keys()
    ]
    if all(point.iteration > 0 for point in trained):
        return
    answers = sum(point.values[_ANSWERS] for point in trained)
    right = sum(point.values[_RIGHT] * point.values[_ANSWERS] for point in trained)
    if right < _HOPELESS_SHARE * answers:
        yield (
            f"{right:.0f} of {answers:,.0f} answers in training were right, so that there is"
            " hardly anything to learn from. A model that starts from random weights (`small`)"
            " needs demonstrations first: set agents._default.warm_up.num_steps. Other models need"
            " easier tasks, or an evaluator that rewards parts of an answer."
        )


def _about_learning(points: Sequence[MetricPoint]) -> Iterator[str]:
    """Warn if most iterations of training had advantages, a loss or a gradient of exactly 0."""
    trained = [point for point in points if _spans(point, "iteration", "iterations")]
    metrics = dict.fromkeys(name for point in trained for name in point.values)
    for what, names in _ZERO:
        idle = [each for each in _prefixes(metrics, names) if _is_mostly_zero(trained, each, names)]
        if idle:
            models = " and ".join(prefix.removesuffix("/") for prefix in idle)
            yield (
                "Training had no effect in most iterations, in which"
                f" {what.format(models and f' of {models}')} exactly 0."
                " Check that rewards differ, and that advantages compare attempts whose rewards"
                " can differ."
            )
            return


def _prefixes(metrics: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return what precedes the names in metrics: nothing, or each of several models."""
    prefixes = [
        metric.removesuffix(name)
        for metric in metrics
        for name in names
        if metric == name or ("/" in name and metric.endswith(f"/{name}"))
    ]
    return list(dict.fromkeys(prefixes))


def _is_mostly_zero(points: Sequence[MetricPoint], prefix: str, names: Sequence[str]) -> bool:
    """Return whether these metrics were all 0 in most of the points that have them."""
    metrics = [prefix + name for name in names]
    values = [[point.values[one] for one in metrics if one in point.values] for point in points]
    measured = [row for row in values if row]
    return 2 * sum(not any(row) for row in measured) > len(measured)
