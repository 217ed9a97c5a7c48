"""Conversion of a TorchRL trainer's complete state to a value and back.

Parameters, target networks, optimizers, schedules, exploration, normalisation, counters, the states
of all hooks (registered as modules or only as operations), and the replay buffers. Includes values
that the library does not save (``HardUpdate``'s counter, the sampler's order).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torchrl.envs import EnvBase, ParallelEnv, TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase
from torchrl.objectives.utils import HardUpdate
from torchrl.trainers import (
    LogTiming,
    ReplayBufferTrainer,
    TargetNetUpdaterHook,
    Trainer,
    TrainerHookBase,
)
from torchrl.trainers.algorithms.offline_to_online import OfflineToOnlineReplayBufferHook

from ratchet.errors import StateError
from trainers.state_tree import Tree
from trainers.torchrl.replay import ReplayContent, load_replay, load_sampler, take_sampler

if TYPE_CHECKING:
    from torchrl.collectors import BaseCollector
    from torchrl.data import OfflineToOnlineReplayBuffer, ReplayBuffer

HOOK_POINTS = (
    "setup",
    "batch_process",
    "pre_steps_log",
    "pre_optim_steps",
    "pre_epoch_log",
    "pre_epoch",
    "process_optim_batch",
    "post_loss",
    "process_loss",
    "optimizer",
    "post_optim",
    "post_optim_log",
    "post_epoch_log",
    "post_epoch",
    "post_optim_complete_log",
    "post_steps",
    "post_steps_log",
    "shutdown",
)
"""All points at which hooks are called, in the order of the loop."""

_OPS = {"pre_optim_steps": "_pre_optim_ops"}
_COUNTERS = ("collected_frames", "_optim_count", "_last_save", "_stop_training", "_stop_reason")
_OWN_COUNTERS = ("_greedy_last_frames",)


def operations(trainer: Trainer, point: str) -> list[tuple[Callable[..., Any], dict[str, Any]]]:
    """Return the live list of operations at a hook point, with their keyword arguments."""
    registered_operations: list[tuple[Callable[..., Any], dict[str, Any]]]
    registered_operations = getattr(trainer, _OPS.get(point, f"_{point}_ops"))
    return registered_operations


def registered(operation: Callable[..., Any]) -> Any:  # noqa: ANN401 -- hooks are of any class
    """Return a registered operation without the library's timer around it."""
    return getattr(operation, "__wrapped__", operation)


def hooks(trainer: Trainer) -> Iterator[tuple[str, Any]]:
    """Iterate over all hook objects of a trainer, each once, with names stable across runs.

    Modules are identified by name, others by their position.
    """
    seen = {id(trainer)}
    named = [(name, module) for name, module in trainer._modules.items()]
    placed = [
        (f"{point}.{index}", getattr(registered(operation), "__self__", registered(operation)))
        for point in HOOK_POINTS
        for index, (operation, _) in enumerate(operations(trainer, point))
    ]
    for name, hook in (*named, *placed):
        if id(hook) not in seen:
            seen.add(id(hook))
            yield name, hook


def replay_buffers(trainer: Trainer, *, offline: bool = False) -> dict[str, ReplayBuffer]:
    """Return the trainer's growing replay buffers by name; with ``offline``, also the others."""
    mixed = [getattr(trainer, "replay_buffer", None)]
    mixed += [hook.replay_buffer for _, hook in hooks(trainer) if is_replay(hook)]
    mixed_parts = [getattr(buffer, "online_buffer", buffer) for buffer in mixed]
    if offline:
        mixed_parts += [getattr(buffer, "offline_buffer", None) for buffer in mixed]
    buffers = {id(buffer): buffer for buffer in mixed_parts if buffer is not None}
    names = ("replay_buffer", *(f"replay_buffer_{i}" for i in range(1, len(buffers))))
    return dict(zip(names, buffers.values(), strict=False))


def take_trainer(trainer: Trainer) -> Tree:
    """Return the state of the trainer without its replay buffers' contents."""
    return {
        "counters": {
            name: getattr(trainer, name)
            for name in (*_COUNTERS, *(name for name in _OWN_COUNTERS if hasattr(trainer, name)))
        },
        "last_values": _last_values(trainer),
        "loss": _state_of(trainer.loss_module),
        "optimizer": _state_of(trainer.optimizer),
        "exploration": {name: part.state_dict() for name, part in _exploration(trainer)},
        "hooks": {name: access.take() for name, access in _hook_access(trainer).items()},
        "collector": _take_collector(trainer.collector),
        "samplers": {n: take_sampler(buffer) for n, buffer in replay_buffers(trainer).items()},
    }


def load_trainer(trainer: Trainer, state: Tree, buffers: dict[str, ReplayContent]) -> None:
    """Restore the result of :func:`take_trainer`, and the replay buffers' contents."""
    trainer_buffers = replay_buffers(trainer)
    _check_names(buffers, trainer_buffers, "replay buffers")
    for name, value in state["counters"].items():
        setattr(trainer, name, value)
    trainer._log_dict.clear()
    trainer._log_dict.update({name: [value] for name, value in state["last_values"].items()})
    try:
        _make_value_estimators(trainer.loss_module, state["loss"])
        _load(trainer.loss_module, state["loss"])
        _load(trainer.optimizer, state["optimizer"])
        for name, part in _exploration(trainer):
            part.load_state_dict(state["exploration"][name])
        access = _hook_access(trainer)
        _check_names(state["hooks"], access, "hooks")
        for name, hook in access.items():
            hook.load(state["hooks"][name])
        _load_collector(trainer.collector, state["collector"])
        for name, buffer in trainer_buffers.items():
            load_replay(buffer, buffers[name])
            load_sampler(buffer, state["samplers"][name])
    except (KeyError, RuntimeError, ValueError) as error:
        raise StateError(
            f"the state does not fit the trainer: {error} It belongs to other groups (networks,"
            " hooks, optimizer); use those, or train from scratch."
        ) from error


def _last_values(trainer: Trainer) -> dict[str, Any]:
    """Return the last value of each metric, which hooks may read; no timings."""
    timers = [hook for _, hook in hooks(trainer) if isinstance(hook, LogTiming)]
    prefixes = tuple(f"{timer.prefix}/" for timer in timers)
    return {
        name: values[-1]
        for name, values in trainer._log_dict.items()
        if values and not name.startswith(prefixes)
    }


@dataclass
class _HookState:
    """Functions that take and load a hook's state."""

    take: Callable[[], Tree]
    load: Callable[[Tree], None]


def _hook_access(trainer: Trainer) -> dict[str, _HookState]:
    """Return the access to the state of each hook that has one, by the hook's name."""
    return {name: access for name, hook in hooks(trainer) if (access := _access(hook)) is not None}


def _access(hook: object) -> _HookState | None:
    """Return the access to a hook's state; None if it has none."""
    if isinstance(hook, OfflineToOnlineReplayBufferHook):
        return _mixture_access(hook.replay_buffer)
    if is_replay(hook):  # the buffer is stored separately
        return None
    if isinstance(hook, TargetNetUpdaterHook):
        return _updater_access(hook.target_params_updater)
    take = getattr(hook, "state_dict", None)
    load = getattr(hook, "load_state_dict", None)
    if isinstance(hook, TrainerHookBase) and type(hook).state_dict is TrainerHookBase.state_dict:
        take = getattr(hook, "save_dict", None)  # the name in the library's guide
    if not (callable(take) and callable(load)):
        return None
    return _HookState(take, load)


def _mixture_access(buffer: OfflineToOnlineReplayBuffer) -> _HookState:
    """Store the share of offline frames in a sample, and the offline sampler's state."""

    def take() -> Tree:
        fractions = buffer._offline_fraction, buffer._base_offline_fraction
        return {"fractions": list(fractions), "offline": take_sampler(buffer.offline_buffer)}

    def load(state: Tree) -> None:
        buffer._offline_fraction, buffer._base_offline_fraction = state["fractions"]
        load_sampler(buffer.offline_buffer, state["offline"])

    return _HookState(take, load)


def _updater_access(updater: object) -> _HookState | None:
    if not isinstance(updater, HardUpdate):
        return None

    def load(state: Tree) -> None:
        updater.counter = state["counter"]

    return _HookState(lambda: {"counter": updater.counter}, load)


def is_replay(hook: object) -> bool:
    """Return whether a hook extends a replay buffer and samples from it."""
    return isinstance(hook, ReplayBufferTrainer | OfflineToOnlineReplayBufferHook)


def _exploration(trainer: Trainer) -> Iterator[tuple[str, torch.nn.Module]]:
    for name in ("greedy_module", "exploration_module"):
        part = getattr(trainer, name, None)
        if isinstance(part, torch.nn.Module):
            yield name, part


def _state_of(part: Any) -> Tree:  # noqa: ANN401 -- a loss may be any callable
    return part.state_dict() if hasattr(part, "state_dict") else None


def _load(part: Any, state: Tree) -> None:  # noqa: ANN401
    if state is not None:
        part.load_state_dict(state)


def _make_value_estimators(loss: Any, state: Tree) -> None:  # noqa: ANN401
    """Create the value estimators that losses create on first use, if the state contains them.

    A loss may contain other losses.
    """
    for path, part in loss.named_modules() if isinstance(loss, torch.nn.Module) else ():
        start = f"{path}._value_estimator.".removeprefix(".")
        estimator = getattr(part, "_value_estimator", part)
        if estimator is None and any(name.startswith(start) for name in state):
            _ = part.value_estimator


def _take_collector(collector: BaseCollector) -> Tree:
    """Copy the state of a local collector; one with workers restarts them."""
    policy = getattr(collector, "_policy_w_state_dict", None)
    state: dict[str, Any] = {"frames": int(getattr(collector, "_frames", 0))}
    if policy is not None:
        state["policy"] = policy.state_dict()
    if isinstance(getattr(collector, "env", None), EnvBase):
        state["environment"] = take_environment(collector.env)
    if hasattr(collector, "_traj_pool_val") and getattr(collector, "track_traj_ids", False):
        state["trajectories"] = collector._traj_pool.state_dict()
    return state


def _load_collector(collector: BaseCollector, state: Tree) -> None:
    if hasattr(collector, "_frames"):
        collector._frames = state["frames"]
    if "policy" in state:
        collector._policy_w_state_dict.load_state_dict(state["policy"])
    if "environment" in state:
        load_environment(collector.env, state["environment"])
    if "trajectories" in state:
        collector._traj_pool.load_state_dict(state["trajectories"])


def take_environment(environment: EnvBase) -> Tree:
    """Copy the state of an environment's transforms, e.g. running means; not the simulator."""
    if isinstance(environment, TransformedEnv):
        return {
            "transform": environment.transform.state_dict(),
            "base": take_environment(environment.base_env),
        }
    if isinstance(environment, BatchedEnvBase):
        return {"workers": environment.state_dict()}
    return {}


def load_environment(environment: EnvBase, state: Tree) -> None:
    """Restore the result of :func:`take_environment`."""
    if isinstance(environment, TransformedEnv):
        environment.transform.load_state_dict(state["transform"])
        load_environment(environment.base_env, state["base"])
    elif isinstance(environment, BatchedEnvBase):
        environment.load_state_dict(state["workers"])
        if isinstance(environment, ParallelEnv):
            _finish_loading(environment)


def _finish_loading(environment: ParallelEnv) -> None:
    """Wait until all workers have loaded their states, and clear their signals.

    TorchRL 0.14.1 leaves the flags of ``load_state_dict`` set, so that each later step returns
    before the workers have computed it; and it stops waiting after ten seconds.
    """
    environment.state_dict()  # workers execute commands in order
    for worker, event in enumerate(environment._events):
        environment._shm_done_flags[worker] = 0
        event.clear()


def _check_names(saved: Any, expected: Any, what: str) -> None:  # noqa: ANN401 -- mappings
    if set(saved) != set(expected):
        raise StateError(
            f"{what}: the state has {sorted(saved)}, expected {sorted(expected)}. The state belongs"
            " to a different trainer; build it as before, or train from scratch."
        )
