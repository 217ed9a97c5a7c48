"""Schemas of files, models and lists, as in OpenAI's API."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, computed_field


class Identified(BaseModel):
    """An object with an id."""

    id: str


Item = TypeVar("Item", bound=Identified)


class ModelObject(BaseModel):
    """A model that can be called or trained; ``root`` is the folder of its weights."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    root: str


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ModelObject]


class Deleted(BaseModel):
    """A deleted object."""

    id: str
    object: Literal["model", "file"]
    deleted: Literal[True] = True


class FileObject(Identified):
    """An uploaded file, or a job's result file."""

    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["fine-tune", "fine-tune-results"]
    status: Literal["processed"] = "processed"


class Page(BaseModel, Generic[Item]):
    """A page of a list; the next one starts ``after`` the last id."""

    object: Literal["list"] = "list"
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
