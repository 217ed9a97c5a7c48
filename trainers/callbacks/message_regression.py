"""Message regression, which measures the information in an agent's messages.

After each iteration a small network learns to predict y from one agent's messages in the episodes
of that iteration; its accuracy on held-out datapoints is logged. Agents are not affected.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn import functional as F

from ratchet.agents.networks.layers import Initializer, Mlp, activation
from ratchet.errors import ParameterError, nearest
from ratchet.parameters.options import MessageRegressionParameters
from ratchet.scenarios.environment import Environment
from ratchet.seeding import torch_generator
from trainers.callbacks.base import Callback, CallbackState, Moment
from trainers.callbacks.registry import register_callback
from trainers.results import Metrics
from trainers.tensordict.optimization.optimizer import (
    build_adam,
    load_optimizer_tensors,
    optimizer_tensors,
)
from trainers.tensordict.states.snapshots import copy_tensors
from trainers.tensordict.states.state import TensorTree, check_same_tensors, clone_tensors
from trainers.tensordict.statistics.log_stats import finished_episodes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.options import MessageRegressionParameters
    from ratchet.protocols.base import ProtocolHandler
    from trainers.base import Trainer
    from trainers.callbacks.base import CallbackSpec
    from trainers.tensordict.base import TensorDictTrainer


STAGE = "train"
GROUP = "message_regression"
SCORE = "message_regression_score"
_MIN_DATAPOINTS = 2


@register_callback("message_regression")
class MessageRegression(Callback):
    """Trains a small network for each selected agent to predict the label from its messages."""

    Parameters = MessageRegressionParameters
    plays_text = False
    trainer: TensorDictTrainer

    def __init__(self, parameters: MessageRegressionParameters, trainer: TensorDictTrainer) -> None:
        super().__init__(parameters, trainer)
        environment = trainer.train_environment
        if not isinstance(environment, Environment):
            raise ParameterError(
                "message_regression.enabled: got true, but the agents of"
                f" {trainer.hyper_params.scenario!r} exchange no messages. Set it to false."
            )
        self.section = parameters
        self.environment = environment
        self.agent_names = _choose_agents(parameters, trainer.agent_names, GROUP)
        self.seed = trainer.hyper_params.seed
        self._learners = {
            name: self._new_learner(name, "initial_state", 0) for name in self.agent_names
        }

    @classmethod
    def check(
        cls,
        spec: CallbackSpec,
        hyper_params: HyperParameters,
        trainer: type[Trainer],
        handler: ProtocolHandler,
    ) -> None:
        """Refuse trainers without rollouts of networks, and unknown agents."""
        if not trainer.traits.samples_rollouts:
            raise ParameterError(
                f"{spec.prefix}, but the trainer {hyper_params.trainer_name!r} samples no rollouts"
                " of networks that exchange messages. Leave it out, or choose a trainer such as"
                " vanilla_ppo."
            )
        assert isinstance(spec.parameters, MessageRegressionParameters)
        _choose_agents(spec.parameters, handler.agent_names, spec.path)

    def after_rollouts(self, now: Moment, rollouts: TensorDictBase) -> Metrics:
        """Fit every regressor to the episodes of ``[E, T]`` that ended, and score it.

        ``AGENT.message_regression_score`` is the accuracy on the held-out datapoints. Returns no
        metrics if fewer than two datapoints were played to the end.
        """
        iteration = now.iteration
        episodes = finished_episodes(rollouts)
        at = (episodes.environment, episodes.stop)
        ids, y = rollouts.get("datapoint_id")[at], rollouts.get("y")[at]
        held_out = self._hold_out(ids, iteration)
        if held_out is None:
            return {}
        scores = {}
        for name in self.agent_names:
            index = self.environment.protocol_handler.agent_index(name)
            messages = episode_messages(rollouts, index, self.environment.max_rounds)
            if self.section.reset_on_fit:
                self._learners[name] = self._new_learner(name, STAGE, iteration)
            draws = torch_generator(self.seed, STAGE, iteration, f"{GROUP}.minibatch", name)
            learner = self._learners[name]
            learner.train(messages[~held_out], y[~held_out], draws)
            scores[f"{name}.{SCORE}"] = learner.accuracy(messages[held_out], y[held_out])
        return scores

    def take_state(self) -> CallbackState:
        """Copy the regressors' states; empty if each fit starts over."""
        if self.section.reset_on_fit:
            return CallbackState()
        tensors = {
            f"{agent}:{name}": tensor
            for agent, learner in self._learners.items()
            for name, tensor in learner.tensors().items()
        }
        return CallbackState(tensors=tensors)

    def load_state(self, state: CallbackState) -> None:
        """Restore the result of :meth:`take_state`.

        Raises StateError if networks are missing or have other shapes.
        """
        if self.section.reset_on_fit:
            return
        saved: TensorTree = {}
        for path, tensor in state.tensors.items():
            agent, _, name = path.partition(":")
            saved.setdefault(agent, {})[name] = tensor
        for agent, learner in self._learners.items():
            learner.load(saved.get(agent, {}), f"message regression of {agent!r}")

    def _hold_out(self, ids: Tensor, iteration: int) -> Tensor | None:
        """Choose datapoints to hold out, with all their episodes: bool ``[K]``."""
        datapoints, datapoint_index = torch.unique(ids.cpu(), return_inverse=True)
        if len(datapoints) < _MIN_DATAPOINTS:
            return None
        count = round(self.section.test_size * len(datapoints))
        count = min(max(count, 1), len(datapoints) - 1)
        draws = torch_generator(self.seed, STAGE, iteration, f"{GROUP}.test")
        chosen = torch.randperm(len(datapoints), generator=draws) < count
        return chosen[datapoint_index].to(ids.device)

    def _new_learner(self, name: str, stage: str, iteration: int) -> _Learner:
        generator = torch_generator(self.seed, stage, iteration, GROUP, name)
        channels, positions, symbols = self.environment.message_shape
        num_features = channels * positions * symbols + (self.environment.num_linear_symbols or 0)
        network = REGRESSORS[self.section.method](
            self.section,
            self.environment.max_rounds,
            num_features,
            Initializer(generator, orthogonal=False, device=self.environment.device),
        )
        return _Learner(network, self.section)


def episode_messages(rollouts: TensorDictBase, agent: int, max_rounds: int) -> Tensor:
    """Return an agent's messages in the episodes that ended in ``[E, T]``: f32 ``[K, R, F]``.

    One-hot: the symbols in all channels and positions, then the linear message if any; 0 without
    a message. ``agent`` is its index in the agent dimension, ``max_rounds`` R.
    """
    agents = rollouts.get("agents")
    active = agents.get("active")[:, :, agent]  # [E, T, C]
    symbols = rollouts.get("x").shape[-1]
    message = F.one_hot(agents.get("message")[:, :, agent], symbols)
    messages = (message * active[..., None, None]).flatten(2)
    if rollouts.get("linear_message_history", None) is not None:
        linear = agents.get("linear_message")[:, :, agent]
        size = rollouts.get("linear_message_history").shape[-1]
        messages = torch.cat(
            [messages, F.one_hot(linear, size) * active.any(-1, keepdim=True)], dim=-1
        )
    episodes = finished_episodes(rollouts)
    rounds = torch.arange(max_rounds, device=messages.device)
    steps = episodes.start.unsqueeze(1) + rounds  # [K, R]
    played = steps <= episodes.stop.unsqueeze(1)
    steps = steps.clamp(max=messages.shape[1] - 1)
    laid: Tensor = messages[episodes.environment.unsqueeze(1), steps]
    return (laid * played.unsqueeze(-1)).to(torch.float32)


class _Learner:
    """One network with its optimizer and training loop."""

    def __init__(self, network: nn.Module, section: MessageRegressionParameters) -> None:
        self.network = network
        self.section = section
        self.params = dict(network.named_parameters())
        self.optimizer = build_adam([], section.learning_rate, self.params.values())

    @torch.enable_grad()
    def train(self, messages: Tensor, y: Tensor, draws: torch.Generator) -> None:
        """Train on the episodes ``num_epochs`` times in minibatches, with cross-entropy."""
        batches = math.ceil(len(y) / self.section.batch_size)
        for _ in range(self.section.num_epochs):
            order = torch.randperm(len(y), generator=draws).to(y.device)
            for rows in order.tensor_split(batches):
                loss = F.cross_entropy(self.network(messages[rows]), y[rows])
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call] # of torch
                self.optimizer.step()

    @torch.no_grad()
    def accuracy(self, messages: Tensor, y: Tensor) -> float:
        """Return the share of correct predictions."""
        return float((self.network(messages).argmax(-1) == y).double().mean())

    def tensors(self) -> dict[str, Tensor]:
        """Copy the parameters and the optimizer's state."""
        names = {id(param): name for name, param in self.params.items()}
        optimizer_state = optimizer_tensors(self.optimizer, names)
        flat = {
            f"optimizer:{param}:{key}": tensor
            for param, tensors in optimizer_state.items()
            for key, tensor in tensors.items()
        }
        return {**clone_tensors(self.params), **flat}

    def load(self, saved: Mapping[str, Tensor], what: str) -> None:
        """Restore the result of :meth:`tensors`."""
        optimizer_state: TensorTree = {}
        mine = {}
        for name, tensor in saved.items():
            kind, _, rest = name.partition(":")
            if rest:
                param, _, key = rest.partition(":")
                optimizer_state.setdefault(param, {})[key] = tensor
            else:
                mine[kind] = tensor
        check_same_tensors(mine, self.params, what)
        copy_tensors(self.params, mine)
        load_optimizer_tensors(self.optimizer, optimizer_state, self.params)


def _choose_agents(
    parameters: MessageRegressionParameters, agent_names: Sequence[str], path: str
) -> tuple[str, ...]:
    """Return the agents whose messages are regressed on, which must be the protocol's."""
    if parameters.agents == "all":
        return tuple(agent_names)
    for name in parameters.agents:
        if name not in agent_names:
            raise ParameterError(
                f"{path}.agents: got {name!r}, expected agents of the protocol."
                f"{nearest(name, agent_names)}"
            )
    return parameters.agents


NUM_LABELS = 2
_KERNEL = 3


class MlpRegressor(nn.Module):
    """A multilayer perceptron over all R rounds of F features.

    ``num_layers`` hidden layers of ``hidden_size`` with ``activation`` between them.
    """

    def __init__(
        self,
        section: MessageRegressionParameters,
        num_rounds: int,
        num_features: int,
        init: Initializer,
    ) -> None:
        super().__init__()
        hidden = [section.hidden_size] * section.num_layers
        sizes = [num_rounds * num_features, *hidden, NUM_LABELS]
        self.mlp = Mlp(sizes, section.activation, init)

    def forward(self, messages: Tensor) -> Tensor:
        """Map f32 [K, R, F] to logits [K, 2]."""
        logits: Tensor = self.mlp(messages.flatten(1))
        return logits


class CnnRegressor(nn.Module):
    """Convolutions over three rounds each, followed by a maximum over rounds.

    It detects evidence for y in any round. Parameters as for :class:`MlpRegressor`.
    """

    def __init__(
        self,
        section: MessageRegressionParameters,
        num_rounds: int,
        num_features: int,
        init: Initializer,
    ) -> None:
        super().__init__()
        widths = [num_features, *[section.hidden_size] * section.num_layers]
        self.convs = nn.ModuleList(
            init.linear(_KERNEL * before, after) for before, after in pairwise(widths)
        )
        self.out = init.linear(widths[-1], NUM_LABELS)
        self._activation = activation(section.activation)

    def forward(self, messages: Tensor) -> Tensor:
        """Map f32 [K, R, F] to logits [K, 2]."""
        x = messages
        for conv in self.convs:
            before, after = torch.zeros_like(x[:, :1]), torch.zeros_like(x[:, :1])
            padded = torch.cat([before, x, after], dim=1)
            windows = padded.unfold(1, _KERNEL, 1).flatten(2)  # [K, R, F * kernel]
            x = self._activation(conv(windows))
        logits: Tensor = self.out(x.amax(1))
        return logits


REGRESSORS: dict[str, type[MlpRegressor] | type[CnnRegressor]] = {
    "mlp": MlpRegressor,
    "cnn": CnnRegressor,
}
