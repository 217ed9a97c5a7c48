"""Sections of tensor trainers, imitation and TorchRL's trainers; reference to a custom trainer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from ratchet.parameters.agents import LrFactors
from ratchet.parameters.base import References, SubParameters, register_parameters
from ratchet.parameters.purposes import Purpose


class TrainerReference(SubParameters):
    """A trainer in a user's Python file.

    ``module_path`` is relative to the folder of the experiment file (``settings.base_dir``), so it
    is the same on every machine. Stage keys include only ``class_name``; the code fingerprint
    covers the file's content.
    """

    module_path: str
    class_name: str


MAX_ITERATIONS = 10_000_000
"""Bound on an experiment's training iterations: a plan considers the state after each of them."""


@register_parameters("rl")
class RlParameters(SubParameters, read_for=Purpose.LEARNING):
    """Reinforcement learning on tensors: amounts of sampling, optimisation and tests.

    ``num_iterations`` is at most 10,000,000. ``adam_eps`` is the term that Adam adds to its
    denominator, also in pretraining, in imitation and for solo agents. ``mixed_precision`` computes
    losses in bfloat16 where torch considers that exact enough; weights and optimizer states are
    f32. ``compile_losses`` compiles the losses of environments with ``torch.compile``: half a
    minute at the start of each process, for accelerators; on a CPU Ratchet's operations are faster.

    - ``frames_per_batch``: number of steps collected in an iteration.
    - ``rollouts_per_iteration``: number of episodes of an iteration, instead of
      ``frames_per_batch``.
    - ``steps_per_env_per_iteration``: steps of each environment in an iteration; complete episodes
      if null.
    - ``num_iterations``: number of training iterations.
    - ``num_epochs``: number of passes over an iteration's steps.
    - ``minibatch_size``: number of steps of an optimizer step.
    - ``lr``: learning rate of Adam.
    - ``anneal_lr``: let the learning rate fall linearly to 0.
    - ``max_grad_norm``: norm that gradients are clipped to.
    - ``loss_critic_type``: distance between values and returns.
    - ``clip_value``: distance to which the critic's change is clipped; true: as the policy's;
      false: none.
    - ``normalize_observations``: normalise observations by statistics of random play.
    - ``num_normalization_steps``: number of steps of random play that the statistics of
      ``normalize_observations`` are computed from.
    - ``gamma``: discount factor of later rewards.
    - ``lmbda``: parameter λ of generalised advantage estimation.
    - ``body_lr_factor``: factors on ``lr`` for the bodies of all agents.
    - ``use_shared_body``: share an agent's body between policy and critic.
    - ``num_test_iterations``: maximum number of batches of datapoints in a test.
    - ``test_by_sampling``: sample actions in tests as in training instead of acting greedily;
      ``both`` runs both tests, the sampled one as "test-by-sampling" in addition to "test".
    """

    frames_per_batch: Annotated[PositiveInt | None, Purpose.NETWORKS] = 1000
    rollouts_per_iteration: Annotated[PositiveInt | None, Purpose.NETWORKS, Purpose.ROLLOUTS] = None
    steps_per_env_per_iteration: Annotated[PositiveInt | None, Purpose.NETWORKS] = None
    num_iterations: Annotated[NonNegativeInt, Purpose.HORIZON] = Field(
        default=1000, le=MAX_ITERATIONS
    )
    num_epochs: PositiveInt = 4
    minibatch_size: PositiveInt = 64
    lr: PositiveFloat = 0.003
    anneal_lr: bool = False
    max_grad_norm: Annotated[
        PositiveFloat, Purpose.LEARNING, Purpose.PRETRAINING, Purpose.IMITATION
    ] = 1.0
    adam_eps: Annotated[PositiveFloat, Purpose.LEARNING, Purpose.PRETRAINING, Purpose.IMITATION] = (
        1e-5
    )
    loss_critic_type: Annotated[Literal["smooth_l1", "l1", "l2"], Purpose.CRITIC] = "smooth_l1"
    clip_value: Annotated[bool | PositiveFloat, Purpose.CRITIC] = False
    normalize_observations: Annotated[bool, Purpose.NORMALIZATION] = True
    num_normalization_steps: Annotated[PositiveInt, Purpose.NORMALIZATION] = 1000
    gamma: float = Field(default=0.9, ge=0, le=1)
    lmbda: Annotated[float, Purpose.CRITIC] = Field(default=0.95, ge=0, le=1)
    body_lr_factor: Annotated[LrFactors, Purpose.LEARNING, Purpose.PRETRAINING] = LrFactors()
    use_shared_body: Annotated[bool, Purpose.NETWORKS, Purpose.PRETRAINING] = True
    num_test_iterations: Annotated[PositiveInt, Purpose.TESTS] = 10
    test_by_sampling: Annotated[bool | Literal["both"], Purpose.TESTS] = False
    mixed_precision: bool = False
    compile_losses: bool = False


@register_parameters("ppo", trainers=("vanilla_ppo", "spg"))
class PpoParameters(SubParameters, read_for=Purpose.LEARNING):
    """Proximal policy optimisation (Schulman et al. 2017).

    - ``loss_type``: clipped surrogate, or a penalty on the KL divergence.
    - ``clip_epsilon``: distance of the clipping bounds from 1.
    - ``kl_target``: divergence that the penalty's coefficient is adapted to.
    - ``kl_beta``: initial coefficient of the penalty.
    - ``kl_decrement``: factor on the coefficient if the divergence is low.
    - ``kl_increment``: factor on the coefficient if the divergence is high.
    - ``critic_coef``: coefficient of the critic's loss.
    - ``entropy_eps``: coefficient of the entropy bonus.
    - ``normalize_advantage``: normalise each agent's advantages within each minibatch.
    """

    loss_type: Literal["clip", "kl_penalty"] = "clip"
    clip_epsilon: PositiveFloat = 0.2
    kl_target: PositiveFloat = 0.01
    kl_beta: float = Field(default=1.0, ge=0)
    kl_decrement: PositiveFloat = 0.5
    kl_increment: PositiveFloat = 2.0
    critic_coef: float = Field(default=1.0, ge=0)
    entropy_eps: float = Field(default=0.001, ge=0)
    normalize_advantage: bool = True

    def unread(self) -> Collection[str]:
        """Return the penalty's parameters if the loss has no penalty."""
        penalty = ("kl_target", "kl_beta", "kl_decrement", "kl_increment")
        return () if self.loss_type == "kl_penalty" else penalty


@register_parameters("reinforce", trainers=("reinforce",))
class ReinforceParameters(SubParameters, read_for=Purpose.LEARNING):
    """REINFORCE (Williams 1992): rewards to go, or advantages with a critic.

    - ``use_advantage_and_critic``: use advantages with a critic instead of rewards to go.
    """

    use_advantage_and_critic: bool = False


@register_parameters("spg", trainers=("spg",))
class SpgParameters(SubParameters, read_for=Purpose.LEARNING):
    """Stackelberg policy gradient and its variants: leaders shape the followers' learning.

    - ``variant``: algorithm; ``pspg``, ``pola`` and ``psos`` use PPO's loss.
    - ``stackelberg_sequence``: groups of agents, leaders first; those of the protocol when not
      given.
    - ``additional_lola_term``: include the term with the Hessian of the leader's own loss (Letcher
      et al. 2019).
    - ``sos_scaling_factor``: SOS's parameter a, which bounds the shaping term.
    - ``sos_threshold_factor``: SOS's parameter b, the norm of the gradient below which shaping
      decreases.
    - ``ihvp_variant``: method for inverse-Hessian–vector products.
    - ``ihvp_num_iterations``: number of iterations of ``conj_grad`` and ``neumann``.
    - ``ihvp_rank``: rank of ``nystrom``.
    - ``ihvp_rho``: damping of ``nystrom``.
    """

    variant: Literal["spg", "pspg", "lola", "pola", "sos", "psos"] = "psos"
    stackelberg_sequence: tuple[tuple[str, ...], ...] | None = None
    additional_lola_term: bool = True
    sos_scaling_factor: float = Field(default=0.5, gt=0, lt=1)
    sos_threshold_factor: float = Field(default=0.1, gt=0, lt=1)
    ihvp_variant: Literal["nystrom", "conj_grad", "neumann"] = "nystrom"
    ihvp_num_iterations: PositiveInt = 5
    ihvp_rank: PositiveInt = 5
    ihvp_rho: PositiveFloat = 0.1

    @field_validator("stackelberg_sequence")
    @classmethod
    def _check_groups(
        cls, groups: tuple[tuple[str, ...], ...] | None
    ) -> tuple[tuple[str, ...], ...] | None:
        names = [name for group in groups or () for name in group]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"expected each agent in one group, got {', '.join(twice)} twice")
        if groups is not None and not all(groups):
            raise ValueError("expected groups of agents, leaders first, got an empty group")
        return groups

    def unread(self) -> Collection[str]:
        """Return the fields that the variant and its inverse-Hessian method do not use."""
        read = {"variant", "stackelberg_sequence"}
        if self.variant in ("lola", "pola"):
            read.add("additional_lola_term")
        if self.variant in ("sos", "psos"):
            read |= {"sos_scaling_factor", "sos_threshold_factor"}
        if self.variant in ("spg", "pspg"):
            nystrom = self.ihvp_variant == "nystrom"
            read |= {"ihvp_variant"}
            read |= {"ihvp_rank", "ihvp_rho"} if nystrom else {"ihvp_num_iterations"}
        return type(self).model_fields.keys() - read


@register_parameters("solo_agent")
class SoloAgentParameters(SubParameters, read_for=(Purpose.PRETRAINING, Purpose.LEARNING_ALONE)):
    """Supervised training of a single agent; also used to pretrain bodies.

    - ``num_epochs``: number of passes over the training set.
    - ``batch_size``: number of datapoints of an optimizer step.
    - ``learning_rate``: learning rate of Adam.
    - ``body_lr_factor_override``: ignore ``rl.body_lr_factor`` and
      ``agents.NAME.body_lr_factor``.
    """

    num_epochs: Annotated[PositiveInt, Purpose.PRETRAINING] = 100
    batch_size: PositiveInt = 256
    learning_rate: PositiveFloat = 0.001
    body_lr_factor_override: bool = False


HAND_MADE = "hand_made"
RUN = "run:"


@register_parameters("imitation")
class ImitationParameters(SubParameters, read_for=Purpose.IMITATION):
    """Supervised imitation of other agents before training; no agents by default.

    ``agents`` are the imitating agents: each learns the messages and decisions that its model chose
    in its turns. ``source`` selects the demonstrators: ``hand_made`` are the scripted agents that
    ``use_manual_architecture`` builds from the same parameters; they replace the imitating agents,
    and the other agents play with their initial weights. ``run:RUN`` uses the rollouts that a run
    on the same data has saved (``settings.rollout_sample_period``). ``num_iterations``: the number
    of rollout collections with scripted agents, each with the frames of a training iteration; with
    a run's rollouts, the number of passes over them. ``num_epochs``: the number of passes over each
    collection. ``minibatch_size`` counts turns of the agent.

    - ``lr``: learning rate of all parts of an agent but its critic.
    - ``anneal_lr``: let the learning rate fall linearly to 0.
    """

    agents: tuple[str, ...] = ()
    source: Annotated[str, Purpose.NOTHING] = HAND_MADE
    """Not in keys: the stage's inputs include the rollouts themselves."""
    num_iterations: PositiveInt = 100
    num_epochs: PositiveInt = 1
    minibatch_size: PositiveInt = 64
    lr: PositiveFloat = 0.002
    anneal_lr: bool = True

    @field_validator("agents")
    @classmethod
    def _check_agents(cls, agents: tuple[str, ...]) -> tuple[str, ...]:
        twice = sorted({name for name in agents if agents.count(name) > 1})
        if twice:
            raise ValueError(f"expected each agent once, got {', '.join(twice)} twice")
        return agents

    @field_validator("source")
    @classmethod
    def _check_source(cls, source: str) -> str:
        if source != HAND_MADE and not (source.startswith(RUN) and source != RUN):
            raise ValueError(f"expected 'hand_made' or 'run:' and the id of a run, got {source!r}")
        return source

    @property
    def run(self) -> str | None:
        """The run whose rollouts are imitated; None for scripted agents."""
        return self.source.removeprefix(RUN) if self.source.startswith(RUN) else None

    def unread(self) -> Collection[str]:
        """Return all fields if no agent imitates."""
        return () if self.agents else type(self).model_fields.keys()


TORCHRL_ALGORITHMS = (
    *("ppo", "a2c", "reinforce", "dqn", "sac", "td3", "ddpg", "iql", "cql"),
    "offline_to_online",
)
TORCHRL_TRAINERS = tuple(f"torchrl_{name}" for name in TORCHRL_ALGORITHMS)
NOT_RUN = {
    "torchrl_grpo": "The library's GRPO trains a language model on texts of an inference server"
    " (vLLM, SGLang) or a collector, whose text buffers stages cannot store. Chat"
    " models learn from their tokens with `trainer: pure_text_grpo`.",
    "torchrl_dreamer_v3": "The library has DreamerV3's loss, optimizer and optimization stepper,"
    " but no trainer and no configuration for it. Use these in a custom trainer, as"
    " examples/custom_dreamer_trainer.py does.",
}
"""Names of trainers for the library's other algorithms → the reason that they are missing."""


@register_parameters("torchrl", trainers=TORCHRL_TRAINERS)
class TorchRlParameters(SubParameters, read_for=Purpose.LEARNING):
    """Configuration of a TorchRL trainer.

    ``config`` contains the library's configuration groups (``training_env``, ``networks``,
    ``optimizer``, ``collector`` …), with its ``defaults`` list if it alone selects them.
    ``transforms`` are applied after the environment's own: classes of ``torchrl.envs.transforms``
    by name, or of a file, each with its arguments next to the name.

    An iteration is ``batches_per_iteration`` collected batches with their optimisation steps, by
    default 1,000 frames; environments are reset at its start. With ``refresh_each_epoch``
    advantages are estimated and the buffer is extended in every epoch, as the library does, instead
    of once per batch.

    - ``choices``: options of the library's groups: ``{"optimizer": "adamw"}`` selects another
      option, ``{"hook@early": "early_stopping"}`` adds one, and null removes a group.
    - ``evaluation_period``: number of iterations after which the policy is evaluated; null: never.
    - ``evaluation_episodes``: number of episodes of an evaluation, which do not explore.
    - ``stop_at_return``: mean return of an evaluation at which training ends; null: never.
    - ``keep_best``: use the policy with the best evaluation in the final tests.
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
