"""What a configuration may want to know of an environment: sizes of observations and actions."""

from __future__ import annotations

from functools import cache
from typing import Any

from ratchet.errors import ParameterError


@cache
def environment_facts(name: str) -> dict[str, Any]:
    """Look at the spaces of one of gymnasium's environments.

    Parameters
    ----------
    name
        Its id, such as ``CartPole-v1``.

    Returns
    -------
    dict
        ``name``, ``discrete``, ``observation_size``, and ``num_actions`` or ``action_size``,
        ``num_policy_outputs`` (location and scale), ``observation_and_action_size``,
        ``action_low`` and ``action_high``.

    Raises
    ------
    ParameterError
        If there is no such environment, or its spaces are of another kind.
    """
    import gymnasium

    try:
        environment = gymnasium.make(name)
    except (gymnasium.error.Error, ImportError) as error:
        raise ParameterError(f"dataset: cannot make the environment {name!r}: {error}") from error
    observations, actions = environment.observation_space, environment.action_space
    environment.close()
    if not isinstance(observations, gymnasium.spaces.Box) or len(observations.shape) != 1:
        raise _unsuited(name, "observations", observations)
    size = observations.shape[0]
    facts: dict[str, Any] = {"name": name, "observation_size": size}
    if isinstance(actions, gymnasium.spaces.Discrete):
        return {**facts, "discrete": True, "num_actions": int(actions.n)}
    if not isinstance(actions, gymnasium.spaces.Box) or len(actions.shape) != 1:
        raise _unsuited(name, "actions", actions)
    return {
        **facts,
        "discrete": False,
        "action_size": actions.shape[0],
        "num_policy_outputs": 2 * actions.shape[0],
        "observation_and_action_size": size + actions.shape[0],
        "action_low": actions.low.tolist(),
        "action_high": actions.high.tolist(),
    }


def _unsuited(name: str, what: str, space: object) -> ParameterError:
    return ParameterError(
        f"dataset: the {what} of {name!r} are {space}, expected a vector (or a choice of actions)."
        " Write the groups yourself, with a `defaults` list."
    )
