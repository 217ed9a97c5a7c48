"""A sweep as it is asked for: an experiment file, and what is said beside it."""

from __future__ import annotations

from collections.abc import Sequence

from flows.runs.resolving import absolute_settings
from flows.sweeps.grid import read_grid
from flows.sweeps.points import with_assignments
from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import ExperimentFile, load_experiment
from ratchet.parameters.settings import ExperimentSettings
from ratchet.parameters.sweeps import SweepSpec
from trainers.registry import TRAINERS


def read_sweep_file(
    file: str, assignments: Sequence[str], overrides: Sequence[str] = ()
) -> tuple[ExperimentFile, SweepSpec, ExperimentSettings]:
    """Read what all members have in common, what varies, and the settings.

    Parameters
    ----------
    assignments
        ``a.b=VALUES``, as :func:`flows.sweeps.grid.read_grid` takes them; they stand above what the
        file's section ``sweep`` says.
    overrides
        What else all members have in common, as on the command line.

    Raises
    ------
    ParameterError
        If something in the file or beside it is wrong, nothing varies, or a run's id is given.
    """
    grid, single = read_grid(assignments)
    common = [*single, *overrides]
    experiment = load_experiment(file, common, {"trainer": TRAINERS})
    if not assignments and experiment.sweep is None:
        raise ParameterError(
            f"{file}: nothing varies: it has no section `sweep`. Say what varies, e.g. seed=0..4."
        )
    fixed = [override.partition("=")[0].strip().lstrip("+~") for override in common]
    spec = with_assignments(experiment.sweep, grid, fixed)
    settings = absolute_settings(experiment.settings)
    if settings.run_id is not None:
        raise ParameterError(
            f"settings.run_id: got {settings.run_id!r}, but each member of a sweep has an id of its"
            " own. Leave it out."
        )
    return experiment, spec, settings
