"""TorchRL specs of an environment's values, for those who want them. TorchRL is imported late."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torchrl.data import Composite

MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class EnvironmentSpecs:
    """Specs made from sizes: E episodes, A agents, R rounds, (C, P, S) of messages, L symbols."""

    batch_size: torch.Size
    num_agents: int
    max_rounds: int
    message_shape: tuple[int, int, int]
    num_linear_symbols: int | None
    num_datapoints: int
    device: torch.device

    @cached_property
    def observation(self) -> Composite:
        """Rounds, messages and whose turn it is."""
        channels, _, _ = self.message_shape
        observation = self._composite(
            round=self._categorical(self.max_rounds),
            seed=self._categorical(MAX_SEED),
            decision_restriction=self._categorical(3),
            x=self._counts(self.max_rounds, *self.message_shape),
            message=self._counts(*self.message_shape),
            agents=self._composite(
                active=self._binary(self.num_agents, channels),
                can_decide=self._binary(self.num_agents),
            ),
        )
        if self.num_linear_symbols is not None:
            observation["linear_message_history"] = self._counts(
                self.max_rounds, channels, self.num_linear_symbols
            )
        return observation

    @cached_property
    def action(self) -> Composite:
        """Messages and decisions of all agents."""
        channels, positions, symbols = self.message_shape
        agents = self._composite(
            message=self._categorical(symbols, self.num_agents, channels, positions),
            decision=self._categorical(3, self.num_agents),
        )
        if self.num_linear_symbols is not None:
            agents["linear_message"] = self._categorical(self.num_linear_symbols, self.num_agents)
        return self._composite(agents=agents)

    @cached_property
    def state(self) -> Composite:
        """The label and the datapoint's index."""
        return self._composite(
            y=self._categorical(2), datapoint_id=self._categorical(self.num_datapoints)
        )

    @cached_property
    def reward(self) -> Composite:
        """A reward for each agent."""
        from torchrl.data import Unbounded

        shape = (*self.batch_size, self.num_agents)
        return self._composite(agents=self._composite(reward=Unbounded(shape, device=self.device)))

    @cached_property
    def done(self) -> Composite:
        """Ends of the episode and of each agent's part in it."""
        return self._composite(
            done=self._binary(),
            terminated=self._binary(),
            agents=self._composite(
                done=self._binary(self.num_agents), terminated=self._binary(self.num_agents)
            ),
        )

    def _composite(self, **specs: Any) -> Composite:  # noqa: ANN401 -- any spec
        from torchrl.data import Composite

        return Composite(specs, shape=self.batch_size, device=self.device)

    def _categorical(self, n: int, *shape: int) -> Any:  # noqa: ANN401 -- untyped library
        from torchrl.data import Categorical

        return Categorical(n, (*self.batch_size, *shape), device=self.device, dtype=torch.int64)

    def _binary(self, *shape: int) -> Any:  # noqa: ANN401 -- untyped library
        from torchrl.data import Categorical

        return Categorical(2, (*self.batch_size, *shape), device=self.device, dtype=torch.bool)

    def _counts(self, *shape: int) -> Any:  # noqa: ANN401 -- untyped library
        """Return the spec of the number of agents that said a symbol."""
        from torchrl.data import Bounded

        return Bounded(
            0, self.num_agents, (*self.batch_size, *shape), device=self.device, dtype=torch.uint8
        )
