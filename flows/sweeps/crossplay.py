"""Play the agents of several runs against each other: a matrix of results, and ratings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.sweeps.attacks import fixed_data
from flows.sweeps.exploit import play_order, result_on_test_set, trained_run
from flows.sweeps.members import ResolvedSweep, resolve_sweep
from flows.sweeps.running import run_resolved_sweep
from ratchet.errors import ParameterError, nearest
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.parameters.sweeps import ZipSweep
from ratchet.reports.display_table import DisplayTable
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.ratings import elo_ratings
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.run_folder import RunFolder, find_run

if TYPE_CHECKING:
    from rich.table import Table

_MOST_RUNS = 100


@dataclass(frozen=True)
class Crossplay:
    """Results of one agent of each run with the other agents of each run.

    Attributes
    ----------
    agent
        The agent that rows stand for; columns stand for all others.
    runs
        The runs, in the order of rows and columns.
    measure
        "accuracy" if the agent decides, else "return of AGENT".
    results
        Results by row and column.
    """

    agent: str
    runs: tuple[str, ...]
    measure: str
    results: tuple[tuple[Estimate, ...], ...]

    @cached_property
    def ratings(self) -> tuple[list[Estimate], list[Estimate]] | None:
        """Elo ratings of rows and columns; None unless the agent decides.

        The agent wins a datapoint if its decision is correct. Otherwise the others win it, so their
        rating measures how often they cause errors, regardless of their rewards.
        """
        if self.measure != "accuracy":
            return None
        played = np.array([[cell.n for cell in row] for row in self.results], np.float64)
        share = np.array([[cell.value for cell in row] for row in self.results], np.float64)
        return elo_ratings(share * played, played)

    @property
    def table(self) -> DisplayTable:
        """The matrix: a row for each run of the agent, a column for each run of the others."""
        ratings = self.ratings
        columns = [f"{self.agent} of", *(f"others of {run}" for run in self.runs)]
        rows = [[run, *map(self._shown, line)] for run, line in self._lines()]
        if ratings is not None:
            columns.append("Elo")
            rows = [[*row, _points(rating)] for row, rating in zip(rows, ratings[0], strict=True)]
            rows.append(["Elo", *map(_points, ratings[1]), ""])
        records = [
            {
                "agent_of": run,
                "others_of": other,
                "measure": self.measure,
                "value": cell.value,
                "low": cell.low,
                "high": cell.high,
                "n": cell.n,
            }
            for run, line in self._lines()
            for other, cell in zip(self.runs, line, strict=True)
        ]
        return DisplayTable(f"Crossplay, {self.measure}", columns, rows, records)

    def _lines(self) -> Sequence[tuple[str, tuple[Estimate, ...]]]:
        return list(zip(self.runs, self.results, strict=True))

    def _shown(self, cell: Estimate) -> str:
        return cell.percent() if self.measure == "accuracy" else str(cell)

    def __rich__(self) -> Table:
        return self.table.__rich__()


def _points(rating: Estimate) -> str:
    low, high = f"[{rating.low:+.0f}", f"{rating.high:+.0f}]"
    low, high = low.replace("[-inf", "(-∞"), high.replace("+inf]", "∞)")
    return f"{rating.value:+.0f} {low}, {high}".replace("-", "−")


def play_runs(
    runs: Sequence[str],
    agent: str = "verifier",
    settings: ExperimentSettings | None = None,
    *,
    parallel: int = 1,
) -> Crossplay:
    """Test one agent of each run together with the other agents of each run.

    No agent is trained. All pairs play the test data and the rules of the first run.

    Parameters
    ----------
    runs
        At least two: a run's id, a prefix of it, or its folder; ``RUN:ARM`` names an arm.
    agent
        The agent that rows stand for.
    settings
        Settings that contain the runs folder and replace those of the first run.
    parallel
        Number of pairs played concurrently.

    Raises
    ------
    RunNotFoundError
        If a run does not exist.
    ParameterError
        If there are not two runs, or their agents don't fit the first run's game.
    StageFailedError
        If pairs failed; all others have been played.
    """
    return play_pairs(resolve_pairs(runs, agent, settings), agent, parallel)


def resolve_pairs(
    runs: Sequence[str], agent: str, settings: ExperimentSettings | None
) -> ResolvedSweep:
    """Resolve the sweep over all pairs; parameters and errors as :func:`play_runs`."""
    if not 2 <= len(set(runs)) == len(runs) <= _MOST_RUNS:
        raise ParameterError(
            f"crossplay: got {list(runs)}, expected 2 to {_MOST_RUNS} different runs."
        )
    named = [_full_name(run, settings) for run in runs]
    first, _, arm = named[0].partition(":")
    folder, chosen, trained = trained_run("crossplay", first, arm or MAIN_ARM, settings)
    names = play_order(trained, chosen).agent_names
    base, others = _game(trained, names, named[0], agent)
    sources = {f"agents.{name}.checkpoint_run_id": named for name in others}
    pairs = ZipSweep(parameters=sources, for_each={f"agents.{agent}.checkpoint_run_id": named})
    return resolve_sweep(base, pairs, chosen, None, name=f"{folder.run_id}-crossplay")


def _full_name(run: str, settings: ExperimentSettings | None) -> str:
    """Return a run's id with its arm, if it names one; refuse unknown ones."""
    name, mark, arm = run.partition(":")
    folder = find_run((settings or ExperimentSettings()).runs, name)
    arms = folder.manifest.arms
    if mark and arm not in arms:
        raise ParameterError(
            f"crossplay: run {folder.run_id} has no arm {arm!r}, expected one of"
            f" {sorted(arms)}.{nearest(arm, arms)}"
        )
    return f"{folder.run_id}{mark}{arm}"


def _game(
    trained: HyperParameters, names: Sequence[str], run: str, agent: str
) -> tuple[HyperParameters, list[str]]:
    """Return the parameters of a game of loaded agents without training, and the other agents."""
    others = [name for name in names if name != agent]
    if agent not in names or not others:
        raise ParameterError(
            f"crossplay: got the agent {agent!r}, expected one of {list(names)}, with others to"
            f" play with.{nearest(agent, names)}"
        )
    data: dict[str, Any] = trained.to_dict()
    loaded = {
        "load_checkpoint_and_parameters": True,
        "checkpoint_run_id": run,
        "checkpoint_version": "latest",
    }
    data["agents"] |= {name: {**trained.agents[name].to_dict(), **loaded} for name in names}
    data |= {"phases": [], "callbacks": [], "pretrain_agents": False}
    data["imitation"] |= {"agents": []}
    data["rl"] |= {"num_iterations": 0, "test_by_sampling": False}
    return HyperParameters.from_dict(fixed_data(data, trained)), others


def play_pairs(sweep: ResolvedSweep, agent: str, parallel: int = 1) -> Crossplay:
    """Play resolved pairs; errors as :func:`play_runs`."""
    results = run_resolved_sweep(sweep, parallel)
    row = f"agents.{agent}.checkpoint_run_id"
    runs = list(dict.fromkeys(str(changes[row]) for changes in results.changes))
    column = next(path for path in results.changes[0] if path != row)
    cells: dict[tuple[str, str], Estimate] = {}
    measure = ""
    for result, changes in zip(results, results.changes, strict=True):
        measure, cell = result_on_test_set(RunFolder(result.folder), agent)
        cells[str(changes[row]), str(changes[column])] = cell
    matrix = tuple(tuple(cells[one, other] for other in runs) for one in runs)
    return Crossplay(agent, tuple(runs), measure, matrix)
