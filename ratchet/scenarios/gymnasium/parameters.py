"""Parameters of the scenario of environments: gymnasium's, PettingZoo's, one's own. Light."""

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
    ``rl.use_shared_body: false`` on top of a body of their own. Continuous actions are normally
    distributed around the policy's output with a learned deviation that depends on nothing.
    ``policy_gain`` scales the last layer's initial weights: nearly uniform in the beginning.

    Agents of one ``shared_model_group`` have one network, and ``observes_agent_id`` tells each
    network for which agent it acts; each its own when not given. A ``centralised_critic`` sees
    what all agents observe, with layers of its own; policies see only what their agent does.

    Images (bytes) go through ``convolutions`` first, each ``[channels, kernel, stride]``, those of
    Mnih et al. (2015) or smaller ones for small images if none are given; ``body: cnn`` takes
    other numbers for images too, ``perceptron`` none. ``image_channels`` says which dimension the
    colours are, the smaller one if not given.

    With ``recurrence`` a GRU or LSTM of ``recurrent_size`` follows on the hidden layers; it learns
    from all steps of an iteration in an environment together, and forgets where an episode ends.
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
    recurrence: Literal["gru", "lstm"] | None = None
    recurrent_size: PositiveInt = 64


@register_parameters("gymnasium", protocols=(PROTOCOL,), scenarios=("gymnasium",))
class GymnasiumParameters(SubParameters, read_for=SCENARIO):
    """The environment whose id is ``dataset``, and how many of it are played side by side.

    ``environment_kwargs`` go to its constructor, nested ones too. ``wrappers`` are put around it,
    the first one innermost: classes of ``gymnasium.wrappers`` by name, or of a file, each with its
    arguments beside the name. ``implementation`` says whether
    to play the batched version on tensors, if there is one, or the simulators. ``num_envs`` are 8
    when not given, or ``rl.frames_per_batch`` over ``rl.steps_per_env_per_iteration`` if that is.
    ``max_episode_steps`` replaces the environment's own time limit. Initial states are drawn from
    ``num_train_seeds`` seeds, and in tests from ``num_test_episodes`` other ones, one for each
    episode. With ``carry_episodes`` an iteration goes on with the episodes of the one before;
    without, it begins with new ones. ``reward_scale`` scales the rewards that are learned from, not
    those that are reported. The report shows films of the first ``num_test_videos`` test episodes,
    if the environment renders.
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
