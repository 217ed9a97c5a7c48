"""All agents of an environment as one actor and critic; see :class:`ratchet.agents.ActorCritic`.

Each agent computes an action in every frame; its losses count the frames in which it acts. Shape
letters: B frames, A agents, D values of the widest observation, K values of the widest action.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from ratchet.agents.actor_critic import ActorCritic, Key, Normalizer
from ratchet.agents.lr_groups import ParameterGroup, parameter_groups
from ratchet.errors import UnknownNameError, nearest
from ratchet.scenarios.gymnasium.bodies import NetworkInputs, RecurrentState, agent_input_specs
from ratchet.scenarios.gymnasium.networks import ControlAgent, num_outputs
from ratchet.scenarios.gymnasium.spaces import AgentSpaces, DiscreteActions

if TYPE_CHECKING:
    from ratchet.parameters.trainers import RlParameters

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)

OBSERVATION = ("agents", "observation")
_ACTION = ("agents", "action")
_DONE = ("agents", "done")
_LEGAL = ("agents", "legal")
_ILLEGAL = -1e9
"""Logit of an illegal action; finite, so that entropies and gradients are."""
_MEMORY = ("agents", "memory")
"""Agents' recurrent states before a frame, f32 [*B, A, M]; zero for agents without one."""
_NEXT_MEMORY = "next_memory"
_ROUND = "round"
_DEFER = object()
_MOST_FRAMES = 2**14
"""That are scored in one pass; more would only need more memory."""


class ActionDistribution(ABC):
    """Distribution over an agent's actions in B frames."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Sample actions [B, K], without gradients."""

    @abstractmethod
    def mode(self) -> Tensor:
        """Return the most likely actions [B, K]."""

    @abstractmethod
    def log_prob_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (densities) of actions [B, K], and entropies: [B, 1] each."""


class DiscreteActionDistribution(ActionDistribution):
    """Independent choices, concatenated in the logits f32 [B, Σ sizes]."""

    def __init__(self, logits: Tensor, sizes: tuple[int, ...]) -> None:
        self.logits = logits
        self.sizes = sizes

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Sample by the exponential race."""
        drawn = [
            (factor - torch.empty_like(factor).exponential_(generator=generator).log_()).argmax(
                -1, keepdim=True
            )
            for factor in divide(self.logits, self.sizes)
        ]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn, -1)

    def mode(self) -> Tensor:
        """Return the most likely actions."""
        return torch.stack([f.argmax(-1) for f in divide(self.logits, self.sizes)], -1)

    def log_prob_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return sums over choices."""
        return categorical_scores(self.logits, actions, self.sizes)


class ContinuousActionDistribution(ActionDistribution):
    """Independent normal numbers, which the environment clamps to the bounds.

    Means are f32 [B, K], log deviations f32 [K].
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean = mean
        self.log_std = log_std

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw."""
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return torch.addcmul(self.mean, noise, self.log_std.exp())

    def mode(self) -> Tensor:
        """Return the means."""
        return self.mean

    def log_prob_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return sums over numbers; entropies do not depend on the frame."""
        deviation = (actions - self.mean) * (-self.log_std).exp()
        spread = self.log_std.sum() + _HALF_LOG_TWO_PI * self.log_std.numel()
        log_prob = -0.5 * deviation.square().sum(-1, keepdim=True) - spread
        entropy = spread + 0.5 * self.log_std.numel()
        return log_prob, entropy.expand(log_prob.shape)


def distribution_of(
    agent: ControlAgent, outputs: Tensor, legal: Tensor | None = None
) -> ActionDistribution:
    """Return the distribution that a policy's outputs [B, num_outputs] stand for.

    Actions that are not ``legal``, bool [B, N], are impossible, unless none is.
    """
    if legal is not None:
        outputs = outputs.masked_fill(~legal & legal.any(-1, keepdim=True), _ILLEGAL)
    if isinstance(agent.space.actions, DiscreteActions):
        return DiscreteActionDistribution(outputs, agent.space.actions.sizes)
    head = agent.policy_head
    if head is None:
        return ContinuousActionDistribution(
            outputs, torch.zeros(outputs.shape[-1], device=outputs.device)
        )
    return ContinuousActionDistribution(outputs, cast(Tensor, head.log_std))


def categorical_scores(
    logits: Tensor, actions: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of choices and their entropies (nats), summed: f32 [B, 1] each.

    Logits are f32 [B, Σ sizes], actions i64 [B, K]; a size is a choice's number of outcomes.
    """
    chosen, entropies = [], []
    for index, factor in enumerate(divide(logits, sizes)):
        log_probs = torch.log_softmax(factor, -1)
        chosen.append(log_probs.gather(-1, actions[:, index : index + 1]))
        entropies.append(-(log_probs.exp() * log_probs).sum(-1, keepdim=True))
    return total(chosen), total(entropies)


def divide(logits: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Return the logits of each choice."""
    return (logits,) if len(sizes) == 1 else torch.split(logits, list(sizes), dim=-1)


def total(columns: Sequence[Tensor]) -> Tensor:
    """Sum [B, 1] each over choices: [B, 1]."""
    return columns[0] if len(columns) == 1 else torch.cat(list(columns), -1).sum(-1, keepdim=True)


class FeatureNormalizer(Normalizer):
    """A mean and a deviation for each number of each agent's observations: ``shape`` (A, D).

    Agents of the same group in ``alike``, indices of agents, share them; images, of the agents with
    indices ``images``, are not normalised.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        device: str | torch.device = "cpu",
        *,
        alike: Sequence[Sequence[int]] = (),
        images: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.alike, self.images = alike, list(images)
        self.keys: tuple[Key, ...] = () if len(self.images) == shape[0] else (OBSERVATION,)
        self.register_buffer("observation_mean", torch.zeros(shape, device=device))
        self.register_buffer("observation_std", torch.ones(shape, device=device))

    def fit(self, frames: TensorDictBase) -> None:
        """Fit mean and (population) deviation; a number that never changes is only shifted."""
        values = frames.get(OBSERVATION).flatten(0, -3).double()
        mean, std = values.mean(0), values.std(0, correction=0)
        for indices in (list(group) for group in self.alike if len(group) > 1):
            together = values[:, indices].flatten(0, 1)
            mean[indices], std[indices] = together.mean(0), together.std(0, correction=0)
        mean[self.images], std[self.images] = 0.0, 1.0
        self.get_buffer("observation_mean").copy_(mean)
        self.get_buffer("observation_std").copy_(torch.where(std > 0, std, 1.0))

    def forward(self, observation: Tensor) -> Tensor:
        """Normalise [*B, A, D]."""
        mean = self.get_buffer("observation_mean")
        return (observation - mean) / self.get_buffer("observation_std")


class ControlActorCritic(ActorCritic):
    """Module that runs all agents together; every name of the spaces must be among them."""

    def __init__(
        self,
        agents: Mapping[str, ControlAgent],
        spaces: AgentSpaces,
        *,
        normalizes: bool,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__()
        for name in spaces.names:
            if name not in agents:
                raise UnknownNameError(f"no agent {name!r} was built.{nearest(name, agents)}")
        self.spaces = spaces
        self.agent_names = spaces.names
        self.agents = {name: agents[name] for name in self.agent_names}
        self.parts = nn.ModuleDict(
            {name: nn.ModuleDict(dict(agent.parts())) for name, agent in self.agents.items()}
        )
        self.input_specs = agent_input_specs(
            spaces, {n: a.parameters for n, a in self.agents.items()}
        )
        alike: dict[str, list[int]] = {}
        for index, agent in enumerate(self.agents.values()):
            if (group := agent.parameters.shared_model_group) is not None:
                alike.setdefault(group, []).append(index)
        shape = (len(agents), spaces.observation_width)
        images = [index for index, agent in enumerate(self.agents.values()) if agent.sees_images]
        self.normalizer = FeatureNormalizer(
            shape, device, alike=list(alike.values()), images=images
        )
        self.normalizes = normalizes and bool(self.normalizer.keys)

        self.memory_size = max(agent.memory_size for agent in self.agents.values())
        self.is_recurrent = self.memory_size > 0

    has_fixed_shapes = True

    @property
    def observation_keys(self) -> tuple[Key, ...]:
        """Observations, who has left, legal actions; what is remembered, and when it is not."""
        keys = (OBSERVATION, _DONE, _LEGAL)
        return (*keys, _MEMORY, _ROUND) if self.is_recurrent else keys

    @property
    def action_keys(self) -> tuple[Key, ...]:
        """One tensor."""
        return (_ACTION,)

    @torch.no_grad()
    def act(
        self,
        td: TensorDictBase,
        *,
        generators: Mapping[str, torch.Generator] | None = None,
        deterministic: bool = False,
        cache: Any = None,  # noqa: ANN401 -- whether scores are put off
    ) -> TensorDictBase:
        """Choose actions for one step of a rollout; see :class:`ActorCritic`."""
        if self.is_recurrent and td.get(_MEMORY, None) is None:
            nothing = td.get(OBSERVATION).new_zeros(
                (*td.batch_size, len(self.agents), self.memory_size), dtype=torch.float32
            )
            td.set(_MEMORY, nothing)
        inputs = self._inputs(td)
        if cache is _DEFER:
            chosen = []
            for name, x in inputs.items():
                agent = self.agents[name]
                distribution = distribution_of(agent, agent.policy(x.policy), x.legal)
                chosen.append(_choose(distribution, name, generators, deterministic))
            td.get("agents").set("action", self._pack(chosen))
            return td
        actions, log_probs, values, memories = [], [], [], []
        for name, x in inputs.items():
            if x.past is None:
                outputs, value = self.agents[name].policy_and_value(x)
            else:
                outputs, value, memory = self.agents[name].remember(x, x.past)
                memories.append(memory)
            distribution = distribution_of(self.agents[name], outputs, x.legal)
            actions.append(_choose(distribution, name, generators, deterministic))
            log_probs.append(distribution.log_prob_and_entropy(actions[-1])[0])
            values.append(value)
        agents = td.get("agents")
        agents.set("action", self._pack(actions))
        agents.set("log_prob", _side_by_side(log_probs))
        agents.set("value", _side_by_side(values))
        if self.is_recurrent:
            agents.set(_NEXT_MEMORY, torch.stack(memories, 1))
        return td

    def hand_on(self, td: TensorDictBase, following: TensorDictBase) -> None:
        """Move what is remembered; see :class:`ActorCritic`."""
        if self.is_recurrent:
            following.set(_MEMORY, td.get("agents").pop(_NEXT_MEMORY))

    def new_deferring_cache(self) -> object:
        """Defer scores: a complete rollout takes a single pass instead of one per step."""
        return None if self.is_recurrent else _DEFER

    @torch.no_grad()
    def complete(self, rollouts: TensorDictBase, cache: Any) -> None:  # noqa: ANN401
        """Score all frames of rollouts [E, T] together; see :class:`ActorCritic`."""
        if cache is not _DEFER:
            return
        frames = rollouts.select(*self.frame_keys, strict=False).reshape(-1)
        scores = [self.score(some) for some in frames.split(_MOST_FRAMES)]
        log_prob, _, value = (torch.cat(column) for column in zip(*scores, strict=True))
        size = rollouts.batch_size
        agents = rollouts.get("agents")
        agents.set("log_prob", log_prob.view(*size, -1))
        agents.set("value", value.view(*size, -1))

    def evaluate(
        self, td: TensorDictBase, *, agents: Sequence[str] | None = None
    ) -> TensorDictBase:
        """Evaluate the actions in frames; see :class:`ActorCritic`."""
        columns = self.score(td, agents=agents)
        evaluations = dict(zip(("log_prob", "entropy", "value"), columns, strict=True))
        size = columns[0].shape[:1]
        return TensorDict({"agents": TensorDict(evaluations, batch_size=size)}, batch_size=size)

    def score(
        self, td: TensorDictBase, *, agents: Sequence[str] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Evaluate the actions in frames; see :class:`ActorCritic`."""
        actions = td.get(_ACTION).flatten(0, -3)  # [B, A, K]
        rows: list[tuple[Tensor, Tensor, Tensor]] = []
        for name, x in self._inputs(td).items():
            if agents is not None and name not in agents:
                zero = x.policy.new_zeros(len(x.policy), 1)
                rows.append((zero, zero, zero))
                continue
            outputs, value = self.agents[name].policy_and_value(x)
            distribution = distribution_of(self.agents[name], outputs, x.legal)
            index, space = self.agent_names.index(name), self.spaces.by_name[name].actions
            chosen = actions[:, index, : space.num_factors]
            dtype = torch.int64 if isinstance(space, DiscreteActions) else torch.float32
            chosen = chosen if chosen.dtype == dtype else chosen.to(dtype)
            scores = distribution.log_prob_and_entropy(chosen)
            rows.append((*scores, value))
        log_prob, entropy, value = (_side_by_side(column) for column in zip(*rows, strict=True))
        return log_prob, entropy, value

    def values(
        self,
        td: TensorDictBase,
        acting: Tensor | None = None,
        *,
        generators: Mapping[str, torch.Generator] | None = None,
    ) -> Tensor:
        """Estimate returns only; see :class:`ActorCritic`."""
        columns = [self.agents[name].value(x) for name, x in self._inputs(td).items()]
        values = _side_by_side(columns)
        return values if acting is None else torch.where(acting, values, 0.0)

    def get_dist(self, td: TensorDictBase) -> dict[str, ActionDistribution]:
        """Return each agent's distribution over its actions in frames [B], with gradients."""
        return {
            name: distribution_of(
                self.agents[name], self.agents[name].policy_and_value(x)[0], x.legal
            )
            for name, x in self._inputs(td).items()
        }

    def parameter_groups(
        self, rl: RlParameters, *, solo: bool = False, solo_body_factor: bool = True
    ) -> list[ParameterGroup]:
        """Divide all agents' parameters by learning rate; see :mod:`ratchet.agents.lr_groups`."""
        return parameter_groups(
            rl, self.agents.values(), solo=solo, solo_body_factor=solo_body_factor
        )

    def _inputs(self, td: TensorDictBase) -> dict[str, NetworkInputs]:
        """Return the normalised inputs of each agent's networks; for rows of steps [e·T]."""
        observation = td.get(OBSERVATION).flatten(0, -3)
        observation = self.normalizer(observation) if self.normalizes else observation.float()
        inputs = {name: specs.show(observation) for name, specs in self.input_specs.items()}
        legal = td.get(_LEGAL, None)
        if legal is not None:
            inputs = {
                name: x._replace(legal=actions[:, : num_outputs(self.spaces.by_name[name])])
                for (name, x), actions in zip(
                    inputs.items(), legal.flatten(0, -3).unbind(1), strict=True
                )
            }
        if not self.is_recurrent:
            return inputs
        memories, begins = td.get(_MEMORY).unbind(-2), td.get(_ROUND) == 0
        return {
            name: x._replace(past=RecurrentState(memory, begins))
            for (name, x), memory in zip(inputs.items(), memories, strict=True)
        }

    def _pack(self, actions: list[Tensor]) -> Tensor:
        """Arrange the agents' actions as [B, A, K]."""
        if len(actions) == 1:
            return actions[0].unsqueeze(1)
        width, all_discrete = self.spaces.action_width, self.spaces.all_discrete
        packed = [
            nn.functional.pad(a if all_discrete else a.float(), (0, width - a.shape[-1]))
            for a in actions
        ]
        return torch.stack(packed, 1)


def _choose(
    distribution: ActionDistribution,
    name: str,
    generators: Mapping[str, torch.Generator] | None,
    deterministic: bool,
) -> Tensor:
    """Return an agent's actions [B, K]."""
    if deterministic:
        return distribution.mode()
    return distribution.sample(None if generators is None else generators[name])


def _side_by_side(columns: Sequence[Tensor]) -> Tensor:
    """Arrange columns [B, 1] as [B, A]."""
    return columns[0] if len(columns) == 1 else torch.cat(list(columns), -1)
