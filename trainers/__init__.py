"""How agents learn: trainers by family, and the algorithms they are made of.

Names are imported on first use, so that ``import trainers`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.errors import CheckPointNotFoundError
    from trainers.base import Trainer
    from trainers.callbacks.base import Callback, CallbackState, Moment
    from trainers.callbacks.registry import register_callback
    from trainers.language.base import BaseTrainer
    from trainers.language.remote_api import RemoteApiTrainer
    from trainers.language.self_hosted import SelfHostedTrainer
    from trainers.progress import IterationContext, attach_progress_bar
    from trainers.registry import register_trainer
    from trainers.tensordict.base import TensorDictTrainer
    from trainers.tensordict.objectives.base import Objective
    from trainers.tensordict.rl import TensorDictRlTrainer
    from trainers.text.base import PureTextRlTrainer
    from trainers.torchrl.trainer import TorchRlTrainer

__all__ = [
    "BaseTrainer",
    "Callback",
    "CallbackState",
    "CheckPointNotFoundError",
    "IterationContext",
    "Moment",
    "Objective",
    "PureTextRlTrainer",
    "RemoteApiTrainer",
    "SelfHostedTrainer",
    "TensorDictRlTrainer",
    "TensorDictTrainer",
    "TorchRlTrainer",
    "Trainer",
    "attach_progress_bar",
    "register_callback",
    "register_trainer",
]

_HOMES = {
    "BaseTrainer": "trainers.language.base",
    "Callback": "trainers.callbacks.base",
    "CallbackState": "trainers.callbacks.base",
    "CheckPointNotFoundError": "ratchet.errors",
    "IterationContext": "trainers.progress",
    "Moment": "trainers.callbacks.base",
    "Objective": "trainers.tensordict.objectives.base",
    "PureTextRlTrainer": "trainers.text.base",
    "RemoteApiTrainer": "trainers.language.remote_api",
    "SelfHostedTrainer": "trainers.language.self_hosted",
    "TensorDictRlTrainer": "trainers.tensordict.rl",
    "TensorDictTrainer": "trainers.tensordict.base",
    "TorchRlTrainer": "trainers.torchrl.trainer",
    "Trainer": "trainers.base",
    "attach_progress_bar": "trainers.progress",
    "register_callback": "trainers.callbacks.registry",
    "register_trainer": "trainers.registry",
}


__getattr__ = lazy_names(__name__, _HOMES)

BUILT_IN = {
    "pure_text_ei": "trainers.text.expert_iteration",
    "pure_text_grpo": "trainers.text.grpo",
    "pure_text_malt": "trainers.text.malt",
    "reinforce": "trainers.tensordict.reinforce",
    "cross_entropy": "trainers.language.cross_entropy",
    "grpo": "trainers.language.grpo",
    "language_dpo": "trainers.language.dpo",
    "language_ppo": "trainers.language.ppo",
    "on_policy_distillation": "trainers.language.distillation",
    "remote_grpo": "trainers.language.remote_grpo",
    "solo_agent": "trainers.tensordict.solo_agent",
    "spg": "trainers.tensordict.spg",
    "torchrl_a2c": "trainers.torchrl.algorithms",
    "torchrl_cql": "trainers.torchrl.algorithms",
    "torchrl_ddpg": "trainers.torchrl.algorithms",
    "torchrl_dqn": "trainers.torchrl.algorithms",
    "torchrl_iql": "trainers.torchrl.algorithms",
    "torchrl_offline_to_online": "trainers.torchrl.algorithms",
    "torchrl_ppo": "trainers.torchrl.algorithms",
    "torchrl_reinforce": "trainers.torchrl.algorithms",
    "torchrl_sac": "trainers.torchrl.algorithms",
    "torchrl_td3": "trainers.torchrl.algorithms",
    "vanilla_ppo": "trainers.tensordict.vanilla_ppo",
}
"""Name → the module that registers the trainer."""
