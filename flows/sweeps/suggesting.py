"""``OptunaTrials``: Optuna's view of a sweep's trials, and what it suggests and prunes.

Fed with what a journal says, in its order, it is the same study again; so nothing of Optuna's is
kept. The only module that imports Optuna, which need not be installed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ratchet.parameters.sweeps import (
    Choices,
    HalvingPruner,
    HyperbandPruner,
    Integers,
    LogUniform,
    MedianPruner,
    OptunaSweep,
    Uniform,
)
from ratchet.seeding import derive_seed
from ratchet.store.keys import canonical_json

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial

_NAME = "sweep"
"""Hyperband finds a trial's bracket by the study's name."""


class OptunaTrials:
    """The trials of a study, numbered as they were asked for."""

    def __init__(self, spec: OptunaSweep) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spec = spec
        self._spaces = {path: _space(each) for path, each in spec.parameters.items()}
        self._study = optuna.create_study(
            study_name=_NAME,
            direction=spec.direction,
            sampler=optuna.samplers.RandomSampler(seed=0),  # never asked: see `suggest`
            pruner=_pruner(spec),
        )
        self._trials: list[Trial] = []

    def suggest(self, number: int, attempt: int) -> dict[str, Any]:
        """Return what Optuna would have the next trial change; nothing is noted of it.

        Drawn with a seed of its own, so that it follows from what was told so far.
        """
        import optuna

        sampler = _sampler(self._spec, derive_seed(self._spec.seed, _NAME, number, str(attempt)))
        study = optuna.create_study(
            study_name=_NAME,
            direction=self._spec.direction,
            sampler=sampler,
            pruner=self._study.pruner,
        )
        study.add_trials(self._study.get_trials())
        drawn = study.ask(self._spaces).params
        return {path: self._value(path, value) for path, value in drawn.items()}

    def add(self, changes: Mapping[str, Any]) -> None:
        """Add the next trial, which changes this."""
        self._study.enqueue_trial(
            {path: self._inner(path, value) for path, value in changes.items()}
        )
        self._trials.append(self._study.ask(self._spaces))

    def report(self, number: int, iteration: int, value: float | None) -> bool:
        """Note a trial's value after an iteration; return whether it should be pruned."""
        trial = self._trials[number]
        trial.report(math.nan if value is None else value, iteration + 1)
        return bool(trial.should_prune())

    def tell(self, number: int, value: float | None, *, pruned: bool) -> None:
        """Note what a trial has come to."""
        from optuna.trial import TrialState

        if pruned or value is None:
            state = TrialState.PRUNED if pruned else TrialState.FAIL
            self._study.tell(self._trials[number], state=state)
        else:
            self._study.tell(self._trials[number], value)

    def _value(self, path: str, drawn: Any) -> Any:  # noqa: ANN401 -- a value of any type
        distribution = self._spec.parameters[path]
        if isinstance(distribution, Choices):
            return distribution.values[drawn]
        return drawn if isinstance(distribution, Integers) else distribution.rounded(drawn)

    def _inner(self, path: str, value: Any) -> Any:  # noqa: ANN401 -- a value of any type
        distribution = self._spec.parameters[path]
        if not isinstance(distribution, Choices):
            return value
        return [canonical_json(each) for each in distribution.values].index(canonical_json(value))


def _space(distribution: Choices | Uniform | LogUniform | Integers) -> BaseDistribution:
    """Return Optuna's distribution; choices by their places, for it takes only plain values."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if isinstance(distribution, Choices):
        return CategoricalDistribution(range(len(distribution.values)))
    if isinstance(distribution, Integers):
        return IntDistribution(distribution.low, distribution.high, log=distribution.log)
    log = isinstance(distribution, LogUniform)
    return FloatDistribution(distribution.low, distribution.high, log=log)


def _sampler(spec: OptunaSweep, seed: int) -> BaseSampler:
    from optuna import samplers

    seed %= 2**32
    if spec.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    startup = spec.num_startup_trials
    if spec.sampler == "gp":
        return samplers.GPSampler(seed=seed, n_startup_trials=startup)
    return samplers.TPESampler(seed=seed, n_startup_trials=startup)


def _pruner(spec: OptunaSweep) -> BasePruner:
    from optuna import pruners

    own = spec.pruner
    if isinstance(own, MedianPruner):
        return pruners.MedianPruner(own.num_startup_trials, own.num_warmup_iterations + 1)
    if isinstance(own, HalvingPruner):
        return pruners.SuccessiveHalvingPruner(own.min_iterations, own.reduction_factor)
    if isinstance(own, HyperbandPruner):
        last = "auto" if own.max_iterations is None else own.max_iterations
        return pruners.HyperbandPruner(own.min_iterations, last, own.reduction_factor)
    return pruners.NopPruner()
