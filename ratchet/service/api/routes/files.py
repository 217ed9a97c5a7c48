"""``/v1/files``."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse
from openai.types import FileDeleted, FileObject
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from ratchet.service.api.errors import ApiError
from ratchet.service.api.request_parsing import StrictRoute, form_of
from ratchet.service.api.schemas.objects import Page
from ratchet.service.service import ModelService

_BYTES = {"type": "string", "format": "binary"}
_UPLOAD = form_of(file=_BYTES, purpose={"type": "string", "enum": ["fine-tune"]})


def file_routes(service: ModelService) -> APIRouter:
    """Create the routes of file upload and download."""
    router = APIRouter(prefix="/v1/files", tags=["files"], route_class=StrictRoute)

    @router.post("", response_model_exclude_unset=True, openapi_extra=_UPLOAD)
    async def create_file(request: Request) -> FileObject:
        """Upload a training file; it is checked line by line."""
        async with request.form(max_files=1, max_fields=4) as form:
            upload = _checked(form)
            name = _filename(upload)
            stored = await run_in_threadpool(service.files.add_training_file, name, upload.file)
        await run_in_threadpool(service.runner.warm_up)
        return stored

    @router.get("", response_model_exclude_unset=True)
    def list_files(
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
        purpose: str | None = None,
    ) -> Page[FileObject]:
        """List files."""
        ascending = order == "asc"
        return service.files.page(after=after, limit=limit, ascending=ascending, purpose=purpose)

    @router.get("/{file_id}", response_model_exclude_unset=True)
    def retrieve_file(file_id: str) -> FileObject:
        """Return a file's entry."""
        return service.files.describe(file_id)

    @router.delete("/{file_id}")
    def delete_file(file_id: str) -> FileDeleted:
        """Delete a file."""
        service.files.delete(file_id)
        return FileDeleted(id=file_id, object="file", deleted=True)

    _add_content(router, service)
    return router


def _add_content(router: APIRouter, service: ModelService) -> None:
    binary = {"schema": {"type": "string", "format": "binary"}}

    @router.get(
        "/{file_id}/content",
        response_class=FileResponse,
        responses={200: {"content": {"application/octet-stream": binary}}},
    )
    def file_content(file_id: str) -> FileResponse:
        """Return a file's bytes."""
        path = service.files.get(file_id).path
        return FileResponse(path, media_type="application/octet-stream")


def _checked(form: FormData) -> UploadFile:
    for name in form:
        if name not in ("file", "purpose"):
            raise ApiError(
                400, f"Unknown parameter: {name!r}.", code="unknown_parameter", param=name
            )
    upload, purpose = form.get("file"), form.get("purpose")
    if not isinstance(upload, UploadFile):
        message = "Missing required parameter: 'file', as a file in multipart/form-data."
        raise ApiError(400, message, code="missing_required_parameter", param="file")
    if purpose != "fine-tune":
        got = "nothing" if purpose is None else repr(purpose)
        message = f"Invalid value for 'purpose': got {got}, expected 'fine-tune'."
        raise ApiError(400, message, code="invalid_value", param="purpose")
    return upload


def _filename(upload: UploadFile) -> str:
    name = (upload.filename or "").encode("utf-8", "replace").decode()
    if not 0 < len(name) <= 255:
        raise HTTPException(400, "the file must have a name of 1 to 255 characters")
    return name
