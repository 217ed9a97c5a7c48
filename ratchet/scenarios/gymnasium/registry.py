"""The registry of environments that are no library's: dynamics on tensors, classes of users'.

Light: names are listed without torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ratchet.registry import Registry

if TYPE_CHECKING:
    from ratchet.scenarios.gymnasium.dynamics import Dynamics

ENVIRONMENTS: Registry[object] = Registry(
    "environment", home="ratchet.scenarios.gymnasium", parameter="dataset"
)
"""Classes of ``Dynamics``, ``gymnasium.Env`` or ``pettingzoo.ParallelEnv``."""
TIME_LIMITS: dict[str, int] = {}
"""Id → after how many steps episodes are cut off under it, where its class says otherwise."""

_Dynamics = TypeVar("_Dynamics", bound="type[Dynamics]")


def register_dynamics(
    name: str, *, max_episode_steps: int | None = None
) -> Callable[[_Dynamics], _Dynamics]:
    """Give dynamics the id that experiments write as ``dataset``.

    With one of gymnasium's, they are played in its simulator's place. ``max_episode_steps`` is the
    time limit under that id; the class's own when not given.

    Raises
    ------
    ParameterError
        If another class has taken the name.
    """

    def decorate(dynamics: _Dynamics) -> _Dynamics:
        ENVIRONMENTS.register(name)(dynamics)
        if max_episode_steps is not None:
            TIME_LIMITS[name] = max_episode_steps
        return dynamics

    return decorate
