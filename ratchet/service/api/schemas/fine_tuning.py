"""Schemas of fine-tuning jobs, as in OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Literal

from openai.types.fine_tuning import FineTuningJob
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint
from openai.types.fine_tuning.jobs.fine_tuning_job_checkpoint import Metrics
from pydantic import Field, JsonValue, StringConstraints, model_validator

from ratchet.models.lora import LORA_PARAMETERS
from ratchet.service.api.schemas.messages import RequestModel
from ratchet.service.api.schemas.unsupported import NoEffect
from ratchet.service.training.job_folder import HyperParameterValue
from ratchet.service.training.plan import MICRO_BATCH_PARAMETER, SUPERVISED_WEIGHT_PARAMETER

Auto = Literal["auto"]
JobStatus = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]
MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]
Suffix = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]


EXTENSIONS = (*LORA_PARAMETERS, MICRO_BATCH_PARAMETER, SUPERVISED_WEIGHT_PARAMETER)
"""Hyper-parameters that are not in OpenAI's API."""


class SupervisedHyperParameters(RequestModel):
    """Training length and optimizer settings; :data:`EXTENSIONS` among them."""

    n_epochs: Auto | Annotated[int, Field(ge=1, le=1000)] | None = None
    batch_size: Auto | Annotated[int, Field(ge=1, le=4096)] | None = None
    learning_rate_multiplier: Auto | Annotated[float, Field(gt=0, le=1000)] | None = None
    lora_rank: Auto | Annotated[int, Field(ge=0, le=1024)] | None = None
    lora_alpha: Auto | Annotated[int, Field(ge=1, le=4096)] | None = None
    lora_dropout: Auto | Annotated[float, Field(ge=0, lt=1)] | None = None
    micro_batch_size: Auto | Annotated[int, Field(ge=1, le=4096)] | None = None

    def resolved(self) -> dict[str, HyperParameterValue]:
        """Return every hyper-parameter, ``"auto"`` if unset.

        Extensions are included only if set: the service's settings contain the defaults.
        """
        values = {name: "auto" if value is None else value for name, value in self}
        return {
            name: value
            for name, value in values.items()
            if value != "auto" or name not in EXTENSIONS
        }


class DpoHyperParameters(SupervisedHyperParameters):
    """Adds the strength of regularisation to the initial model, and a weight of supervision."""

    beta: Auto | Annotated[float, Field(gt=0, le=100)] | None = None
    supervised_weight: Auto | Annotated[float, Field(ge=0, le=100)] | None = None


class SupervisedSettings(RequestModel):
    """The content of ``method.supervised``."""

    hyperparameters: SupervisedHyperParameters | None = None


class DpoSettings(RequestModel):
    """The content of ``method.dpo``."""

    hyperparameters: DpoHyperParameters | None = None


class SupervisedMethodRequest(RequestModel):
    """Supervised learning of example completions."""

    type: Literal["supervised"]
    supervised: SupervisedSettings | None = None

    @property
    def hyperparameters(self) -> dict[str, HyperParameterValue]:
        """All hyper-parameters."""
        hyperparameters = self.supervised.hyperparameters if self.supervised else None
        return (hyperparameters or SupervisedHyperParameters()).resolved()


class DpoMethodRequest(RequestModel):
    """Preference learning from pairs of completions."""

    type: Literal["dpo"]
    dpo: DpoSettings | None = None

    @property
    def hyperparameters(self) -> dict[str, HyperParameterValue]:
        """All hyper-parameters."""
        hyperparameters = self.dpo.hyperparameters if self.dpo else None
        return (hyperparameters or DpoHyperParameters()).resolved()


class CreateJobRequest(RequestModel):
    """The body of ``POST /v1/fine_tuning/jobs``."""

    model: str
    training_file: str
    validation_file: str | None = None
    method: (
        Annotated[SupervisedMethodRequest | DpoMethodRequest, Field(discriminator="type")] | None
    ) = None
    hyperparameters: SupervisedHyperParameters | None = None
    suffix: Suffix | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    metadata: Metadata | None = None
    integrations: Annotated[JsonValue, NoEffect(([],))] = None

    @model_validator(mode="after")
    def _check_hyperparameters_given_once(self) -> CreateJobRequest:
        if self.method is not None and self.hyperparameters is not None:
            raise ValueError("give the hyper-parameters in 'method' or in 'hyperparameters'")
        return self

    @property
    def resolved_method(self) -> SupervisedMethodRequest | DpoMethodRequest:
        """The method, also if only the older field ``hyperparameters`` was sent."""
        if self.method is not None:
            return self.method
        settings = SupervisedSettings(hyperparameters=self.hyperparameters)
        return SupervisedMethodRequest(type="supervised", supervised=settings)


class JobObject(FineTuningJob):
    """A fine-tuning job, which can be paused."""

    status: JobStatus  # type: ignore[assignment]


class CheckpointMetrics(Metrics):
    """Metrics at a checkpoint; ``step`` is an integer in OpenAI's responses too."""

    step: int


class CheckpointObject(FineTuningJobCheckpoint):
    """An intermediate model, ready for use."""

    metrics: CheckpointMetrics
