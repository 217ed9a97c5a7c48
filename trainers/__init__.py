"""Trainers by family, and the algorithms they use.

Names are imported on first use, so that ``import trainers`` is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.errors import CheckPointNotFoundError as CheckPointNotFoundError
    from trainers.base import Trainer as Trainer
    from trainers.callbacks.base import Callback as Callback
    from trainers.callbacks.base import CallbackState as CallbackState
    from trainers.callbacks.base import Moment as Moment
    from trainers.callbacks.registry import register_callback as register_callback
    from trainers.language.base import BaseTrainer as BaseTrainer
    from trainers.language.remote_api import RemoteApiTrainer as RemoteApiTrainer
    from trainers.language.self_hosted import SelfHostedTrainer as SelfHostedTrainer
    from trainers.named import TrainerTraits as TrainerTraits
    from trainers.named import register_trainer as register_trainer
    from trainers.progress import IterationContext as IterationContext
    from trainers.progress import attach_progress_bar as attach_progress_bar
    from trainers.tensordict.base import TensorDictTrainer as TensorDictTrainer
    from trainers.tensordict.objectives.base import Objective as Objective
    from trainers.tensordict.rl import TensorDictRlTrainer as TensorDictRlTrainer
    from trainers.text.base import PureTextRlTrainer as PureTextRlTrainer
    from trainers.torchrl.trainer import TorchRlTrainer as TorchRlTrainer

export_lazily(__name__)

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
