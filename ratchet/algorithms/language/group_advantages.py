"""Advantages relative to other responses to the same task (GRPO, Shao et al. 2024, and variants).

Shape letters: N trajectories; a run is one attempt, of one trajectory or of several segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ratchet.errors import DataError

Baseline = Literal["mean", "leave_one_out", "agent_average"]
Scale = Literal["group", "batch", "none", "mean"]

_EPS = 1e-6
_SAME = 1e-9
"""Relative difference below which numbers are equal: means of equal numbers differ by rounding."""


class GroupAdvantages(NamedTuple):
    """Result of :func:`group_advantages`."""

    advantage: Tensor
    """Float32 ``[N]``."""
    varies: Tensor
    """Boolean ``[N]``: the runs of the trajectory's group differ in their score."""
    metrics: dict[str, float]
    """``num_groups``, ``frac_constant_groups`` and ``std``, the groups' mean deviation."""
    agent_averages: dict[str, float]
    """The agents' averages including these scores, by name; input of the next call."""


def group_advantages(
    score: Tensor,
    groups: Sequence[str],
    *,
    runs: Sequence[str] | None = None,
    agents: Sequence[str] | None = None,
    counts: Tensor | None = None,
    baseline: Baseline = "mean",
    scale: Scale = "group",
    agent_averages: Mapping[str, float] | None = None,
    decay: float = 0.9,
) -> GroupAdvantages:
    """Compute (s − baseline) / scale for each trajectory.

    Baselines and deviations are of runs, each the mean of its segments' scores. The deviation is
    the population's, plus 1e-6. A group of one run, or whose runs score the same, has the
    advantage 0, and is counted.

    Parameters
    ----------
    score
        ``[N]``: s, the sum of a trajectory's rewards.
    groups, runs, agents
        N names each. An empty name of a run, or None, makes the trajectory a separate run.
    counts
        Boolean ``[N]``: the rows that count, all by default; others have the advantage 0.
    baseline
        ``mean``: the group's. ``leave_one_out``: that of the group's other runs (RLOO).
        ``agent_average``: the agent's own, over iterations: for games where a group mixes agents
        of opposite rewards; a group of one learns from it as well, unless scaled by its group.
    scale
        ``group`` and ``batch``: the deviation of the group's or the whole batch's runs. ``none``:
        1 (Dr. GRPO). ``mean``: the group's mean score, which must not be negative (MaxRL, Tajwar
        et al. 2026).
    agent_averages
        The agents' averages before these scores; an agent without one starts with these.
    decay
        Decay of an agent's average.
    """
    names = _names(score, groups, runs, agents, counts)
    # In double precision, so that a group of equal float32 scores has the deviation 0.
    scores = score.detach().double().cpu()[names.rows]
    averages = dict(agent_averages or {})
    if baseline == "agent_average":
        if agents is None or scale == "mean":
            raise ValueError(
                f"baseline 'agent_average': got agents {agents} and scale {scale!r}, expected the"
                " agents' names and another scale."
            )
        scores, averages = _less_averages(scores, names, agents, averages, decay)
    run_score = _means(scores, names.run, names.num_runs)
    group_mean = _means(run_score, names.group_of_run, names.num_groups)
    deviation, varies = _deviation(run_score, names.group_of_run, group_mean)
    centred = scores - _baselines(baseline, run_score, group_mean, names)
    divisor, learns = _divisor(scale, run_score, group_mean, deviation, varies)
    if baseline != "agent_average":
        learns = varies
    divided = torch.where(learns[names.group], centred / divisor[names.group], 0.0)
    advantage = torch.zeros(len(score)).index_put((names.rows,), divided.float())
    differs = torch.zeros(len(score), dtype=torch.bool)
    differs[names.rows] = varies[names.group]
    metrics = {
        "num_groups": float(names.num_groups),
        "frac_constant_groups": _mean_of((~varies).double()),
        "std": _mean_of(deviation),
    }
    return GroupAdvantages(advantage.to(score.device), differs.to(score.device), metrics, averages)


class _Names(NamedTuple):
    """Indices of runs and groups: K rows that count, R runs, G groups."""

    rows: Tensor
    run: Tensor
    group: Tensor
    group_of_run: Tensor

    @property
    def num_runs(self) -> int:
        return len(self.group_of_run)

    @property
    def num_groups(self) -> int:
        return int(self.group.max()) + 1 if len(self.group) else 0


def _names(
    score: Tensor,
    groups: Sequence[str],
    runs: Sequence[str] | None,
    agents: Sequence[str] | None,
    counts: Tensor | None,
) -> _Names:
    columns = {"groups": groups, "runs": runs, "agents": agents, "counts": counts}
    for name, column in columns.items():
        if column is not None and len(column) != len(score):
            raise DataError(f"{name}: got {len(column)} for {len(score)} scores.")
    is_counted = [True] * len(score) if counts is None else counts.tolist()
    rows = [row for row, counted in enumerate(is_counted) if counted]
    group_ids: dict[str, int] = {}
    run_ids: dict[tuple[str, str | int], int] = {}
    group_of_run, run, group = [], [], []
    for row in rows:
        own_group = group_ids.setdefault(groups[row], len(group_ids))
        # The same name in another group is a different attempt.
        key = (groups[row], (runs[row] if runs is not None else "") or row)
        if key not in run_ids:
            run_ids[key] = len(run_ids)
            group_of_run.append(own_group)
        run.append(run_ids[key])
        group.append(own_group)
    return _Names(*(torch.tensor(x, dtype=torch.long) for x in (rows, run, group, group_of_run)))


def _means(values: Tensor, index: Tensor, count: int) -> Tensor:
    """Average the values of each index; 0 for an index without values."""
    total = torch.zeros(count, dtype=values.dtype).index_add(0, index, values)
    return total / torch.bincount(index, minlength=count).clamp(min=1)


def _mean_of(values: Tensor) -> float:
    return float(values.mean()) if len(values) else 0.0


def _deviation(values: Tensor, index: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Return the population deviation of each index, and whether its values differ at all."""
    away = values - mean[index]
    deviation = _means(away.square(), index, len(mean)).sqrt()
    varies = deviation > _SAME * _means(values.abs(), index, len(mean))
    return torch.where(varies, deviation, 0.0), varies


def _baselines(baseline: Baseline, run_score: Tensor, group_mean: Tensor, names: _Names) -> Tensor:
    """Return the baseline of each row."""
    if baseline == "mean":
        return group_mean[names.group]
    if baseline == "agent_average":  # already subtracted
        return torch.zeros(len(names.rows), dtype=run_score.dtype)
    size = torch.bincount(names.group_of_run, minlength=names.num_groups)
    others = (group_mean * size)[names.group] - run_score[names.run]
    return others / (size[names.group] - 1).clamp(min=1)


def _divisor(
    scale: Scale, run_score: Tensor, mean: Tensor, deviation: Tensor, varies: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the divisor of each group's advantages, and whether its scores vary."""
    if scale == "group":
        return deviation + _EPS, varies
    if scale == "none":
        return torch.ones_like(mean), torch.ones_like(varies)
    if scale == "batch":
        one = torch.zeros(len(run_score), dtype=torch.long)
        batch_deviation, differs = _deviation(run_score, one, _means(run_score, one, 1))
        return (batch_deviation + _EPS).expand_as(mean), differs.expand_as(varies)
    if bool((mean < 0).any()):
        raise DataError(
            f"scale 'mean': got a group with the mean score {float(mean.min())}, expected scores"
            " that aren't negative; choose another scale."
        )
    return mean + _EPS, varies


def _less_averages(
    scores: Tensor,
    names: _Names,
    agents: Sequence[str],
    before: Mapping[str, float],
    decay: float,
) -> tuple[Tensor, dict[str, float]]:
    """Return the scores minus their agent's previous average, and the new averages."""
    less, after = scores.clone(), dict(before)
    row_agents = [agents[row] for row in names.rows.tolist()]
    for agent in dict.fromkeys(row_agents):
        of_agent = torch.tensor([name == agent for name in row_agents])
        runs = _means(scores[of_agent], names.run[of_agent], names.num_runs)
        now = float(runs[torch.bincount(names.run[of_agent], minlength=names.num_runs) > 0].mean())
        average = before.get(agent, now)
        less[of_agent] -= average
        after[agent] = decay * average + (1 - decay) * now
    return less, after
