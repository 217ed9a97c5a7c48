"""``OptunaAdapter``: an Optuna study of a sweep's trials, for suggestions and pruning.

The journal reproduces the study, so that no Optuna state is stored. This is the only module that
imports Optuna, an optional package.
"""

from __future__ import annotations

import math
import warnings
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
"""Hyperband derives a trial's bracket from the study's name."""
_SAMPLER_ATTEMPTS = 20
"""Attempts with the chosen sampler, which may repeat the best of few choices; then random ones."""


class OptunaAdapter:
    """Trials of a study, numbered in the order of their creation."""

    def __init__(self, spec: OptunaSweep) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spec = spec
        self._spaces = {path: _space(each) for path, each in spec.parameters.items()}
        self._study = optuna.create_study(
            study_name=_NAME,
            direction=spec.direction,
            sampler=optuna.samplers.RandomSampler(seed=0),  # unused: see `suggest`
            pruner=_pruner(spec),
        )
        self._trials: list[Trial] = []

    def suggest(self, number: int, attempt: int) -> dict[str, Any]:
        """Return Optuna's suggestion for the next trial without recording it.

        Uses a separate seed, so that the suggestion depends only on the recorded trials.
        """
        import optuna

        name = self._spec.sampler if attempt < _SAMPLER_ATTEMPTS else "random"
        seed = derive_seed(self._spec.seed, _NAME, number, str(attempt))
        sampler = _sampler(name, seed, self._spec.num_startup_trials)
        study = optuna.create_study(
            study_name=_NAME,
            direction=self._spec.direction,
            sampler=sampler,
            pruner=self._study.pruner,
        )
        study.add_trials(self._study.get_trials())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Clip non-finite values", UserWarning)
            sampled = study.ask(self._spaces).params
        return {path: self._value(path, value) for path, value in sampled.items()}

    def add(self, changes: Mapping[str, Any]) -> None:
        """Add the next trial with these changes."""
        self._study.enqueue_trial(
            {path: self._inner(path, value) for path, value in changes.items()}
        )
        self._trials.append(self._study.ask(self._spaces))

    def report(self, number: int, iteration: int, value: float | None) -> bool:
        """Record a trial's value after an iteration; return whether to prune it.

        Pruners treat NaN as the worst value, and infinities of either sign are as bad.
        """
        trial = self._trials[number]
        is_finite = value is not None and math.isfinite(value)
        trial.report(value if is_finite else math.nan, iteration + 1)  # type: ignore[arg-type]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
            return bool(trial.should_prune())

    def finish(self, number: int, value: float | None, *, pruned: bool) -> None:
        """Record the outcome of a trial; without a value, samplers ignore it.

        A value that is not finite counts as the worst one, so that samplers avoid its region.
        """
        from optuna.trial import TrialState

        if pruned or value is None:
            state = TrialState.PRUNED if pruned else TrialState.FAIL
            self._study.tell(self._trials[number], state=state)
        else:
            worst = math.inf if self._spec.direction == "minimize" else -math.inf
            score = value if math.isfinite(value) else worst
            self._study.tell(self._trials[number], score)

    def _value(self, path: str, sampled: Any) -> Any:  # noqa: ANN401 -- a value of any type
        distribution = self._spec.parameters[path]
        if isinstance(distribution, Choices):
            return distribution.values[sampled]
        return sampled if isinstance(distribution, Integers) else distribution.rounded(sampled)

    def _inner(self, path: str, value: Any) -> Any:  # noqa: ANN401 -- a value of any type
        distribution = self._spec.parameters[path]
        if not isinstance(distribution, Choices):
            return value
        return [canonical_json(each) for each in distribution.values].index(canonical_json(value))


def _space(distribution: Choices | Uniform | LogUniform | Integers) -> BaseDistribution:
    """Return Optuna's distribution; choices by index, since Optuna accepts only plain values."""
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


def _sampler(name: str, seed: int, num_startup_trials: int) -> BaseSampler:
    from optuna import samplers

    seed %= 2**32
    if name == "random":
        return samplers.RandomSampler(seed=seed)
    if name == "gp":
        return samplers.GPSampler(seed=seed, n_startup_trials=num_startup_trials)
    return samplers.TPESampler(seed=seed, n_startup_trials=num_startup_trials)


def _pruner(spec: OptunaSweep) -> BasePruner:
    from optuna import pruners

    pruner = spec.pruner
    if isinstance(pruner, MedianPruner):
        return pruners.MedianPruner(pruner.num_startup_trials, pruner.num_warmup_iterations + 1)
    if isinstance(pruner, HalvingPruner):
        return pruners.SuccessiveHalvingPruner(pruner.min_iterations, pruner.reduction_factor)
    if isinstance(pruner, HyperbandPruner):
        last = "auto" if pruner.max_iterations is None else pruner.max_iterations
        return pruners.HyperbandPruner(pruner.min_iterations, last, pruner.reduction_factor)
    return pruners.NopPruner()
