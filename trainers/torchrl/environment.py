"""Environments by name or by file: what a configuration may want to know of one, and one made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import ParameterError
from ratchet.plugins import is_class_spec, load_class
from ratchet.scenarios.gymnasium.catalogue import checked_arguments

if TYPE_CHECKING:
    import gymnasium
    from torchrl.envs import EnvBase

    from ratchet.parameters.hyper_parameters import HyperParameters

MAKER = "trainers.torchrl.environment.make_environment"
_OBSERVATION = "observation"


def environment_facts(hyper_params: HyperParameters) -> dict[str, Any]:
    """Look at the spaces of an experiment's environment.

    Returns
    -------
    dict
        ``name``, ``discrete``, ``observation_size``, and ``num_actions`` and ``one_hot`` or
        ``action_size``, ``num_policy_outputs`` (location and scale),
        ``observation_and_action_size``, ``action_low`` and ``action_high``; ``arguments``, those
        of :func:`make_environment`, where the library alone does not make it.

    Raises
    ------
    ParameterError
        If there is no such environment, or its spaces are of another kind.
    """
    name, section = hyper_params.dataset, hyper_params.gymnasium
    arguments = {
        "environment_kwargs": section.environment_kwargs,
        "max_episode_steps": section.max_episode_steps,
    }
    given = {argument: value for argument, value in arguments.items() if value}
    if not is_class_spec(name):
        facts = _facts_by_id(name, json.dumps(given))
        return {**facts, "arguments": given} if given else dict(facts)
    environment = make_environment(name, **given)
    try:
        return {**_spec_facts(name, environment), "arguments": given}
    finally:
        environment.close()


def make_environment(
    name: str,
    environment_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    base_dir: Path | str | None = None,
) -> EnvBase:
    """Make one of gymnasium's environments, or that of a user's class.

    Parameters
    ----------
    name
        An id, or ``path/to/file.py:ClassName`` with a subclass of ``gymnasium.Env`` or of
        ``torchrl.envs.EnvBase``.
    environment_kwargs
        Of its constructor.
    max_episode_steps
        After how many steps episodes are cut off.
    base_dir
        Where paths start from.

    Raises
    ------
    ParameterError
        If it cannot be made so.
    """
    import gymnasium
    from torchrl.envs import EnvBase, GymWrapper, StepCounter

    kwargs = dict(environment_kwargs or {})
    if not is_class_spec(name):
        return GymWrapper(_make_by_id(name, kwargs, max_episode_steps))
    found = load_class(name, base_dir)
    if not issubclass(found, gymnasium.Env | EnvBase):
        raise ParameterError(
            f"dataset: {found.__qualname__!r} has the bases"
            f" {[base.__name__ for base in found.__bases__]}, expected a subclass of gymnasium.Env"
            " or torchrl.envs.EnvBase. Others are played with `trainer: vanilla_ppo`."
        )
    with checked_arguments(found.__qualname__, kwargs):
        environment = found(**kwargs)
    if isinstance(environment, EnvBase):
        if max_episode_steps is None:
            return environment
        return environment.append_transform(StepCounter(max_episode_steps))
    if max_episode_steps is not None:
        environment = gymnasium.wrappers.TimeLimit(environment, max_episode_steps)
    return GymWrapper(environment)


def with_base_dir(tree: Any, base_dir: str | None) -> Any:  # noqa: ANN401 -- plain data
    """Say in a configuration where paths of environments start from, also in other processes."""
    if isinstance(tree, list):
        return [with_base_dir(item, base_dir) for item in tree]
    if not isinstance(tree, Mapping):
        return tree
    result = {name: with_base_dir(value, base_dir) for name, value in tree.items()}
    return {**result, "base_dir": base_dir} if tree.get("_target_") == MAKER else result


def _make_by_id(
    name: str, kwargs: Mapping[str, Any], max_episode_steps: int | None
) -> gymnasium.Env[Any, Any]:
    import gymnasium

    try:
        with checked_arguments(name, kwargs):
            return gymnasium.make(name, max_episode_steps=max_episode_steps, **kwargs)
    except (gymnasium.error.Error, ImportError) as error:
        raise ParameterError(f"dataset: cannot make the environment {name!r}: {error}") from error


@cache
def _facts_by_id(name: str, arguments: str) -> dict[str, Any]:
    import gymnasium

    given = json.loads(arguments)
    environment = _make_by_id(
        name, given.get("environment_kwargs", {}), given.get("max_episode_steps")
    )
    observations, actions = environment.observation_space, environment.action_space
    environment.close()
    if not isinstance(observations, gymnasium.spaces.Box) or len(observations.shape) != 1:
        raise _unsuited(name, "observations", observations)
    size = observations.shape[0]
    if isinstance(actions, gymnasium.spaces.Discrete):
        return _discrete(name, size, int(actions.n), one_hot=True)
    if not isinstance(actions, gymnasium.spaces.Box) or len(actions.shape) != 1:
        raise _unsuited(name, "actions", actions)
    return _continuous(name, size, actions.low.tolist(), actions.high.tolist())


def _spec_facts(name: str, environment: EnvBase) -> dict[str, Any]:
    from torchrl.data import Bounded, Categorical, OneHot

    if environment.batch_size:
        raise ParameterError(
            f"dataset: {name!r} has the batch size {tuple(environment.batch_size)}, expected one"
            " episode at a time. Write the groups yourself, with a `defaults` list."
        )
    observations = environment.observation_spec.get(_OBSERVATION, None)
    actions = environment.action_spec
    if observations is None or len(observations.shape) != 1:
        raise _unsuited(name, "observations", environment.observation_spec)
    size = observations.shape[0]
    if isinstance(actions, OneHot) and len(actions.shape) == 1:
        return _discrete(name, size, int(actions.space.n), one_hot=True)
    if isinstance(actions, Categorical) and not actions.shape:
        return _discrete(name, size, int(actions.space.n), one_hot=False)
    if isinstance(actions, Bounded) and len(actions.shape) == 1:
        return _continuous(name, size, actions.space.low.tolist(), actions.space.high.tolist())
    raise _unsuited(name, "actions", actions)


def _discrete(name: str, size: int, num_actions: int, *, one_hot: bool) -> dict[str, Any]:
    return {
        "name": name,
        "observation_size": size,
        "discrete": True,
        "num_actions": num_actions,
        "one_hot": one_hot,
        "action_space": "one-hot" if one_hot else "categorical",
    }


def _continuous(name: str, size: int, low: list[float], high: list[float]) -> dict[str, Any]:
    return {
        "name": name,
        "observation_size": size,
        "discrete": False,
        "action_size": len(low),
        "num_policy_outputs": 2 * len(low),
        "observation_and_action_size": size + len(low),
        "action_low": low,
        "action_high": high,
    }


def _unsuited(name: str, what: str, space: object) -> ParameterError:
    return ParameterError(
        f"dataset: the {what} of {name!r} are {space}, expected a vector (or a choice of actions)."
        " Write the groups yourself, with a `defaults` list."
    )
