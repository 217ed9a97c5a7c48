"""Advantage estimators as modules that add advantages to a TensorDict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from ratchet.algorithms.advantages import gae
from ratchet.errors import ParameterError, nearest

Key = str | tuple[str, ...]

DEFAULT_KEYS: dict[str, Key] = {
    "reward": ("agents", "reward"),
    "value": ("agents", "value"),
    "advantage": ("agents", "advantage"),
    "value_target": ("agents", "value_target"),
    "learns": ("agents", "learns"),
    "sample_log_prob": ("agents", "log_prob"),
    "action": ("agents", "decision"),
    "done": ("agents", "done"),
    "terminated": ("agents", "terminated"),
}


def episode_ends(rollouts: TensorDictBase, num_agents: int) -> Tensor:
    """Return where an agent's episode ends with the step: bool ``[*B, A]``.

    It ends with the shared episode, for any reason, or earlier if the agent is done.
    """
    ends: Tensor = rollouts.get(("next", "done")) | rollouts.get(("next", "terminated"))
    ends = ends.unsqueeze(-1).expand(*ends.shape, num_agents)
    agent_done = rollouts.get(("next", "agents", "done"), None)
    return ends if agent_done is None else torch.logical_or(ends, agent_done)


def acting_mask(rollouts: TensorDictBase) -> Tensor:
    """Return which agents act and are not done yet: bool ``[*B, A]``.

    All agents act if frames contain no mask; A is then that of the observations.
    """
    active = rollouts.get(("agents", "active"), None)
    done = rollouts.get(("agents", "done"), None)
    if active is None:
        if done is not None:
            return torch.logical_not(done)
        some = rollouts.get(("agents", "observation"))
        return torch.ones(some.shape[:-1], dtype=torch.bool, device=some.device)
    acting: Tensor = active.any(-1)
    return acting if done is None else acting & ~done


class MaskedGae(nn.Module):
    """Adds advantages, value targets and the mask of learning frames to rollouts ``[E, T]``.

    ``gamma`` discounts rewards, ``lmbda`` temporal differences; ``keys`` are the keys of inputs
    and outputs: see ``DEFAULT_KEYS``.
    """

    def __init__(self, *, gamma: float, lmbda: float, keys: dict[str, Key] | None = None) -> None:
        super().__init__()
        self.gamma = float(gamma)
        self.lmbda = float(lmbda)
        self.keys = dict(DEFAULT_KEYS) if keys is None else keys

    @torch.no_grad()
    def forward(self, rollouts: TensorDictBase, **unused: object) -> TensorDictBase:
        """Add ``advantage``, ``value_target``, ``learns`` and the backed-up ``value`` to rollouts.

        They are ``[E, T]``, with the reward under ``next``. Where the batch or a time limit
        (``("next", "agents", "truncated")``) truncates an episode, the value of the remainder is
        ``("next", "agents", "value")`` if ``("next", "agents", "value_known")``. TorchRL's
        ``params`` and ``target_params`` are ignored.
        """
        value = rollouts.get(self.keys["value"])
        ends = episode_ends(rollouts, value.shape[-1])
        truncated = rollouts.get(("next", "agents", "truncated"), None)
        estimate = gae(
            rollouts.get(_next(self.keys["reward"])),
            value,
            acting_mask(rollouts),
            ends,
            gamma=self.gamma,
            lmbda=self.lmbda,
            terminated=None if truncated is None else ends & ~truncated,
            final_value=rollouts.get(("next", "agents", "value"), None),
            final_known=rollouts.get(("next", "agents", "value_known"), None),
        )
        rollouts.set(self.keys["advantage"], estimate.advantage)
        rollouts.set(self.keys["value"], estimate.value)
        rollouts.set(self.keys["value_target"], estimate.value_target)
        rollouts.set(self.keys["learns"], estimate.learns)
        return rollouts


def _next(key: Key) -> Key:
    return ("next", *((key,) if isinstance(key, str) else key))


_Maker = Callable[..., MaskedGae]
_MAKERS: dict[str, _Maker] = {
    "GAE": lambda *, gamma, lmbda=0.95, keys: MaskedGae(gamma=gamma, lmbda=lmbda, keys=keys),
    "TD0": lambda *, gamma, keys: MaskedGae(gamma=gamma, lmbda=0.0, keys=keys),
    "TD1": lambda *, gamma, keys: MaskedGae(gamma=gamma, lmbda=1.0, keys=keys),
}
_MAKERS["MAGAE"] = _MAKERS["TDLambda"] = _MAKERS["GAE"]


def make_value_estimator(
    value_type: object,
    keys: dict[str, Key],
    **hyper_params: Any,  # noqa: ANN401 -- each type has its own
) -> MaskedGae:
    """Create an estimator.

    Types are members of ``torchrl.objectives.ValueEstimators``, or their names: GAE, MAGAE (same
    as GAE), TDLambda, TD0, TD1. ``hyper_params`` are ``gamma``, and ``lmbda`` where applicable.
    Raises ParameterError if the type is not supported, or takes no such hyper-parameter.
    """
    name = getattr(value_type, "name", value_type)
    by_name = {known.lower(): maker for known, maker in _MAKERS.items()}
    if not isinstance(name, str) or name.lower() not in by_name:
        hint = nearest(str(name), _MAKERS)
        raise ParameterError(f"make_value_estimator: {name!r} is not supported here.{hint}")
    try:
        return by_name[name.lower()](keys=keys, **hyper_params)
    except TypeError as error:
        raise ParameterError(
            f"make_value_estimator: {name} got {sorted(hyper_params)}, expected gamma, and lmbda"
            f" for GAE and TDLambda ({error})."
        ) from error
