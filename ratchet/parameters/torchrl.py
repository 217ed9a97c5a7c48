"""The section of TorchRL's own trainers. Knows the library's names, and imports nothing of it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PositiveInt

from ratchet.parameters.base import SubParameters, register_parameters
from ratchet.parameters.purposes import Purpose
from ratchet.parameters.references import References

TORCHRL_ALGORITHMS = (
    *("ppo", "a2c", "reinforce", "dqn", "sac", "td3", "ddpg", "iql", "cql"),
    "offline_to_online",
)
TORCHRL_TRAINERS = tuple(f"torchrl_{name}" for name in TORCHRL_ALGORITHMS)
NOT_RUN = {
    "torchrl_grpo": "The library's GRPO trains a language model on what an inference server (vLLM,"
    " SGLang) or a collector of texts gives it, whose buffers of texts no stage could keep. Chat"
    " models learn from their tokens with `trainer: pure_text_grpo`.",
    "torchrl_dreamer_v3": "The library has DreamerV3's loss, optimizer and optimization stepper,"
    " but no trainer of it and no configuration. Put these into a trainer of your own, as"
    " examples/own_dreamer_trainer.py does.",
}
"""What trainers of the library's other algorithms would be called, and why there are none."""


@register_parameters("torchrl", trainers=TORCHRL_TRAINERS)
class TorchRlParameters(SubParameters, read_for=Purpose.LEARNING):
    """How one of TorchRL's trainers is made and run.

    ``config`` holds the library's configuration groups (``training_env``, ``networks``,
    ``optimizer``, ``collector`` …), with its ``defaults`` list if they are to be taken from it
    alone, and ``choices`` other options of groups, e.g. ``{"optimizer": "adamw"}``; further ones
    as ``{"hook@early": "early_stopping"}``, and none at all with null. ``transforms`` come after
    the environment's own: classes of ``torchrl.envs.transforms`` by name, or of a file, each with
    its arguments beside the name.

    An iteration is ``batches_per_iteration`` collected batches with their optimisation steps, by
    default as many as make 1,000 frames; environments are reset where it begins. With
    ``refresh_each_epoch`` advantages are estimated and the buffer is extended in each epoch
    again, as the library does, instead of once a batch.

    Every ``evaluation_period`` iterations the policy plays ``evaluation_episodes`` episodes
    without exploring; training ends when their mean return reaches ``stop_at_return``, and with
    ``keep_best`` the final tests are played by the policy that did best.
    """

    config: Annotated[dict[str, Any], Purpose.CONFIGURATION] = Field(default_factory=dict)
    choices: Annotated[dict[str, str | None], Purpose.CONFIGURATION] = Field(default_factory=dict)
    transforms: Annotated[References, Purpose.CONFIGURATION] = ()
    batches_per_iteration: Annotated[PositiveInt | None, Purpose.CONFIGURATION] = None
    refresh_each_epoch: bool = False
    evaluation_period: PositiveInt | None = None
    evaluation_episodes: PositiveInt = 10
    stop_at_return: float | None = None
    keep_best: Annotated[bool, Purpose.LEARNING, Purpose.TESTS] = False
