"""Sections that tensor trainers read, and the reference to a trainer in a user's file."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from ratchet.parameters.agents import LrFactors
from ratchet.parameters.base import SubParameters, register_parameters
from ratchet.parameters.purposes import Purpose


class TrainerReference(SubParameters):
    """A trainer in a Python file of the user's.

    ``module_path`` starts from the folder of the experiment file (``settings.base_dir``), so
    that it means the same on every machine. Of the two only the class name belongs to a
    stage's key; the file's content is in the code fingerprint.
    """

    module_path: str
    class_name: str


MAX_ITERATIONS = 10_000_000
"""Bound on an experiment's training iterations: a plan considers the state after each of them."""


@register_parameters("rl")
class RlParameters(SubParameters, read_for=Purpose.LEARNING):
    """Reinforcement learning on tensors: how much is sampled and how it is learned from.

    ``num_iterations`` is at most 100,000.
    ``adam_eps`` is what Adam adds to its denominator, in pretraining, imitation and of solo agents
    too.
    ``mixed_precision`` computes losses in bfloat16 where torch holds that exact enough; weights
    and what the optimizer keeps are f32. ``compile_losses`` lets ``torch.compile`` make the losses
    of environments: half a minute at the start of each process, for accelerators; on a CPU our own
    operations are faster. ``test_by_sampling``: agents draw their actions in tests as they do in
    training, instead of taking the likeliest; ``both`` tests them in either way, what they draw as
    "test-by-sampling" beside "test".
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
    """Proximal policy optimisation (Schulman et al. 2017)."""

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
        """Return what only the penalty reads, where there is none."""
        penalty = ("kl_target", "kl_beta", "kl_decrement", "kl_increment")
        return () if self.loss_type == "kl_penalty" else penalty


@register_parameters("reinforce", trainers=("reinforce",))
class ReinforceParameters(SubParameters, read_for=Purpose.LEARNING):
    """REINFORCE (Williams 1992): rewards to go, or advantages with a critic."""

    use_advantage_and_critic: bool = False


@register_parameters("spg", trainers=("spg",))
class SpgParameters(SubParameters, read_for=Purpose.LEARNING):
    """Stackelberg policy gradient and its relatives: leaders shape what followers learn."""

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
        """Return what the variant and its way to solve for the followers do without."""
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
    """Supervised training of one agent alone; also used to pretrain bodies."""

    num_epochs: Annotated[PositiveInt, Purpose.PRETRAINING] = 100
    batch_size: PositiveInt = 256
    learning_rate: PositiveFloat = 0.001
    body_lr_factor_override: bool = False
