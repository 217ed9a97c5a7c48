"""Objectives: base class of the loss modules of tensor trainers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from ratchet.errors import ParameterError, nearest
from trainers.tensordict.objectives.value_estimators import (
    DEFAULT_KEYS,
    Key,
    MaskedGae,
    acting_mask,
    make_value_estimator,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from ratchet.agents.actor_critic import ActorCritic


class Evaluation(NamedTuple):
    """Current scores of frames, ``[B, A]`` each; 0 where an agent does not act."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


class Objective(nn.Module, ABC):
    """A loss to be minimised. Subclasses implement :meth:`forward`.

    ``actor`` is ``trainer.policy_operator``; ``critic`` ``trainer.value_operator``, if the loss
    needs values.
    """

    can_be_compiled: ClassVar[bool] = True
    can_be_captured: ClassVar[bool] = False
    """Whether a CUDA graph can repeat losses of frames as stored; not inherited."""

    def __init__(self, actor: nn.Module, critic: nn.Module | None = None) -> None:
        super().__init__()
        self.actor_network = actor
        self.critic_network = critic
        self.tensor_keys: dict[str, Key] = dict(DEFAULT_KEYS)
        self.learning_agents: tuple[str, ...] | None = None
        self._value_estimator: MaskedGae | None = None
        self._compiled: Callable[[TensorDictBase], TensorDict] | None = None

    @property
    def in_keys(self) -> tuple[Key, ...] | None:
        """Keys that the loss reads from minibatches, so that only these are gathered; None: all."""
        return None

    @abstractmethod
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the losses of a minibatch ``[B]``.

        Scalars with the prefix ``loss_`` are summed and minimised; the others are metrics: scalars
        or ``[A]``, detached.
        """

    def compute_gradients(
        self, tensordict: TensorDictBase, forward_context: AbstractContextManager[object]
    ) -> Mapping[str, Tensor]:
        """Set the parameters' gradients of the summed losses of a minibatch ``[B]``.

        The parameters must have no gradients before. None are set if no learning agent acts in the
        minibatch. ``forward_context`` wraps the losses, but not the backward pass. Returns the
        result of :meth:`forward`, detached.
        """
        with forward_context:
            losses = self(tensordict) if self._compiled is None else self._compiled(tensordict)
        total = total_loss(losses)
        if total.requires_grad:
            total.backward()  # type: ignore[no-untyped-call] # of torch
        return {str(name): value.detach() for name, value in losses.items()}

    def compile_losses(self) -> None:
        """Compile the computation of losses in :meth:`compute_gradients` with ``torch.compile``.

        One version is compiled for each minibatch size, so that results do not depend on earlier
        calls. Raises ParameterError if sizes depend on the acting agents, or the losses compute
        gradients themselves.
        """
        if not (self.combined_agents.has_fixed_shapes and self.can_be_compiled):
            raise ParameterError(
                "rl.compile_losses: got true, expected false, since "
                + (
                    "agents are computed only where they act: sizes differ with every minibatch."
                    if self.can_be_compiled
                    else f"{type(self).__name__} computes gradients within its losses."
                )
            )
        self._compiled = torch.compile(self.forward, dynamic=False)

    @property
    def is_compiled(self) -> bool:
        """Whether :meth:`compile_losses` was called."""
        return self._compiled is not None

    def set_keys(self, **keys: Key) -> None:
        """Set keys of the tensordicts, e.g. ``value=("agents", "value")``.

        Raises ParameterError for unknown names.
        """
        for name, key in keys.items():
            if name not in self.tensor_keys:
                hint = nearest(name, self.tensor_keys)
                raise ParameterError(f"set_keys: unknown {name!r} (value {key!r}).{hint}")
            self.tensor_keys[name] = key
        if self._value_estimator is not None:
            self._value_estimator.keys = self.tensor_keys

    def make_value_estimator(
        self,
        value_type: object = "GAE",
        **hyper_params: Any,  # noqa: ANN401 -- each type has its own
    ) -> None:
        """Create :attr:`value_estimator`.

        Types and ``hyper_params`` are those of
        :func:`trainers.tensordict.objectives.value_estimators.make_value_estimator`.
        """
        self._value_estimator = make_value_estimator(value_type, self.tensor_keys, **hyper_params)

    @property
    def value_estimator(self) -> MaskedGae | None:
        """The advantage estimator, None before :meth:`make_value_estimator`."""
        return self._value_estimator

    @property
    def combined_agents(self) -> ActorCritic:
        """All agents as one actor."""
        agents: ActorCritic = self.actor_network.combined_agents  # type: ignore[assignment]
        return agents

    def evaluate(self, tensordict: TensorDictBase, *, as_stored: bool = False) -> Evaluation:
        """Evaluate the actions in frames ``[B]`` with gradients, policy and value in one pass.

        Agents that do not learn in this iteration are left out. ``as_stored``: whether frames are
        unchanged from the replay buffer, so that the agents' caches for them are valid; requires
        :data:`INDEX` in :attr:`in_keys`.
        """
        agents, names = self.combined_agents, self.learning_agents
        score = agents.score_remembered if as_stored else agents.score
        return Evaluation(*score(tensordict, agents=names))

    def learning_mask(self, tensordict: TensorDictBase) -> Tensor:
        """Return the frames that are learned from, by agent: bool ``[B, A]``.

        Those that the estimator marked, or otherwise those in which an agent acts; none for agents
        that do not learn in this iteration.
        """
        mask: Tensor | None = tensordict.get(self.tensor_keys["learns"], None)
        if mask is None:
            mask = acting_mask(tensordict)
        if self.learning_agents is None:
            return mask
        learning = [name in self.learning_agents for name in self.combined_agents.agent_names]
        columns = (mask[..., i] & learns for i, learns in enumerate(learning))
        return mask if all(learning) else torch.stack(list(columns), -1)

    def select_agents(self, names: Sequence[str] | None) -> None:
        """Set the agents that learn in the coming iteration; all if None."""
        self.learning_agents = None if names is None else tuple(names)

    def end_iteration(self, mean_losses: TensorDictBase) -> None:
        """Adapt the loss's controllers to the averaged results of :meth:`forward`.

        Called once after each iteration. Buffers that change here are part of the state.
        """


def total_loss(losses: TensorDictBase) -> Tensor:
    """Return the sum of all losses (prefix ``loss_``); ParameterError without losses."""
    parts = [value for name, value in losses.items() if str(name).startswith("loss_")]
    if not parts:
        raise ParameterError(
            f"the objective returned {sorted(map(str, losses.keys()))}, expected a name with"
            " the prefix 'loss_'."
        )
    first, *others = (part.sum() if part.dim() else part for part in parts)
    total: Tensor = sum(others, first)
    return total
