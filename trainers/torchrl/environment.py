"""Creation of environments and transforms by name or by file, for TorchRL trainers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import ParameterError, UnknownNameError, nearest
from ratchet.parameters.base import Reference
from ratchet.plugins import is_class_spec, load_class
from ratchet.scenarios.gymnasium.catalogue import (
    PARALLEL,
    checked_arguments,
    class_by_name,
    parallel_module,
    refuse_wrappers,
    suite_of,
    wrapped,
)
from trainers.torchrl.offline_data import BUFFER

if TYPE_CHECKING:
    import gymnasium
    from torchrl.envs import EnvBase, Transform

MAKER = "trainers.torchrl.environment.make_environment"
TRANSFORM = "trainers.torchrl.environment.make_transform"
OBSERVATION = "observation"
_TRANSFORMS = "torchrl.transforms"
_Kwargs = dict[str, Any]


def make_environment(
    name: str,
    environment_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    wrappers: Iterable[Mapping[str, Any]] = (),
    num_envs: int = 0,
    base_dir: Path | str | None = None,
) -> EnvBase:
    """Create an environment of gymnasium, PettingZoo, dm_control or VMAS, or of a custom class.

    Parameters
    ----------
    name
        A gymnasium id, the module of a parallel PettingZoo environment,
        ``dm_control/DOMAIN-TASK``, ``vmas/SCENARIO``, or ``path/to/file.py:ClassName`` with a
        subclass of ``gymnasium.Env``, ``pettingzoo.ParallelEnv`` or ``torchrl.envs.EnvBase``.
    environment_kwargs
        Arguments of its constructor.
    max_episode_steps
        The number of steps after which episodes are truncated.
    wrappers
        Names of gymnasium wrappers, with their arguments.
    num_envs
        The number of parallel environments; for VMAS the batch size of one.
    base_dir
        The folder of relative paths.
    """
    from torchrl.envs import SerialEnv

    kwargs = dict(environment_kwargs or {})
    references = [Reference.model_validate(dict(wrapper)) for wrapper in wrappers]
    if suite_of(name) == "vmas":
        return _from_vmas(name, kwargs, max_episode_steps, num_envs)
    make = _maker(name, kwargs, max_episode_steps, references, base_dir)
    return SerialEnv(num_envs, make) if num_envs > 1 else make()


def make_transform(
    name: str, arguments: Mapping[str, Any] | None = None, base_dir: Path | str | None = None
) -> Transform:
    """Create a TorchRL transform by its class's name, or one from a user's file."""
    from torchrl.envs import transforms

    transform_cls = class_by_name(name, transforms, transforms.Transform, _TRANSFORMS, base_dir)
    kwargs = {argument: _keys(argument, value) for argument, value in (arguments or {}).items()}
    with checked_arguments(name, kwargs, _TRANSFORMS):
        return transform_cls(**kwargs)


def _keys(argument: str, value: Any) -> Any:  # noqa: ANN401 -- plain data
    """Return the keys of tensors in the library's format: nested ones as tuples."""
    if not isinstance(value, list):
        return value
    if argument.endswith("_key"):
        return tuple(value)
    if argument.endswith(("_keys", "_keys_inv")):
        return [tuple(key) if isinstance(key, list) else key for key in value]
    return value


def transform_configs(transforms: Iterable[Reference]) -> list[dict[str, Any]]:
    """Return configurations that create transforms with :func:`make_transform`."""
    return [
        {"_target_": TRANSFORM, "_convert_": "all", "name": r.name, "arguments": dict(r.given)}
        for r in transforms
    ]


def with_base_dir(tree: Any, base_dir: str | None) -> Any:  # noqa: ANN401 -- plain data
    """Add the folder of relative paths to a configuration, also for other processes."""
    if isinstance(tree, list):
        return [with_base_dir(item, base_dir) for item in tree]
    if not isinstance(tree, Mapping):
        return tree
    result = {name: with_base_dir(value, base_dir) for name, value in tree.items()}
    reads_files = tree.get("_target_") in (MAKER, TRANSFORM, BUFFER)
    return {**result, "base_dir": base_dir} if reads_files else result


def _maker(
    name: str,
    kwargs: _Kwargs,
    limit: int | None,
    wrappers: list[Reference],
    base_dir: Path | str | None,
) -> Callable[[], EnvBase]:
    """Return the function that creates one environment without a batch."""
    if is_class_spec(name):
        return partial(_from_file, name, kwargs, limit, wrappers, base_dir)
    module = None if suite_of(name) else parallel_module(name)
    if module is None and not suite_of(name):
        return partial(_from_gymnasium, name, kwargs, limit, wrappers, base_dir)
    refuse_wrappers(wrappers, name)
    if module is None:
        return partial(_from_dm_control, name, kwargs, limit)
    return partial(_from_pettingzoo, getattr(import_module(module), PARALLEL), kwargs, limit)


def _from_gymnasium(
    name: str,
    kwargs: _Kwargs,
    limit: int | None,
    wrappers: list[Reference],
    base_dir: Path | str | None,
) -> EnvBase:
    import gymnasium
    from torchrl.envs import GymWrapper

    try:
        with checked_arguments(name, kwargs):
            environment: gymnasium.Env[Any, Any] = gymnasium.make(
                name, max_episode_steps=limit, **kwargs
            )
    except (gymnasium.error.Error, ImportError) as error:
        raise ParameterError(f"dataset: cannot make the environment {name!r}: {error}") from error
    return GymWrapper(wrapped(environment, wrappers, base_dir))


def _from_file(
    name: str,
    kwargs: _Kwargs,
    limit: int | None,
    wrappers: list[Reference],
    base_dir: Path | str | None,
) -> EnvBase:
    import gymnasium
    from pettingzoo import ParallelEnv
    from torchrl.envs import EnvBase, GymWrapper

    environment_cls = load_class(name, base_dir)
    if not issubclass(environment_cls, gymnasium.Env | ParallelEnv | EnvBase):
        raise ParameterError(
            f"dataset: {environment_cls.__qualname__!r} has the bases"
            f" {[base.__name__ for base in environment_cls.__bases__]}, expected a subclass of"
            " gymnasium.Env, pettingzoo.ParallelEnv or torchrl.envs.EnvBase. Others are played with"
            " `trainer: vanilla_ppo`."
        )
    if not issubclass(environment_cls, gymnasium.Env):
        refuse_wrappers(wrappers, environment_cls.__qualname__)
    if issubclass(environment_cls, ParallelEnv):
        return _from_pettingzoo(environment_cls, kwargs, limit)
    with checked_arguments(environment_cls.__qualname__, kwargs):
        environment = environment_cls(**kwargs)
    if isinstance(environment, EnvBase):
        return _cut_off(environment, limit)
    if limit is not None:
        environment = gymnasium.wrappers.TimeLimit(environment, limit)
    return GymWrapper(wrapped(environment, wrappers, base_dir))


def _from_pettingzoo(make: Callable[..., Any], kwargs: _Kwargs, limit: int | None) -> EnvBase:
    """Create a parallel environment; agents whose names differ in a number form a group."""
    from torchrl.envs.libs.pettingzoo import PettingZooWrapper

    with checked_arguments(make.__qualname__, kwargs):
        environment = make(**kwargs)
    return _cut_off(PettingZooWrapper(environment), limit)


def _from_dm_control(name: str, kwargs: _Kwargs, limit: int | None) -> EnvBase:
    """Create a task of the suite; its observations are concatenated in the order of names."""
    if not kwargs.get("from_pixels") and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "off")  # otherwise it searches for a display and warns
    from torchrl.envs import CatTensors, TransformedEnv
    from torchrl.envs.libs.dm_control import DMControlEnv

    known = [
        f"dm_control/{domain}-{task}"
        for domain, tasks in DMControlEnv.available_envs
        for task in tasks
    ]
    if name not in known:
        raise UnknownNameError(f"dataset: dm_control has no task {name!r}.{nearest(name, known)}")
    domain, _, task = name.partition("/")[2].partition("-")
    with checked_arguments(name, kwargs):
        environment: EnvBase = DMControlEnv(domain, task, **kwargs)
    specs = environment.observation_spec
    names = sorted(str(key) for key in specs.keys())  # noqa: SIM118 -- no mapping
    if all(len(specs[key].shape) <= 1 for key in names):
        join = CatTensors(names, OBSERVATION, unsqueeze_if_oor=True)
        environment = TransformedEnv(environment, join)
    return _cut_off(environment, limit)


def _from_vmas(name: str, kwargs: _Kwargs, limit: int | None, num_envs: int) -> EnvBase:
    from torchrl.envs import ExcludeTransform, TransformedEnv
    from torchrl.envs.libs.vmas import VmasEnv

    scenario = name.partition("/")[2]
    if scenario not in VmasEnv.available_envs:
        known = [f"vmas/{each}" for each in VmasEnv.available_envs]
        raise UnknownNameError(f"dataset: VMAS has no scenario {name!r}.{nearest(name, known)}")
    if limit is None:
        raise ParameterError(
            f"gymnasium.max_episode_steps: got None for {name!r}, but VMAS has no time limit, so"
            " that tests might never end; expected a number of steps, e.g. 100."
        )
    with checked_arguments(name, kwargs):
        environment = VmasEnv(scenario, num_envs=max(num_envs, 1), max_steps=limit, **kwargs)
    # Resets still return information about the previous episode, which is not needed.
    observation_keys = environment.observation_spec.keys(include_nested=True, leaves_only=True)
    unread = [key for key in observation_keys if "info" in key]
    return TransformedEnv(environment, ExcludeTransform(*unread)) if unread else environment


def _cut_off(environment: EnvBase, limit: int | None) -> EnvBase:
    from torchrl.envs import StepCounter

    return environment if limit is None else environment.append_transform(StepCounter(limit))
