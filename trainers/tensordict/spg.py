"""Stackelberg policy gradient and related methods: leaders anticipate their followers' updates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import ParameterError, nearest
from ratchet.protocols.registry import build_protocol_handler
from ratchet.seeding import torch_generator
from trainers.named import register_trainer
from trainers.staged import STAGE
from trainers.tensordict.objectives.joint_estimator import JointAdvantageEstimator
from trainers.tensordict.objectives.ppo import ppo_options
from trainers.tensordict.objectives.spg import SpgObjective
from trainers.tensordict.optimization.replay import EpisodeBuffer
from trainers.tensordict.rl import TensorDictRlTrainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from tensordict import TensorDict

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.trainers import SpgParameters
    from trainers.tensordict.objectives.base import Objective
    from trainers.tensordict.objectives.value_estimators import MaskedGae
    from trainers.tensordict.optimization.replay import RolloutBuffer, Transform

Groups = tuple[tuple[str, ...], ...]
_CRITIC_PARTS = ("value", "solo")


@register_trainer("spg")
class SpgTrainer(TensorDictRlTrainer):
    """Opponent shaping in a Stackelberg sequence (``spg.variant``), on complete episodes."""

    def build_loss(
        self,
    ) -> tuple[Objective, MaskedGae | None]:
        """Create the objective, and the estimator of all agents' advantages in every step."""
        rl = self.hyper_params.rl
        trained: dict[str, list[torch.nn.Parameter]] = {}  # of policies, by agent
        for group in self.combined_agents.parameter_groups(rl):
            if group.lr_factor and not group.part.startswith(_CRITIC_PARTS):
                trained.setdefault(group.agent, []).extend(group.params)
        loss_module = SpgObjective(
            self.policy_operator,
            self.value_operator,
            parameters=self.hyper_params.spg,
            groups=_groups(self.hyper_params.spg, self.protocol_handler.stackelberg_sequence),
            actor_params=trained,
            **ppo_options(self.hyper_params.ppo, rl),
        )
        gae = JointAdvantageEstimator(gamma=rl.gamma, lmbda=rl.lmbda, keys=loss_module.tensor_keys)
        return loss_module, gae

    def _get_replay_buffer(self, transform: Transform | None = None) -> RolloutBuffer:
        """Create a buffer of complete episodes."""
        return EpisodeBuffer(self.hyper_params.rl.minibatch_size, transform)

    def _train_on_replay_buffer(self) -> TensorDict:
        """Pass this iteration's learning rates and generator to the objective, then train."""
        parts = self.components
        assert isinstance(parts.loss_module, SpgObjective)
        parts.loss_module.rates = {
            id(param): float(group["lr"])
            for group in parts.optimizer.param_groups
            for param in group["params"]
        }
        parts.loss_module.generator = torch_generator(
            self.hyper_params.seed, STAGE, self.iteration, "nystrom", device=self.device
        )
        return super()._train_on_replay_buffer()

    @classmethod
    def check_parameters(cls, hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
        """Refuse sequences that don't fit the protocol, and experiments without shaped agents."""
        super().check_parameters(hyper_params, base_dir)
        if hyper_params.ppo.loss_type != "clip":
            raise ParameterError(
                f"ppo.loss_type: got {hyper_params.ppo.loss_type!r}, but the trainer 'spg' has the"
                " plain policy gradient (spg, lola, sos) and the clipped one (pspg, pola, psos)"
                " only; expected 'clip'. Leave it out."
            )
        handler = build_protocol_handler(hyper_params, base_dir=base_dir)
        groups = _groups(hyper_params.spg, handler.stackelberg_sequence)
        _check_names(groups, handler.agent_names, hyper_params.interaction_protocol)
        _check_separate_networks(handler.agent_names, hyper_params)
        _check_shaping(groups, hyper_params)


def _groups(spg: SpgParameters, default: Sequence[Sequence[str]]) -> Groups:
    return tuple(tuple(group) for group in spg.stackelberg_sequence or default)


def _check_names(groups: Groups, agent_names: Sequence[str], protocol: str) -> None:
    """Refuse a sequence with missing or unknown agents."""
    sequence = [name for group in groups for name in group]
    for name in sequence:
        if name not in agent_names:
            raise ParameterError(
                f"spg.stackelberg_sequence: got {name!r}, expected the agents of the protocol"
                f" {protocol!r}: {', '.join(agent_names)}.{nearest(name, agent_names)}"
            )
    missing = [name for name in agent_names if name not in sequence]
    if missing:
        raise ParameterError(
            f"spg.stackelberg_sequence: {', '.join(missing)} missing, expected every agent of the"
            f" protocol {protocol!r} in one of the groups. Those in one group don't shape each"
            " other."
        )


def _check_separate_networks(agent_names: Sequence[str], hyper_params: HyperParameters) -> None:
    """Refuse agents that share a network: one that shapes the other would shape itself."""
    for name in agent_names:
        group = getattr(hyper_params.agents[name], "shared_model_group", None)
        if group is not None:
            raise ParameterError(
                f"agents.{name}.shared_model_group: got {group!r} with the trainer 'spg', in which"
                " agents shape each other's networks, expected separate networks. Leave it out, or"
                " choose vanilla_ppo."
            )


def _check_shaping(groups: Groups, hyper_params: HyperParameters) -> None:
    """Refuse experiments in which no leader ever learns at the same time as a follower."""
    agents = hyper_params.agents

    def learns(name: str, iteration: int) -> bool:
        agent = agents[name]
        is_fixed = (
            agent.is_random or agent.use_manual_architecture or not agent.agent_lr_factor.actor
        )
        return not is_fixed and agent.update_schedule.is_on(iteration, name)

    for iteration in range(max(1, hyper_params.rl.num_iterations)):
        learning = [any(learns(name, iteration) for name in group) for group in groups]
        if sum(learning) > 1:
            return
    raise ParameterError(
        f"trainer: got 'spg' for the protocol {hyper_params.interaction_protocol!r} with the"
        f" Stackelberg sequence {[list(group) for group in groups]}, in which no agent ever learns"
        " at the same time as a later one, so that no agent is shaped. Choose vanilla_ppo,"
        " or change spg.stackelberg_sequence, is_random, use_manual_architecture, agent_lr_factor"
        " or update_schedule."
    )
