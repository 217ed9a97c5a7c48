"""``/api/v1``: the API of the public ``tinker`` client, implemented by training sessions.

A trained model is a session whose intent is the model's id. An operation's result has an id derived
from the operation, so that it can be retrieved after a restart. If a restart lost samples, the
client gets an error and requests them again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from ratchet.errors import DataError
from ratchet.language_models.training_service.interface import RUN_METADATA
from ratchet.service.api.errors import ApiError, from_validation
from ratchet.service.api.tinker import requests as wire
from ratchet.service.api.tinker.messages import PROTOBUF, as_json, read_pass
from ratchet.service.api.tinker.runs import Json
from ratchet.service.api.tinker.wire import Wire
from ratchet.service.service import ModelService
from ratchet.service.training_sessions.operations import (
    CheckpointKind,
    OptimStepRequest,
)
from ratchet.service.training_sessions.records import RUN_SESSION

_Asked = TypeVar("_Asked", bound=wire.WireModel)


def tinker_routes(service: ModelService) -> APIRouter:
    """Create the routes."""
    router = APIRouter(prefix="/api/v1", include_in_schema=False)
    wired = Wire(service)
    _add_service(router, service)
    _add_models(router, wired)
    _add_verbs(router, wired)
    _add_sampling(router, service, wired)

    @router.post("/retrieve_future")
    async def retrieve_future(request: Request) -> Response:
        payload = await _read(request, wire.RetrieveFuture)
        as_protobuf = PROTOBUF in request.headers.get("accept", "")
        return await wired.retrieve(payload.request_id, as_protobuf=as_protobuf)

    return router


def _add_service(router: APIRouter, service: ModelService) -> None:
    @router.get("/healthz")
    def health() -> Json:
        return {"status": "ok"}

    @router.get("/get_server_capabilities")
    def capabilities() -> Json:
        names = [model.id for model in service.models.list().data]
        models = [{"model_name": n, "trainable": True, "sampleable": True} for n in names]
        return {"supported_models": models}

    @router.post("/client/config")
    def client_config() -> Json:
        return {"parallel_fwdbwd_chunks": False, "proto_compress_fwdbwd": False}

    @router.post("/client/dynamic_config")
    def dynamic_config() -> Json:
        return {}

    @router.post("/create_session")
    async def create_session(request: Request) -> Json:
        payload = await _read(request, wire.CreateSession)
        kind = RUN_SESSION if RUN_METADATA in (payload.user_metadata or {}) else "ses-"
        return {"type": "create_session", "session_id": f"{kind}{secrets.token_hex(12)}"}

    @router.post("/session_heartbeat")
    def heartbeat() -> Json:
        return {"type": "session_heartbeat"}

    @router.post("/telemetry")
    def telemetry() -> Json:
        return {"status": "accepted"}

    @router.post("/sessions/{session}/finish", status_code=204)
    def finish(session: str) -> None:
        """Do nothing: a client can continue its sessions at any time."""

    @router.post("/cancel_future", status_code=204)
    def cancel() -> None:
        """Do nothing: samples are short and always completed."""


def _add_models(router: APIRouter, wired: Wire) -> None:
    @router.post("/create_model")
    async def create_model(request: Request) -> Json:
        payload = await _read(request, wire.CreateModel)
        if payload.optimizer_config.get("type") != "adamw":
            raise ApiError(400, "optimizer_config: expected type 'adamw'.")
        lora = payload.lora_config
        if lora is not None and not (lora.train_mlp and lora.train_attn):
            raise ApiError(400, "lora_config: adapters must cover all projections of a layer.")
        return await run_in_threadpool(wired.create, payload)

    @router.post("/load_weights")
    async def load_weights(request: Request) -> Json:
        if "model_id" in await _fields(request):
            return await _numbered(request, wire.LoadInto, wired.load_into, wired)
        return await run_in_threadpool(wired.load, await _read(request, wire.ModelFromWeights))

    @router.post("/get_info")
    async def get_info(request: Request) -> Json:
        payload = await _read(request, wire.ModelScopedRequest)
        return await run_in_threadpool(wired.info, payload.model_id)

    @router.post("/unload_model")
    async def unload_model(request: Request) -> Json:
        return await wired.unload(await _read(request, wire.UnloadModel))


def _add_verbs(router: APIRouter, wired: Wire) -> None:
    async def submit(payload: wire.ForwardBackward) -> Json:
        verb = payload.to_operation()
        return await wired.submit("passed", payload.model_id, "forward_backward", verb)

    @router.post("/forward_backward")
    async def forward_backward(request: Request) -> Json:
        if not request.headers.get("content-type", "").startswith(PROTOBUF):
            return await _numbered(request, wire.ForwardBackward, submit, wired)
        try:
            message = read_pass(await request.body())
        except DataError as error:
            raise ApiError(400, str(error), code="invalid_value") from error
        numbered = _checked(wire.Numbered, {"model_id": message.model_id, "seq_id": message.seq_id})
        with _problems() as problems:
            return await submit(wire.ForwardBackward.model_validate(as_json(message)))
        return await wired.refuse(numbered.model_id, numbered.seq_id, problems[0])

    @router.post("/optim_step")
    async def optim_step(request: Request) -> Json:
        async def step(payload: wire.OptimStep) -> Json:
            verb = OptimStepRequest(
                sequence=payload.seq_id - 1, optimizer=payload.adam_params.to_optimizer()
            )
            return await wired.submit("stepped", payload.model_id, "optim_step", verb)

        return await _numbered(request, wire.OptimStep, step, wired)

    async def save(request: Request, kind: CheckpointKind) -> Json:
        return await _numbered(
            request, wire.SaveWeights, lambda payload: wired.save(kind, payload), wired
        )

    @router.post("/save_weights")
    async def save_weights(request: Request) -> Json:
        return await save(request, "weights")

    @router.post("/save_weights_for_sampler")
    async def save_for_sampler(request: Request) -> Json:
        return await save(request, "sampler_weights")

    @router.post("/save_weights_external")
    async def save_external(request: Request) -> Json:
        return await save(request, "external_weights")


async def _numbered(
    request: Request,
    schema: type[_Asked],
    do: Callable[[_Asked], Awaitable[Json]],
    wired: Wire,
) -> Json:
    """Execute a numbered request; refuse it through its future if it does not fit its schema."""
    body = await request.body()
    with _problems() as problems:
        return await do(schema.model_validate_json(body))
    numbered = await _read(request, wire.Numbered)
    return await wired.refuse(numbered.model_id, numbered.seq_id, problems[0])


@contextmanager
def _problems() -> Iterator[list[str]]:
    """Collect the message of an invalid request instead of raising it."""
    problems: list[str] = []
    try:
        yield problems
    except DataError as error:
        problems.append(str(error))
    except ValidationError as error:
        problems.append(str(from_validation(error.errors(include_url=False))))


def _add_sampling(router: APIRouter, service: ModelService, wired: Wire) -> None:
    @router.post("/create_sampling_session")
    async def create_sampling_session(request: Request) -> Json:
        payload = await _read(request, wire.CreateSamplingSession)
        sampler = await run_in_threadpool(wired.sampler, payload)
        return {"type": "create_sampling_session", "sampling_session_id": sampler}

    @router.get("/samplers/{sampler:path}")
    def get_sampler(sampler: str) -> Json:
        model = wired.sampled(sampler)
        return {
            "sampler_id": sampler,
            "base_model": service.models.root_of(model),
            "model_path": wired.runs.path_of(model),
        }

    @router.post("/asample")
    async def asample(request: Request) -> Json:
        payload = await _read(request, wire.Sample)
        return await run_in_threadpool(wired.sample, payload)


async def _fields(request: Request) -> Collection[str]:
    """Return the names in a JSON object; of other bodies, which their schema refuses, none."""
    try:
        content = json.loads(await request.body())
    except ValueError:
        return ()
    return content if isinstance(content, dict) else ()


async def _read(request: Request, schema: type[_Asked]) -> _Asked:
    return _checked(schema, await request.body())


def _checked(schema: type[_Asked], content: bytes | dict[str, object]) -> _Asked:
    try:
        if isinstance(content, bytes):
            return schema.model_validate_json(content)
        return schema.model_validate(content)
    except ValidationError as error:
        raise from_validation(error.errors(include_url=False)) from error
