"""Properties of an experiment's environment for configurations: its sizes and bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ratchet.errors import ParameterError
from ratchet.parameters.base import Reference
from ratchet.plugins import is_class_spec, load_class
from ratchet.scenarios.gymnasium.catalogue import suite_of
from trainers.torchrl.environment import OBSERVATION, make_environment, make_transform

if TYPE_CHECKING:
    from torchrl.data import TensorSpec
    from torchrl.envs import EnvBase

    from ratchet.parameters.hyper_parameters import HyperParameters

_ADVICE = " Write the groups yourself, with a `defaults` list."


def environment_facts(hyper_params: HyperParameters) -> dict[str, Any]:
    """Inspect the spaces of an experiment's environment.

    Returns
    -------
    dict
        ``name``, ``discrete``, ``observation_size``, and ``num_actions``, ``one_hot`` and
        ``action_space`` or ``action_size``, ``num_policy_outputs`` (location and scale),
        ``observation_and_action_size``, ``action_low`` and ``action_high``; for a group of
        agents these are each agent's, with ``group``, its name, and ``num_agents``.
        ``arguments`` are those of :func:`make_environment`, if the library itself does not
        create the environment.
    """
    name, section = hyper_params.dataset, hyper_params.gymnasium
    arguments = {
        "environment_kwargs": section.environment_kwargs,
        "max_episode_steps": section.max_episode_steps,
        "wrappers": [wrapper.to_dict() for wrapper in section.wrappers],
    }
    kwargs = {argument: value for argument, value in arguments.items() if value}
    transforms = [transform.to_dict() for transform in hyper_params.torchrl.transforms]
    around = (*section.wrappers, *hyper_params.torchrl.transforms)
    files = [each for each in (name, *(r.name for r in around)) if is_class_spec(each)]
    classes = tuple(load_class(each) for each in files)  # reloaded when files change
    facts = json.loads(_known_facts(name, json.dumps(kwargs), json.dumps(transforms), classes))
    made_here = kwargs or "group" in facts or is_class_spec(name) or suite_of(name)
    return {**facts, "arguments": kwargs} if made_here else facts


@lru_cache(maxsize=64)
def _known_facts(name: str, arguments: str, transforms: str, classes: tuple[type, ...]) -> str:
    """Inspect once for each combination of arguments and of classes from users' files."""
    return json.dumps(_inspect(name, json.loads(arguments), json.loads(transforms)))


def _inspect(
    name: str, arguments: Mapping[str, Any], transforms: list[Mapping[str, Any]]
) -> dict[str, Any]:
    environment = make_environment(name, **arguments)
    try:
        for transform in transforms:
            reference = Reference.model_validate(transform)
            built_transform = make_transform(reference.name, reference.given)
            environment = environment.append_transform(built_transform)
        return _facts(name, environment)
    finally:
        environment.close()


def _facts(name: str, environment: EnvBase) -> dict[str, Any]:
    group = _group_of(name, environment)
    keys = (OBSERVATION,) if group is None else (group.name, OBSERVATION)
    observations = environment.observation_spec_unbatched.get(keys, None)
    if observations is None or len(observations.shape) != (1 if group is None else 2):
        raise _unsuited(name, "observations", environment.observation_spec)
    facts = {"name": name, "observation_size": int(observations.shape[-1])}
    if group is not None:
        facts |= {"group": group.name, "num_agents": group.size}
    actions = environment.full_action_spec_unbatched[environment.action_key]
    return facts | _action_facts(name, actions, 0 if group is None else 1, facts)


@dataclass(frozen=True)
class _Group:
    name: str
    size: int


def _group_of(name: str, environment: EnvBase) -> _Group | None:
    """Return the group of acting agents; None for a single agent without a name."""
    keys = environment.action_keys
    if len(keys) == 1 and isinstance(keys[0], str):
        if environment.batch_size:
            raise ParameterError(
                f"dataset: {name!r} has the batch size {tuple(environment.batch_size)}, expected"
                f" one episode at a time.{_ADVICE}"
            )
        return None
    groups = [".".join(key[:-1]) if isinstance(key, tuple) else key for key in keys]
    if len(keys) != 1 or len(keys[0]) != 2:
        raise ParameterError(
            f"dataset: the agents of {name!r} form the groups {groups}, expected one group, whose"
            f" agents have the same kinds of observations and actions.{_ADVICE}"
        )
    return _Group(groups[0], int(environment.full_action_spec_unbatched[keys[0]].shape[0]))


def _action_facts(
    name: str, actions: TensorSpec, above: int, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Describe actions; ``above`` is the number of dimensions before one agent's."""
    from torchrl.data import Bounded, Categorical, OneHot

    dimensions = len(actions.shape) - above
    if isinstance(actions, OneHot) and dimensions == 1:
        return _discrete(int(actions.space.n), one_hot=True)
    if isinstance(actions, Categorical) and not dimensions:
        return _discrete(int(actions.space.n), one_hot=False)
    if not isinstance(actions, Bounded) or dimensions != 1:
        raise _unsuited(name, "actions", actions)
    low, high = actions.space.low, actions.space.high
    if above and not all(bound.eq(bound[0]).all() for bound in (low, high)):
        raise _unsuited(name, "bounds of actions", actions)
    first = [bound[0] if above else bound for bound in (low, high)]
    return _continuous(facts["observation_size"], *(bound.tolist() for bound in first))


def _discrete(num_actions: int, *, one_hot: bool) -> dict[str, Any]:
    return {
        "discrete": True,
        "num_actions": num_actions,
        "one_hot": one_hot,
        "action_space": "one-hot" if one_hot else "categorical",
    }


def _continuous(size: int, low: list[float], high: list[float]) -> dict[str, Any]:
    return {
        "discrete": False,
        "action_size": len(low),
        "num_policy_outputs": 2 * len(low),
        "observation_and_action_size": size + len(low),
        "action_low": low,
        "action_high": high,
    }


def _unsuited(name: str, what: str, space: object) -> ParameterError:
    return ParameterError(
        f"dataset: the {what} of {name!r} are {space}, expected a vector (or a choice of actions),"
        f" equal for all agents of a group.{_ADVICE}"
    )
