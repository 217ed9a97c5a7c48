"""Files, models and lists as OpenAI's API describes them."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, computed_field


class Identified(BaseModel):
    """What has an id."""

    id: str


Item = TypeVar("Item", bound=Identified)


class ModelObject(BaseModel):
    """A model that can be asked or trained on; ``root`` is the folder of its weights."""

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
    """Something is gone."""

    id: str
    object: Literal["model", "file"]
    deleted: Literal[True] = True


class FileObject(Identified):
    """A file that was uploaded, or that a job has written."""

    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["fine-tune", "fine-tune-results"]
    status: Literal["processed"] = "processed"


class Page(BaseModel, Generic[Item]):
    """A part of a list; the next one comes ``after`` the last id."""

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
    """Whether models can be asked yet, and why fine-tuning jobs make no progress if they don't."""

    status: Literal["ok", "starting", "degraded"]
    reason: str | None = None
    instance: str
    model: str
    pid: int
