"""Play the agents of several runs against each other: a matrix of results, and ratings or means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.sweeps.attacks import fixed_data
from flows.sweeps.exploit import (
    ACCURACY,
    check_trainer,
    play_order,
    read_test_table,
    trained_run,
)
from flows.sweeps.members import ResolvedSweep, resolve_sweep
from flows.sweeps.running import run_resolved_sweep
from ratchet.errors import ParameterError, shown
from ratchet.experiment_files.base_run import name_arm
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.parameters.sweeps import ZipSweep
from ratchet.reports.display_table import DisplayTable
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.ratings import elo_ratings
from ratchet.statistics.results import REWARD_PREFIX, Columns, accuracy, mean_return
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from rich.table import Table

_MOST_RUNS = 100
_RULES = {
    "gymnasium": ("environment_kwargs", "wrappers", "max_episode_steps"),
    "language_task": (
        *("task_options", "environment", "evaluator", "max_turns"),
        *("chat", "system_prompt"),
    ),
}
"""Parameters of an environment's game and prompts, in addition to ``dataset``, by scenario."""
_SPEECH = ("max_tokens", "top_p")
"""Sampling parameters of language models, which come from their own runs."""


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
    tables
        Test results by row and column.
    """

    agent: str
    runs: tuple[str, ...]
    measure: str
    tables: tuple[tuple[Columns, ...], ...]

    @cached_property
    def results(self) -> tuple[tuple[Estimate, ...], ...]:
        """Accuracies or mean returns of the agent, by row and column."""
        return tuple(tuple(self._estimate([table]) for table in row) for row in self.tables)

    @cached_property
    def ratings(self) -> tuple[list[Estimate], list[Estimate]] | None:
        """Elo ratings of rows and columns; None unless the agent decides.

        The agent wins a datapoint if its decision is correct. Otherwise the others win it, so their
        rating measures how often they cause errors, regardless of their rewards.
        """
        if self.measure != ACCURACY:
            return None
        played = np.array([[cell.n for cell in row] for row in self.results], np.float64)
        share = np.array([[cell.value for cell in row] for row in self.results], np.float64)
        return elo_ratings(share * played, played)

    @cached_property
    def means(self) -> tuple[list[Estimate], list[Estimate]]:
        """Results of rows and columns over all their pairs.

        A datapoint, which all pairs play, is one cluster.
        """
        columns = zip(*self.tables, strict=True)
        return [*map(self._estimate, self.tables)], [*map(self._estimate, columns)]

    def _estimate(self, tables: Sequence[Columns]) -> Estimate:
        """Return the agent's result in several tests together."""
        is_accuracy = self.measure == ACCURACY
        names = ("correct" if is_accuracy else f"{REWARD_PREFIX}{self.agent}", "datapoint_id")
        joined = {name: [value for table in tables for value in table[name]] for name in names}
        return accuracy(joined) if is_accuracy else mean_return(joined, self.agent)

    @property
    def table(self) -> DisplayTable:
        """The matrix: a row for each run of the agent, a column for each run of the others."""
        show_margin, margin_name = (
            (self._shown, "mean") if self.ratings is None else (_points, "Elo")
        )
        margins = self.means if self.ratings is None else self.ratings
        columns = [f"{self.agent} of", *(f"others of {run}" for run in self.runs), margin_name]
        lines = list(zip(self.runs, self.results, margins[0], strict=True))
        rows = [[run, *map(self._shown, line), show_margin(margin)] for run, line, margin in lines]
        rows.append([margin_name, *map(show_margin, margins[1]), ""])
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
            for run, line, _ in lines
            for other, cell in zip(self.runs, line, strict=True)
        ]
        title = f"Crossplay, {self.measure} (n={self.results[0][0].n})"
        return DisplayTable(title, columns, rows, records)

    def _shown(self, cell: Estimate) -> str:
        if self.measure == ACCURACY:
            return cell.percent()
        return f"{cell.value:.3f} [{cell.low:.3f}, {cell.high:.3f}]".replace("-", "−")

    def __rich__(self) -> Table:
        return self.table.__rich__()


def _points(rating: Estimate) -> str:
    low, high = f"[{rating.low:+.0f}", f"{rating.high:+.0f}]"
    low, high = low.replace("[-inf", "(-∞"), high.replace("+inf]", "∞)")
    return f"{rating.value:+.0f} {low}, {high}".replace("-", "−")


@dataclass(frozen=True)
class Pairs:
    """All pairs of some runs, as members of a sweep, row by row.

    Attributes
    ----------
    agent, runs
        As in :class:`Crossplay`.
    sweep
        The sweep.
    """

    agent: str
    runs: tuple[str, ...]
    sweep: ResolvedSweep


def play_runs(
    runs: Sequence[str],
    agent: str | None = None,
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
        The agent that rows stand for. Default: the verifier, or else the first agent.
    settings
        Settings that contain the runs folder and replace those of the first run.
    parallel
        Number of pairs played concurrently.

    Raises
    ------
    RunNotFoundError
        If a run does not exist.
    ParameterError
        If there are not two completed runs, or their agents don't fit the first run's game.
    StageFailedError
        If pairs failed; all others have been played.
    """
    return play_pairs(resolve_pairs(runs, agent, settings), parallel)


def resolve_pairs(
    runs: Sequence[str], agent: str | None, settings: ExperimentSettings | None
) -> Pairs:
    """Resolve the sweep over all pairs; parameters and errors as :func:`play_runs`."""
    trained_arms = [_trained_arm(run, settings) for run in runs]
    arms = {name: trained for name, _, trained in trained_arms}
    if not 2 <= len(arms) == len(runs) <= _MOST_RUNS:
        raise ParameterError(
            f"crossplay: got {list(runs)}, expected 2 to {_MOST_RUNS} different runs."
        )
    _check_rules(arms)
    first, chosen, trained = trained_arms[0]
    handler = play_order(trained, chosen)
    names = list(handler.agent_names)
    agent = agent or next(iter([*handler.verifier_names, *names]), "")
    if agent not in names or len(names) < 2:
        raise ParameterError(
            f"crossplay: got the agent {agent!r}, expected one of at least two agents. The game of"
            f" {first} has: {', '.join(names)}."
        )
    base = _game(trained, names, first)
    name = f"{first.partition(':')[0]}-crossplay"
    sweep = resolve_sweep(base, _pairs(arms, names, agent), chosen, None, name=name)
    return Pairs(agent, tuple(arms), sweep)


def _trained_arm(
    run: str, settings: ExperimentSettings | None
) -> tuple[str, ExperimentSettings, HyperParameters]:
    """Return the name of a completed run's arm, settings of runs next to it, and its parameters."""
    name, _, arm = run.partition(":")
    arm = arm or MAIN_ARM
    folder, chosen, trained = trained_run("crossplay", name, arm, settings)
    if folder.status != "completed":
        raise ParameterError(
            f"crossplay: run {folder.run_id} is {folder.status}, expected a completed run. Finish"
            f" it with `ratchet resume {folder.run_id}`."
        )
    check_trainer(trained, chosen, "crossplay", language_models=True)
    return name_arm(folder.run_id, arm), chosen, trained


def _check_rules(arms: Mapping[str, HyperParameters]) -> None:
    """Refuse runs whose scenario differs, or of environments the game or its prompts."""
    rules = {run: _rules(trained) for run, trained in arms.items()}
    first, expected = next(iter(rules.items()))
    for run, values in rules.items():
        for path, value in values.items():
            if value != expected.get(path):
                raise ParameterError(
                    f"crossplay: {path} of run {run} is {shown(value)}, expected"
                    f" {shown(expected[path])} as in {first}, since all pairs play one game."
                )


def _rules(trained: HyperParameters) -> dict[str, object]:
    rules: dict[str, object] = {
        name: getattr(trained, name) for name in ("scenario", "interaction_protocol")
    }
    if trained.scenario in _RULES:
        section = getattr(trained, trained.scenario).to_dict()
        rules["dataset"] = trained.dataset
        rules |= {f"{trained.scenario}.{name}": section[name] for name in _RULES[trained.scenario]}
    return rules


def _pairs(arms: Mapping[str, HyperParameters], names: Sequence[str], agent: str) -> ZipSweep:
    """Return the sweep over pairs of runs by row and column, with each agent's own sampling."""
    parameters: dict[str, list[Any]] = {}
    for name in names:
        sources = [row if name == agent else column for row, column in product(arms, repeat=2)]
        parameters[f"agents.{name}.checkpoint_run_id"] = sources
        for option in _SPEECH:
            values = [getattr(arms[run].agents[name], option, None) for run in sources]
            if len(set(values)) > 1:
                parameters[f"agents.{name}.{option}"] = values
    return ZipSweep(parameters=parameters)


def _game(trained: HyperParameters, names: Sequence[str], run: str) -> HyperParameters:
    """Return the parameters of a game of loaded agents without training, tested as in a run."""
    data: dict[str, Any] = trained.to_dict()
    loaded = {
        "load_checkpoint_and_parameters": True,
        "checkpoint_run_id": run,
        "checkpoint_version": "latest",
    }
    data["agents"] |= {name: {**trained.agents[name].to_dict(), **loaded} for name in names}
    data |= {"phases": [], "callbacks": [], "pretrain_agents": False}
    data["imitation"] |= {"agents": []}
    data["language"] |= {"validate_every": None}
    is_sampled = trained.rl.test_by_sampling is True
    data["rl"] |= {"num_iterations": 0, "test_by_sampling": is_sampled}
    return HyperParameters.from_dict(fixed_data(data, trained))


def play_pairs(pairs: Pairs, parallel: int = 1) -> Crossplay:
    """Play resolved pairs; errors as :func:`play_runs`."""
    results = run_resolved_sweep(pairs.sweep, parallel)
    folders = {result.run_id: RunFolder(result.folder) for result in results}
    tests = [read_test_table(folders[member.run_id], pairs.agent) for member in pairs.sweep.members]
    tables, size = [columns for _, columns in tests], len(pairs.runs)
    rows = tuple(tuple(tables[row : row + size]) for row in range(0, len(tables), size))
    return Crossplay(pairs.agent, pairs.runs, tests[0][0], rows)
