"""Registry of environments outside libraries: dynamics on tensors, and custom classes.

Names are listed without importing torch.
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
"""Id → its time limit in steps, if it differs from the class's."""

_Dynamics = TypeVar("_Dynamics", bound="type[Dynamics]")


def register_dynamics(
    name: str, *, max_episode_steps: int | None = None
) -> Callable[[_Dynamics], _Dynamics]:
    """Register dynamics under an id, for ``dataset`` in experiments.

    Under the id of a gymnasium environment, they replace its simulator. ``max_episode_steps`` is
    the time limit under that id (default: the class's). Raises ParameterError if another class has
    the name.
    """

    def decorate(dynamics: _Dynamics) -> _Dynamics:
        ENVIRONMENTS.register(name)(dynamics)
        if max_episode_steps is not None:
            TIME_LIMITS[name] = max_episode_steps
        return dynamics

    return decorate
