"""``/v1/training/sessions``: training a model operation by operation."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from ratchet.language_models.service.api.errors import ApiError
from ratchet.language_models.service.api.request_parsing import body_of, read_body, refuse_unknown
from ratchet.language_models.service.api.schemas.training import (
    CreateSessionRequest,
    ForwardBackwardRequest,
    OptimStepRequest,
    PassResponse,
    SampleBody,
    SampledCompletion,
    SaveResponse,
    SaveWeightsRequest,
    SessionDeleted,
    SessionList,
    SessionObject,
    SessionSampleResponse,
    StepResponse,
)
from ratchet.language_models.service.service import ModelService
from ratchet.language_models.service.training_sessions.sessions import VERBS

_Result = TypeVar("_Result")


def training_routes(service: ModelService) -> APIRouter:
    """Create the routes of training sessions."""
    router = APIRouter(prefix="/v1/training/sessions", tags=["training"])
    sessions = service.training

    @router.post("", response_model=SessionObject, openapi_extra=body_of(CreateSessionRequest))
    async def create_session(request: Request) -> SessionObject:
        """Open a session, once per intent."""
        refuse_unknown(request, ())
        body = await read_body(request, CreateSessionRequest)
        return await run_in_threadpool(sessions.create, body)

    @router.get("", response_model=SessionList)
    def list_sessions(request: Request) -> SessionList:
        """List the sessions, oldest first."""
        refuse_unknown(request, ())
        return SessionList(data=sessions.records.all())

    @router.get("/{session_id}", response_model=SessionObject)
    def retrieve_session(request: Request, session_id: str) -> SessionObject:
        """Return a session."""
        refuse_unknown(request, ())
        return sessions.records.describe(sessions.records.row(session_id))

    @router.delete("/{session_id}", response_model=SessionDeleted)
    async def delete_session(request: Request, session_id: str) -> SessionDeleted:
        """Delete a session; the models that it saved remain."""
        refuse_unknown(request, ())
        await done(sessions.delete(session_id))
        return SessionDeleted(id=session_id)

    _add_verbs(router, service)
    return router


def _add_verbs(router: APIRouter, service: ModelService) -> None:
    sessions = service.training

    async def do(request: Request, session_id: str, name: str) -> dict[str, Any]:
        body = await read_body(request, VERBS[name])
        return await done(await run_in_threadpool(sessions.submit, session_id, name, body))

    @router.post(
        "/{session_id}/forward_backward",
        response_model=PassResponse,
        openapi_extra=body_of(ForwardBackwardRequest),
    )
    async def forward_backward(request: Request, session_id: str) -> PassResponse:
        """Read examples, and accumulate the gradient of their loss."""
        return PassResponse.model_validate(await do(request, session_id, "forward_backward"))

    @router.post(
        "/{session_id}/optim_step",
        response_model=StepResponse,
        openapi_extra=body_of(OptimStepRequest),
    )
    async def optim_step(request: Request, session_id: str) -> StepResponse:
        """Apply the accumulated gradient once."""
        return StepResponse.model_validate(await do(request, session_id, "optim_step"))

    @router.post(
        "/{session_id}/save_weights",
        response_model=SaveResponse,
        openapi_extra=body_of(SaveWeightsRequest),
    )
    async def save_weights(request: Request, session_id: str) -> SaveResponse:
        """Save the current weights as a model."""
        return SaveResponse.model_validate(await do(request, session_id, "save_weights"))

    @router.post(
        "/{session_id}/sample",
        response_model=SessionSampleResponse,
        openapi_extra=body_of(SampleBody),
    )
    async def sample(request: Request, session_id: str) -> SessionSampleResponse:
        """Complete token ids with the session's weights, or those of a saved model."""
        body = await read_body(request, SampleBody)
        prompts = [prompt.to_request() for prompt in body.requests]
        found = await done(
            await run_in_threadpool(sessions.sample, session_id, prompts, body.model)
        )
        return SessionSampleResponse(
            completions=[SampledCompletion(**asdict(item)) for item in found]
        )


async def done(verb: Future[_Result]) -> _Result:
    """Wait for an operation; it continues if the client disconnects."""
    try:
        return await asyncio.shield(asyncio.wrap_future(verb))
    except asyncio.CancelledError:
        if verb.cancelled():
            raise ApiError(503, "The service is stopping.", code="stopping") from None
        raise
