"""All agents of an environment as one actor and critic; see :class:`ratchet.agents.ActorCritic`.

Every agent acts in every frame until its part is over. B frames, A agents, D wide observations, K
wide actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from ratchet.agents.actor_critic import ActorCritic, Key
from ratchet.agents.lr_groups import ParameterGroup, parameter_groups
from ratchet.errors import UnknownNameError, nearest
from ratchet.scenarios.gymnasium.action_distributions import ActionDistribution, distribution_of
from ratchet.scenarios.gymnasium.networks import ControlAgent
from ratchet.scenarios.gymnasium.normalizer import OBSERVATION, FeatureNormalizer
from ratchet.scenarios.gymnasium.sight import Past, Seen, agent_sights
from ratchet.scenarios.gymnasium.spaces import AgentSpaces, DiscreteActions

if TYPE_CHECKING:
    from ratchet.parameters.trainers import RlParameters

_ACTION = ("agents", "action")
_DONE = ("agents", "done")
_MEMORY = ("agents", "memory")
"""What agents remember before a frame, f32 [*B, A, M]; none of agents that do not."""
_NEXT_MEMORY = "next_memory"
_ROUND = "round"
_DEFER = object()
_MOST_FRAMES = 2**14
"""That are scored in one pass; more would only need more memory."""


class ControlActorCritic(ActorCritic):
    """Holds all agents and runs them together; every name of the spaces must be among them.

    Raises
    ------
    UnknownNameError
        If an agent is missing.
    """

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
        self.sights = agent_sights(spaces, {n: a.parameters for n, a in self.agents.items()})
        alike: dict[str, list[int]] = {}
        for place, agent in enumerate(self.agents.values()):
            if (group := agent.parameters.shared_model_group) is not None:
                alike.setdefault(group, []).append(place)
        shape = (len(agents), spaces.observation_width)
        images = [place for place, agent in enumerate(self.agents.values()) if agent.sees_images]
        self.normalizer = FeatureNormalizer(
            shape, device, alike=list(alike.values()), images=images
        )
        self.normalizes = normalizes and bool(self.normalizer.keys)

        self.memory_size = max(agent.memory_size for agent in self.agents.values())
        self.is_recurrent = self.memory_size > 0

    has_fixed_shapes = True

    @property
    def observation_keys(self) -> tuple[Key, ...]:
        """Observations, and who has left; what is remembered, and when it is not."""
        seen = (OBSERVATION, _DONE)
        return (*seen, _MEMORY, _ROUND) if self.is_recurrent else seen

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
            chosen = [
                self._choose(name, self.agents[name].policy(x.policy), generators, deterministic)[1]
                for name, x in inputs.items()
            ]
            td.get("agents").set("action", self._pack(chosen))
            return td
        actions, log_probs, values, memories = [], [], [], []
        for name, x in inputs.items():
            if x.past is None:
                outputs, value = self.agents[name].policy_and_value(x)
            else:
                outputs, value, memory = self.agents[name].remember(x, x.past)
                memories.append(memory)
            distribution, action = self._choose(name, outputs, generators, deterministic)
            actions.append(action)
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

    def _choose(
        self,
        name: str,
        outputs: Tensor,
        generators: Mapping[str, torch.Generator] | None,
        deterministic: bool,
    ) -> tuple[ActionDistribution, Tensor]:
        """Return an agent's distribution, and actions [B, K] from it."""
        distribution = distribution_of(self.agents[name], outputs)
        generator = None if generators is None else generators[name]
        action = distribution.mode() if deterministic else distribution.sample(generator)
        return distribution, action

    def new_deferring_cache(self) -> object:
        """Put off scores: of a whole rollout they are one pass, and one pass for each step."""
        return None if self.is_recurrent else _DEFER

    @torch.no_grad()
    def complete(self, rollouts: TensorDictBase, cache: Any) -> None:  # noqa: ANN401
        """Score all frames of rollouts [E, T] at once; see :class:`ActorCritic`."""
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
        found = dict(zip(("log_prob", "entropy", "value"), columns, strict=True))
        size = columns[0].shape[:1]
        return TensorDict({"agents": TensorDict(found, batch_size=size)}, batch_size=size)

    def score(
        self, td: TensorDictBase, *, agents: Sequence[str] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Evaluate the actions in frames; see :class:`ActorCritic`."""
        inputs, chosen = self.asked(td, agents)
        rows: list[tuple[Tensor, Tensor, Tensor]] = []
        for name, x in inputs.items():
            agent, actions = self.agents[name], chosen[name]
            if actions is None:
                zero = x.policy.new_zeros(len(x.policy), 1)
                rows.append((zero, zero, zero))
                continue
            outputs, value = agent.policy_and_value(x)
            rows.append((*distribution_of(agent, outputs).log_prob_and_entropy(actions), value))
        log_prob, entropy, value = (_side_by_side(column) for column in zip(*rows, strict=True))
        return log_prob, entropy, value

    def asked(
        self, td: TensorDictBase, agents: Sequence[str] | None
    ) -> tuple[dict[str, Seen], dict[str, Tensor | None]]:
        """Return what all agents see, and the actions of those who are asked for."""
        actions = td.get(_ACTION).flatten(0, -3)
        chosen = {
            name: self._chosen(actions, name) if agents is None or name in agents else None
            for name in self.agent_names
        }
        return self._inputs(td), chosen

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
        inputs = self._inputs(td).items()
        outputs = {name: self.agents[name].policy_and_value(x)[0] for name, x in inputs}
        return {
            name: distribution_of(self.agents[name], output) for name, output in outputs.items()
        }

    def parameter_groups(
        self, rl: RlParameters, *, solo: bool = False, solo_body_factor: bool = True
    ) -> list[ParameterGroup]:
        """Divide all agents' parameters by learning rate; see :mod:`ratchet.agents.lr_groups`."""
        return parameter_groups(
            rl, self.agents.values(), solo=solo, solo_body_factor=solo_body_factor
        )

    def _inputs(self, td: TensorDictBase) -> dict[str, Seen]:
        """Return what each agent's policy and critic see, normalised; of rows of steps [e·T]."""
        observation = td.get(OBSERVATION).flatten(0, -3)
        observation = self.normalizer(observation) if self.normalizes else observation.float()
        seen = {name: sights.show(observation) for name, sights in self.sights.items()}
        if not self.is_recurrent:
            return seen
        memories, begins = td.get(_MEMORY).unbind(-2), td.get(_ROUND) == 0
        return {
            name: x._replace(past=Past(memory, begins))
            for (name, x), memory in zip(seen.items(), memories, strict=True)
        }

    def _chosen(self, actions: Tensor, name: str) -> Tensor:
        """Take one agent's actions out of [B, A, K]."""
        index, space = self.agent_names.index(name), self.spaces.by_name[name].actions
        chosen = actions[:, index, : space.num_factors]
        wanted = torch.int64 if isinstance(space, DiscreteActions) else torch.float32
        return chosen if chosen.dtype == wanted else chosen.to(wanted)

    def _pack(self, actions: list[Tensor]) -> Tensor:
        """Lay the agents' actions out as [B, A, K]."""
        if len(actions) == 1:
            return actions[0].unsqueeze(1)
        width, all_discrete = self.spaces.action_width, self.spaces.all_discrete
        packed = [
            nn.functional.pad(a if all_discrete else a.float(), (0, width - a.shape[-1]))
            for a in actions
        ]
        return torch.stack(packed, 1)


def _side_by_side(columns: Sequence[Tensor]) -> Tensor:
    """Lay [B, 1] each out as [B, A]."""
    return columns[0] if len(columns) == 1 else torch.cat(list(columns), -1)
