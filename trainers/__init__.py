"""How agents learn: trainers by family, and the algorithms they are made of.

Names are imported on first use, so that ``import trainers`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.errors import CheckPointNotFoundError
    from trainers.base import Trainer
    from trainers.progress import IterationContext, attach_progress_bar
    from trainers.registry import register_trainer
    from trainers.tensordict.base import TensorDictTrainer
    from trainers.tensordict.objectives.base import Objective
    from trainers.tensordict.rl import TensorDictRlTrainer
    from trainers.text.base import PureTextRlTrainer
    from trainers.torchrl.trainer import TorchRlTrainer

__all__ = [
    "CheckPointNotFoundError",
    "IterationContext",
    "Objective",
    "PureTextRlTrainer",
    "TensorDictRlTrainer",
    "TensorDictTrainer",
    "TorchRlTrainer",
    "Trainer",
    "attach_progress_bar",
    "register_trainer",
]

_HOMES = {
    "CheckPointNotFoundError": "ratchet.errors",
    "IterationContext": "trainers.progress",
    "Objective": "trainers.tensordict.objectives.base",
    "PureTextRlTrainer": "trainers.text.base",
    "TensorDictRlTrainer": "trainers.tensordict.rl",
    "TensorDictTrainer": "trainers.tensordict.base",
    "TorchRlTrainer": "trainers.torchrl.trainer",
    "Trainer": "trainers.base",
    "attach_progress_bar": "trainers.progress",
    "register_trainer": "trainers.registry",
}


__getattr__ = lazy_names(__name__, _HOMES)
