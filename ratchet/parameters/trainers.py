"""Sections that tensor trainers read, and the reference to a trainer in a user's file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from ratchet.parameters.agents import LrFactors
from ratchet.parameters.base import SubParameters, register_parameters


class TrainerReference(SubParameters):
    """A trainer in a Python file of the user's.

    ``module_path`` starts from the folder of the experiment file (``settings.base_dir``), so
    that it means the same on every machine. Of the two only the class name belongs to a
    stage's key; the file's content is in the code fingerprint.
    """

    module_path: str
    class_name: str


@register_parameters("rl")
class RlParameters(SubParameters):
    """Reinforcement learning on tensors: how much is sampled and how it is learned from.

    ``mixed_precision`` computes losses in bfloat16 where torch holds that exact enough; weights
    and what the optimizer keeps are f32. ``compile_losses`` lets ``torch.compile`` make the losses
    of environments: half a minute at the start of each process, for accelerators; on a CPU our own
    operations are faster.
    """

    frames_per_batch: PositiveInt | None = 1000
    rollouts_per_iteration: PositiveInt | None = None
    steps_per_env_per_iteration: PositiveInt | None = None
    num_iterations: NonNegativeInt = 1000
    num_epochs: PositiveInt = 4
    minibatch_size: PositiveInt = 64
    lr: PositiveFloat = 0.003
    anneal_lr: bool = False
    max_grad_norm: PositiveFloat = 1.0
    loss_critic_type: Literal["smooth_l1", "l1", "l2"] = "smooth_l1"
    clip_value: bool | PositiveFloat = False
    normalize_observations: bool = True
    num_normalization_steps: PositiveInt = 1000
    gamma: float = Field(default=0.9, ge=0, le=1)
    lmbda: float = Field(default=0.95, ge=0, le=1)
    body_lr_factor: LrFactors = LrFactors()
    use_shared_body: bool = True
    num_test_iterations: PositiveInt = 10
    mixed_precision: bool = False
    compile_losses: bool = False


@register_parameters("ppo", trainers=("vanilla_ppo", "spg"))
class PpoParameters(SubParameters):
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


@register_parameters("reinforce", trainers=("reinforce",))
class ReinforceParameters(SubParameters):
    """REINFORCE (Williams 1992): rewards to go, or advantages with a critic."""

    use_advantage_and_critic: bool = False


@register_parameters("spg", trainers=("spg",))
class SpgParameters(SubParameters):
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


@register_parameters("solo_agent")
class SoloAgentParameters(SubParameters):
    """Supervised training of one agent alone; also used to pretrain bodies."""

    num_epochs: PositiveInt = 100
    batch_size: PositiveInt = 256
    learning_rate: PositiveFloat = 0.001
    body_lr_factor_override: bool = False
