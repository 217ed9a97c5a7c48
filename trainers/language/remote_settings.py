"""Service options of remote trainers, and checks for options that services lack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, ValidationError, model_validator

from ratchet.errors import ParameterError
from ratchet.language_models.training_service.steps import ServiceLoss
from ratchet.parameters.language import RATCHET, TINKER
from ratchet.parameters.reading.messages import describe_validation_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.language import (
        LanguageOptimizerParameters,
        PolicyLossParameters,
        TrainServiceParameters,
    )
    from ratchet.scenarios.language_task.parameters import LanguageAgentParameters

_LOSSES = {"clip": "ppo"}
"""Ratchet's name of a loss → the service's, if different."""
_TINKERS_LOSSES = ("clip", "cispo", "importance_sampling")


class ServiceConfig(BaseModel):
    """Options of ``train_service.config``.

    Attributes
    ----------
    loss_fn, loss_config
        A loss of the service with ratios to the sampler's probabilities; default: the loss of
        the trainer's parameters.
    learning_rate
        Replaces ``language.optimizer.lr``.
    tokenizer
        The folder of the tokenizer of a model at a ``tinker`` service; default: the tokenizer of
        the model's name on the hub.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    loss_fn: str | None = None
    loss_config: dict[str, float] = Field(default_factory=dict)
    learning_rate: PositiveFloat | None = None
    tokenizer: str | None = None

    @model_validator(mode="after")
    def _refuse_figures_of_no_loss(self) -> ServiceConfig:
        if self.loss_config and self.loss_fn is None:
            raise ValueError("loss_config requires a loss_fn; set one, or leave it out")
        return self

    @classmethod
    def of(cls, service: TrainServiceParameters) -> ServiceConfig:
        """Read the options of a service.

        Raises ParameterError if they are invalid.
        """
        try:
            return cls.model_validate(service.config)
        except ValidationError as error:
            prefix = "language.train_service.config"
            message = describe_validation_error(error, prefix=prefix, model=cls)
            raise ParameterError(message) from error

    def optimizer(self, parameters: LanguageOptimizerParameters) -> LanguageOptimizerParameters:
        """Return the optimizer's parameters with this learning rate.

        Raises ParameterError if both are set.
        """
        if self.learning_rate is None:
            return parameters
        usual = type(parameters).model_fields["lr"].default
        if parameters.lr not in (usual, self.learning_rate):
            raise ParameterError(
                f"language.optimizer.lr: got {parameters.lr}, and"
                f" train_service.config.learning_rate is {self.learning_rate}; expected one of"
                " them."
            )
        return parameters.model_copy(update={"lr": self.learning_rate})

    def loss(self, parameters: PolicyLossParameters) -> ServiceLoss:
        """Return the loss to request from the service.

        Raises ParameterError if the sampler's probabilities would be corrected for twice.
        """
        if self.loss_fn is not None:
            if parameters.sampler_correction not in (None, "none"):
                raise ParameterError(
                    "language.algorithm.sampler_correction: got"
                    f" {parameters.sampler_correction!r} with train_service.config.loss_fn"
                    f" {self.loss_fn!r}, whose ratios are to the sampler's probabilities already;"
                    " leave one of them out."
                )
            return ServiceLoss(self.loss_fn, self.loss_config, of_sampler=True)
        name, high = parameters.policy_loss, 1 + parameters.clip_high
        match name:
            case "importance_sampling" | "reinforce":
                config = {}
            case "cispo":  # of its bounds only the upper one is configurable
                config = {"clip_low_threshold": 0.0, "clip_high_threshold": high}
            case _:
                config = {
                    "clip_low_threshold": 1 - parameters.clip_low,
                    "clip_high_threshold": high,
                }
        return ServiceLoss(_LOSSES.get(name, name), config)


def check_service(
    hyper_params: HyperParameters, agents: Mapping[str, LanguageAgentParameters]
) -> None:
    """Refuse options of an experiment that a training service does not support."""
    service = hyper_params.language.train_service
    if service.backend not in (RATCHET, TINKER):
        raise ParameterError(
            f"language.train_service.backend: got {service.backend!r} for a remote trainer,"
            f" expected {RATCHET!r}: a Ratchet service at language.train_service.url, or the"
            f" run's own; or {TINKER!r}."
        )
    config = ServiceConfig.of(service)
    config.optimizer(hyper_params.language.optimizer)
    if service.backend == TINKER:
        _check_tinker(hyper_params, agents)
    elif config.tokenizer is not None:
        raise ParameterError(
            f"language.train_service.config.tokenizer: got {config.tokenizer!r} with the backend"
            f" {RATCHET!r}, whose service provides it; leave it out."
        )
    if service.world_size > 1:
        raise ParameterError(
            f"language.train_service.world_size: got {service.world_size} for a remote trainer,"
            " expected 1: the service configures its own processes. Leave it out, or train"
            " in processes of the run, e.g. with the trainer grpo."
        )
    for name, agent in agents.items():
        if not agent.is_model:
            continue
        here = agent.model == "small" or agent.warm_up.num_steps > 0
        wrong = {
            "temperature": agent.temperature != 1 and "1: the service scores tokens at no other",
            "precision": agent.precision != "float32" and "float32, which the service uses",
            "lora.target_modules": agent.lora.target_modules
            and "none: the service adapts all modules",
            "lora.rank": agent.lora.rank is not None
            and here
            and "none for a model that is built or warmed up here and fully trained",
        }
        for field, expected in wrong.items():
            if expected:
                raise ParameterError(f"agents.{name}.{field}: expected {expected}; leave it out.")


def _check_tinker(
    hyper_params: HyperParameters, agents: Mapping[str, LanguageAgentParameters]
) -> None:
    """Refuse options that a ``tinker`` service does not support."""
    for name, agent in agents.items():
        if not agent.is_model:
            continue
        here = agent.model == "small" or agent.warm_up.num_steps > 0
        wrong = {
            "model": here
            and "the name of one of the service's, and no warm_up: uploads are not supported",
            "lora.rank": agent.lora.rank is None and "a rank: the service trains only adapters",
            "lora.alpha": agent.lora.alpha is not None and "none: the service sets it",
        }
        for field, expected in wrong.items():
            if expected:
                raise ParameterError(
                    f"agents.{name}.{field}: expected {expected}, with the backend {TINKER!r}."
                )
    if hyper_params.evaluation.suites:
        raise ParameterError(
            f"evaluation.suites: expected none with the backend {TINKER!r}, whose models have"
            " no known address for chat requests."
        )


def check_loss(parameters: PolicyLossParameters, section: str, backend: str = RATCHET) -> None:
    """Refuse a loss that the service does not support."""
    if backend == TINKER and parameters.policy_loss not in _TINKERS_LOSSES:
        raise ParameterError(
            f"{section}.policy_loss: got {parameters.policy_loss!r}, expected one of"
            f" {', '.join(_TINKERS_LOSSES)} with the backend {TINKER!r}."
        )
    wrong = {
        "kl.coef": parameters.kl.coef > 0 and "a service has no reference model",
        "entropy_coef": parameters.entropy_coef > 0 and "a service's losses have no entropy term",
        "dual_clip": parameters.dual_clip is not None and "a service's losses have one clip",
    }
    for field, reason in wrong.items():
        if reason:
            raise ParameterError(
                f"{section}.{field}: expected none for a remote trainer, since {reason}. Leave it"
                " out, or train in the run's process, e.g. with the trainer grpo."
            )
