"""Schemas of fine-tuning jobs, as in OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints, model_validator

from ratchet.language_models.service.api.schemas.messages import RequestModel, is_none
from ratchet.language_models.service.api.schemas.objects import Identified
from ratchet.language_models.service.training.job_folder import HyperParameterValue
from ratchet.language_models.service.training.plan import MICRO_BATCH_PARAMETER
from ratchet.models.lora import LORA_PARAMETERS

Auto = Literal["auto"]
JobStatus = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]
MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]
Suffix = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]


class SupervisedHyperParameters(RequestModel):
    """Training length and optimizer settings.

    ``lora_*`` and ``micro_batch_size`` are extensions of OpenAI's API.
    """

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
        ours = (*LORA_PARAMETERS, MICRO_BATCH_PARAMETER)
        unsaid = [name for name in ours if values[name] == "auto"]
        return {name: value for name, value in values.items() if name not in unsaid}


class DpoHyperParameters(SupervisedHyperParameters):
    """Adds the strength of regularisation to the initial model."""

    beta: Auto | Annotated[float, Field(gt=0, le=100)] | None = None


class SupervisedSettings(RequestModel):
    """The content of ``method.supervised``."""

    hyperparameters: SupervisedHyperParameters | None = None


class DpoSettings(RequestModel):
    """The content of ``method.dpo``."""

    hyperparameters: DpoHyperParameters | None = None


class SupervisedMethod(RequestModel):
    """Supervised learning of example completions."""

    type: Literal["supervised"]
    supervised: SupervisedSettings | None = None

    @property
    def hyperparameters(self) -> dict[str, HyperParameterValue]:
        """All hyper-parameters."""
        given = self.supervised.hyperparameters if self.supervised else None
        return (given or SupervisedHyperParameters()).resolved()


class DpoMethod(RequestModel):
    """Preference learning from pairs of completions."""

    type: Literal["dpo"]
    dpo: DpoSettings | None = None

    @property
    def hyperparameters(self) -> dict[str, HyperParameterValue]:
        """All hyper-parameters."""
        given = self.dpo.hyperparameters if self.dpo else None
        return (given or DpoHyperParameters()).resolved()


class CreateJobRequest(RequestModel):
    """The body of ``POST /v1/fine_tuning/jobs``."""

    model: str
    training_file: str
    validation_file: str | None = None
    method: Annotated[SupervisedMethod | DpoMethod, Field(discriminator="type")] | None = None
    hyperparameters: SupervisedHyperParameters | None = None
    suffix: Suffix | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    metadata: Metadata | None = None
    integrations: Annotated[list[None], Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _check_hyperparameters_given_once(self) -> CreateJobRequest:
        if self.method is not None and self.hyperparameters is not None:
            raise ValueError("give the hyper-parameters in 'method' or in 'hyperparameters'")
        return self

    @property
    def resolved_method(self) -> SupervisedMethod | DpoMethod:
        """The method, also if only the older field ``hyperparameters`` was sent."""
        if self.method is not None:
            return self.method
        settings = SupervisedSettings(hyperparameters=self.hyperparameters)
        return SupervisedMethod(type="supervised", supervised=settings)


class JobError(BaseModel):
    """Reason of a job's failure."""

    code: str
    message: str
    param: str | None = None


class HyperParametersObject(BaseModel):
    """A job's given, and later used, hyper-parameters."""

    n_epochs: Auto | int
    batch_size: Auto | int
    learning_rate_multiplier: Auto | float
    lora_rank: Annotated[int | None, Field(exclude_if=is_none)] = None
    lora_alpha: Annotated[int | None, Field(exclude_if=is_none)] = None
    lora_dropout: Annotated[float | None, Field(exclude_if=is_none)] = None
    micro_batch_size: Annotated[int | None, Field(exclude_if=is_none)] = None


class DpoHyperParametersObject(HyperParametersObject):
    """The same for ``dpo``."""

    beta: Auto | float


class SupervisedMethodContent(BaseModel):
    """The content of ``method.supervised``."""

    hyperparameters: HyperParametersObject


class DpoMethodContent(BaseModel):
    """The content of ``method.dpo``."""

    hyperparameters: DpoHyperParametersObject


class MethodObject(BaseModel):
    """A job's training method."""

    type: Literal["supervised", "dpo"]
    supervised: Annotated[SupervisedMethodContent | None, Field(exclude_if=is_none)] = None
    dpo: Annotated[DpoMethodContent | None, Field(exclude_if=is_none)] = None


class JobObject(Identified):
    """A fine-tuning job."""

    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    finished_at: int | None
    model: str
    fine_tuned_model: str | None
    organization_id: str = "ratchet"
    status: JobStatus
    error: JobError | None
    training_file: str
    validation_file: str | None
    result_files: list[str]
    hyperparameters: HyperParametersObject
    method: MethodObject
    seed: int
    trained_tokens: int | None
    estimated_finish: int | None = None
    integrations: list[None] = Field(default_factory=list)
    metadata: dict[str, str] | None


class JobEventObject(Identified):
    """An event of a job."""

    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: dict[str, float]


class CheckpointMetrics(BaseModel):
    """Metrics at a checkpoint, always over the complete validation file."""

    step: int
    train_loss: float
    valid_loss: Annotated[float | None, Field(exclude_if=is_none)] = None
    full_valid_loss: Annotated[float | None, Field(exclude_if=is_none)] = None


class CheckpointObject(Identified):
    """An intermediate model, ready for use."""

    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    metrics: CheckpointMetrics
    step_number: int
