"""Schemas of models and lists, and of this service's additions to OpenAI's API."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from openai.types import FileObject, Model
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint
from pydantic import BaseModel, computed_field


class ModelObject(Model):
    """A model that can be called or trained; ``root`` is the folder of its weights."""

    root: str


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"]
    data: list[ModelObject]


Item = TypeVar(
    "Item", bound=FileObject | FineTuningJob | FineTuningJobEvent | FineTuningJobCheckpoint
)


class Page(BaseModel, Generic[Item]):
    """A page of a list; the next one starts ``after`` the last id."""

    object: Literal["list"]
    data: list[Item]
    has_more: bool

    @computed_field  # type: ignore[prop-decorator]
    @property
    def first_id(self) -> str | None:
        """The first item's id."""
        return self.data[0].id if self.data else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def last_id(self) -> str | None:
        """The last item's id."""
        return self.data[-1].id if self.data else None


class Health(BaseModel):
    """Whether models can be called, and why fine-tuning jobs cannot run, if so."""

    status: Literal["ok", "starting", "degraded"]
    reason: str | None = None
    instance: str
    model: str
    pid: int


class TokenizerObject(BaseModel):
    """The texts of a model's tokenizer and configuration, by file name."""

    object: Literal["training.tokenizer"] = "training.tokenizer"
    model: str
    files: dict[str, str]
