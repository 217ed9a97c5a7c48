"""Parameters of environments: gymnasium, PettingZoo, custom ones. Imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt

from ratchet.parameters.agents import AgentParameters
from ratchet.parameters.base import (
    References,
    SubParameters,
    register_agent_parameters,
    register_parameters,
)
from ratchet.parameters.purposes import AGENT, SCENARIO, Purpose

PROTOCOL = "environment"
Convolution = tuple[PositiveInt, PositiveInt, PositiveInt]
"""A layer's channels, kernel and stride."""


@register_agent_parameters("gymnasium")
class GymnasiumAgentParameters(AgentParameters, read_for=AGENT):
    """Perceptrons of an agent that acts in an environment.

    The body has ``hidden_sizes``; policy and value are one linear layer each on top of it, with
    ``rl.use_shared_body: false`` on top of separate bodies. Continuous actions are normally
    distributed around the policy's output with a learned deviation that is independent of
    observations. ``policy_gain`` scales the last layer's initial weights: nearly uniform at the
    start.

    Agents of one ``shared_model_group`` have one network, and ``observes_agent_id`` adds the
    agent's index to the inputs; otherwise each agent has a separate network. A
    ``centralised_critic`` sees all agents' observations, with separate layers; policies see only
    their agent's.

    Images (bytes) go through ``convolutions`` first, each ``[channels, kernel, stride]``, those of
    Mnih et al. (2015) or smaller ones for small images by default. ``image_channels`` sets the
    dimension of colours (default: the smaller one).

    With ``recurrence`` a memory of ``recurrent_size`` follows on the hidden layers: ``gru``,
    ``lstm``, another name of ``ratchet list recurrences``, or ``path/to/file.py:ClassName``. It
    learns from all steps of an iteration in an environment together, and its state is reset at the
    end of an episode.

    - ``activation_function``: activation function of the hidden layers.
    - ``initial_log_std``: initial logarithm of the standard deviation of continuous actions.
    - ``body``: kind of body; ``auto`` uses convolutions for images (bytes), ``cnn`` also for other
      numbers, ``perceptron`` never.
    - ``shared_model_group``: name of a group of agents that share one network.
    - ``observes_agent_id``: add the agent's index to the inputs of a shared network.
    - ``recurrence``: recurrent layer on the hidden layers; null: none.
    - ``recurrent_size``: width of the recurrent layer.
    """

    default_protocol: ClassVar[str] = PROTOCOL

    activation_function: Literal["tanh", "relu", "gelu", "silu", "sigmoid"] = "tanh"
    hidden_sizes: tuple[PositiveInt, ...] = (64, 64)
    policy_gain: PositiveFloat = 0.01
    initial_log_std: float = 0.0
    shared_model_group: str | None = None
    observes_agent_id: bool = False
    centralised_critic: bool = False
    body: Literal["auto", "perceptron", "cnn"] = "auto"
    convolutions: tuple[Convolution, ...] | None = None
    image_channels: Literal["auto", "first", "last"] = "auto"
    recurrence: str | None = None
    recurrent_size: PositiveInt = 64


@register_parameters("gymnasium", protocols=(PROTOCOL,), scenarios=("gymnasium",))
class GymnasiumParameters(SubParameters, read_for=SCENARIO):
    """The environment whose id is ``dataset``, and the number of parallel ones.

    ``environment_kwargs`` go to its constructor, nested ones too. ``wrappers`` are applied to it,
    the first one innermost: classes of ``gymnasium.wrappers`` by name, or of a file, each with its
    arguments next to the name. ``implementation`` selects the batched version on tensors, if it
    exists, or simulators. ``num_envs`` defaults to 8, or to ``rl.frames_per_batch`` over
    ``rl.steps_per_env_per_iteration`` if that is set. ``max_episode_steps`` replaces the
    environment's own time limit. Initial states are sampled from ``num_train_seeds`` seeds, and in
    tests from ``num_test_episodes`` other ones, one for each episode. With ``carry_episodes``, an
    iteration continues the episodes of the previous one; otherwise it starts new ones.
    ``reward_scale`` scales the rewards for learning, not the reported ones. The report shows videos
    of the first ``num_test_videos`` test episodes, if the environment renders.

    - ``num_train_seeds``: number of seeds from which the initial states of training episodes are
      sampled.
    - ``num_test_episodes``: number of test episodes, each with a different seed.
    """

    environment_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    wrappers: References = ()
    implementation: Literal["auto", "batched", "simulated"] = "auto"
    num_envs: PositiveInt | None = None
    max_episode_steps: PositiveInt | None = None
    num_train_seeds: PositiveInt = 10_000
    num_test_episodes: PositiveInt = 100
    carry_episodes: bool = True
    reward_scale: PositiveFloat = 1.0
    num_test_videos: Annotated[int, Field(ge=0, le=20), Purpose.TESTS] = 0
