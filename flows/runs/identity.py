"""Which run it is: ids that follow from name and parameters, so that the same command goes on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.errors import ParameterError
from ratchet.experiment_files.loaded_agents import with_loaded_agents
from ratchet.experiment_files.loading import expand_paths
from ratchet.parameters.changes import merge_changes
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.keys import canonical_json

MAIN_ARM = "main"

Arms = dict[str, HyperParameters]
ArmChanges = Mapping[str, HyperParameters | Mapping[str, Any]]


def read_arms(
    hyper_params: HyperParameters, arms: ArmChanges | None, base_dir: str | None = None
) -> Arms:
    """Make the parameters of all arms, the main one first.

    Parameters
    ----------
    hyper_params
        The main arm's.
    arms
        Further arms by name: whole parameters, or changes to the main arm's, nested or dotted.
    base_dir
        The folder that paths of the user's files start from.

    Raises
    ------
    ParameterError
        If an arm is named like the main one, or its changes don't fit.
    """
    found = {MAIN_ARM: hyper_params}
    for name, changes in (arms or {}).items():
        if name == MAIN_ARM:
            raise ParameterError(f"arms.{name}: this name is the main arm's. Choose another name.")
        if isinstance(changes, HyperParameters):
            found[name] = changes
            continue
        try:
            data = merge_changes(hyper_params.to_dict(), expand_paths(changes, f"arms.{name}"))
            found[name] = HyperParameters.from_dict(data, base_dir)
        except ParameterError as error:
            raise ParameterError(f"arms.{name}: {error}") from error
    return found


def stable_run_id(name: str, arms: Arms, *origin: str) -> str:
    """Return the id of a run: its name and eight digits that follow from the parameters.

    Parameters
    ----------
    name
        The experiment's name, e.g. its file's.
    arms
        The parameters of all arms.
    origin
        What else tells it apart, e.g. the run it was forked from.
    """
    plain = {arm: params.to_dict() for arm, params in arms.items()}
    digest = hashlib.sha256(canonical_json([plain, list(origin)])).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name).strip('.-') or 'run'}-{digest[:8]}"


def absolute_settings(settings: ExperimentSettings) -> ExperimentSettings:
    """Make paths absolute, so that a worker in another folder finds the same places."""
    changes: dict[str, str] = {
        name: str(Path(getattr(settings, name)).expanduser().resolve())
        for name in ("home", "runs", "base_dir")
        if getattr(settings, name) is not None
    }
    if settings.store is not None and "://" not in settings.store:
        changes["store"] = str(Path(settings.store).expanduser().resolve())
    return settings.model_copy(update=changes)


def with_earlier_agents(arms: Arms, settings: ExperimentSettings) -> Arms:
    """Give agents that are to be loaded the parameters of the runs they come from, in all arms."""
    return {arm: with_loaded_agents(params, settings) for arm, params in arms.items()}
