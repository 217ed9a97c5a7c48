"""Check that the values of a sweep reach its arms: an arm may set a varied parameter itself."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import ParameterError
from ratchet.parameters.agents import DEFAULT_AGENT
from ratchet.protocols.registry import playing_agents
from ratchet.store.keys import canonical_json

if TYPE_CHECKING:
    from flows.runs.resolve import ResolvedExperiment

logger = logging.getLogger(__name__)


def check_variation(
    points: Sequence[Mapping[str, Any]], experiments: Sequence[ResolvedExperiment]
) -> None:
    """Check each varied parameter of a sweep, given each member's changes and experiment.

    Raises ParameterError if no arm varies with it; logs a warning that names the arms that do not.
    """
    for path in points[0] if points else ():
        first = _others(points[0], path)
        alike = [k for k, each in enumerate(points) if _others(each, path) == first]
        if len(alike) < 2:
            continue  # the other parameters vary with it
        arms = experiments[0].arms
        constant = [arm for arm in arms if _is_constant([experiments[k] for k in alike], arm)]
        if len(constant) == len(arms):
            values = ", ".join(str(points[k][path]) for k in alike[:3])
            raise ParameterError(
                f"sweep: {path}: got {values}, but no arm varies with it, since all agents or arms"
                f" set it themselves. Vary {_specific(path)} instead, or remove it there."
            )
        if constant:
            logger.warning(
                "sweep: %s does not vary in the arms %s, which set it themselves. Remove it there,"
                " with ~arms.NAME.%s, or drop these arms with ~arms.NAME.",
                *(path, ", ".join(constant), path),
            )


def _specific(path: str) -> str:
    """Return the parameters that take precedence over a path."""
    prefix = f"agents.{DEFAULT_AGENT}."
    return f"agents.NAME.{path.removeprefix(prefix)}" if path.startswith(prefix) else "theirs"


def _others(point: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    return {name: value for name, value in point.items() if name != path}


def _is_constant(experiments: Sequence[ResolvedExperiment], arm: str) -> bool:
    """Return whether an arm's parameters in use are equal in all experiments."""
    first, *others = (_used(each, arm) for each in experiments)
    return all(each == first for each in others)


def _used(experiment: ResolvedExperiment, arm: str) -> bytes:
    """Return an arm's parameters, with those of its protocol's agents instead of the defaults."""
    params, base_dir = experiment.arms[arm], experiment.settings.base_dir
    agents = playing_agents(params, None if base_dir is None else Path(base_dir))
    named = {name: each.to_dict() for name, each in agents.items()}
    return canonical_json({**params.to_dict(), "agents": named})
