"""``/v1/fine_tuning/jobs``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from openai.types.fine_tuning import FineTuningJobEvent
from starlette.concurrency import run_in_threadpool

from ratchet.service.api.request_parsing import (
    StrictRoute,
    body_of,
    metadata_filter,
    read_body,
)
from ratchet.service.api.schemas.fine_tuning import (
    CheckpointObject,
    CreateJobRequest,
    JobObject,
)
from ratchet.service.api.schemas.objects import Page
from ratchet.service.service import ModelService

_METADATA: dict[str, Any] = {
    "parameters": [
        {
            "name": "metadata",
            "in": "query",
            "required": False,
            "style": "deepObject",
            "explode": True,
            "description": "metadata[key]=value, or metadata=null for jobs without metadata",
            "schema": {"type": "object", "additionalProperties": True},
        }
    ]
}
Limit = Annotated[int, Query(ge=1, le=100)]
IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=255)]


def fine_tuning_routes(service: ModelService) -> APIRouter:
    """Create the routes of fine-tuning jobs."""
    router = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["fine-tuning"], route_class=StrictRoute)

    @router.post("", response_model_exclude_unset=True, openapi_extra=body_of(CreateJobRequest))
    async def create_job(request: Request, idempotency_key: IdempotencyKey = None) -> JobObject:
        """Create a job, once per idempotency key."""
        body = await read_body(request, CreateJobRequest)
        job = await run_in_threadpool(service.jobs.create, body, idempotency_key)
        service.runner.wake()
        return job

    @router.get("", response_model_exclude_unset=True, openapi_extra=_METADATA)
    def list_jobs(request: Request, after: str | None = None, limit: Limit = 20) -> Page[JobObject]:
        """List jobs, newest first."""
        pairs, nothing = metadata_filter(request)
        return service.jobs.page(after=after, limit=limit, metadata=pairs, no_metadata=nothing)

    @router.get("/{fine_tuning_job_id}", response_model_exclude_unset=True)
    def retrieve_job(fine_tuning_job_id: str) -> JobObject:
        """Return a job."""
        return service.jobs.get(fine_tuning_job_id)

    @router.post("/{fine_tuning_job_id}/cancel", response_model_exclude_unset=True)
    def cancel_job(fine_tuning_job_id: str) -> JobObject:
        """Cancel a queued or running job."""
        job = service.jobs.cancel(fine_tuning_job_id)
        service.runner.kill(fine_tuning_job_id)
        return job

    _add_pausing(router, service)
    _add_history(router, service)
    return router


def _add_pausing(router: APIRouter, service: ModelService) -> None:
    @router.post("/{fine_tuning_job_id}/pause", response_model_exclude_unset=True)
    def pause_job(fine_tuning_job_id: str) -> JobObject:
        """Pause a queued or running job until it is resumed."""
        job = service.jobs.pause(fine_tuning_job_id)
        service.runner.kill(fine_tuning_job_id)
        return job

    @router.post("/{fine_tuning_job_id}/resume", response_model_exclude_unset=True)
    def resume_job(fine_tuning_job_id: str) -> JobObject:
        """Requeue a paused job; training restarts from its file."""
        job = service.jobs.resume(fine_tuning_job_id)
        service.runner.wake()
        return job


def _add_history(router: APIRouter, service: ModelService) -> None:
    @router.get("/{fine_tuning_job_id}/events", response_model_exclude_unset=True)
    def list_events(
        fine_tuning_job_id: str, after: str | None = None, limit: Limit = 20
    ) -> Page[FineTuningJobEvent]:
        """List a job's events, newest first."""
        service.jobs.row(fine_tuning_job_id)
        return service.history.events(fine_tuning_job_id, after=after, limit=limit)

    @router.get("/{fine_tuning_job_id}/checkpoints", response_model_exclude_unset=True)
    def list_checkpoints(
        fine_tuning_job_id: str, after: str | None = None, limit: Limit = 10
    ) -> Page[CheckpointObject]:
        """List a job's checkpoint models, newest first."""
        service.jobs.row(fine_tuning_job_id)
        return service.history.checkpoints(fine_tuning_job_id, after=after, limit=limit)
