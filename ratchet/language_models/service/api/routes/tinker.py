"""``/api/v1``: what the public ``tinker`` client asks for, done by training sessions.

A model to train is a session whose intent is the model's id. What a verb will give is named by the
verb, so that it can be asked for after a restart; of samples that a restart has cost the client is
told, and asks anew.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from concurrent.futures import Future
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from ratchet.errors import DataError
from ratchet.language_models.service.api.errors import ApiError, from_validation
from ratchet.language_models.service.api.schemas.training import (
    CreateSessionRequest,
    OptimStepRequest,
    SaveWeightsRequest,
    SessionObject,
    Verb,
)
from ratchet.language_models.service.api.tinker import requests as wire
from ratchet.language_models.service.api.tinker.messages import (
    PROTOBUF,
    read_pass,
    write_pass,
    write_samples,
)
from ratchet.language_models.service.service import ModelService
from ratchet.language_models.training_service.interface import Completion
from ratchet.seeding import derive_seed

logger = logging.getLogger(__name__)

_SCHEME = "tinker://"
_POLL_SECONDS = 20.0
_KEPT_SAMPLES = 4096
_CONFLICT = 409
_MOST_TOKENS = 2**30  # the model's context is shorter
_Asked = TypeVar("_Asked", bound=wire.WireModel)
_Json = dict[str, Any]
_SamplesAndPrompt = tuple[list[Completion], list[float] | None]


def tinker_routes(service: ModelService) -> APIRouter:
    """Make the routes of the wire."""
    router = APIRouter(prefix="/api/v1", include_in_schema=False)
    wired = _Wire(service)
    _add_service(router, service)
    _add_models(router, wired)
    _add_verbs(router, wired)
    _add_sampling(router, wired)

    @router.post("/retrieve_future")
    async def retrieve_future(request: Request) -> Response:
        asked = await _read(request, wire.RetrieveFuture)
        return await wired.retrieve(asked.request_id)

    return router


def _add_service(router: APIRouter, service: ModelService) -> None:
    @router.get("/healthz")
    def health() -> _Json:
        return {"status": "ok"}

    @router.get("/get_server_capabilities")
    def capabilities() -> _Json:
        names = [model.id for model in service.models.list().data]
        models = [{"model_name": n, "trainable": True, "sampleable": True} for n in names]
        return {"supported_models": models}

    @router.post("/client/config")
    def client_config() -> _Json:
        return {"parallel_fwdbwd_chunks": False, "proto_compress_fwdbwd": False}

    @router.post("/client/dynamic_config")
    def dynamic_config() -> _Json:
        return {}

    @router.post("/create_session")
    def create_session() -> _Json:
        return {"type": "create_session", "session_id": f"ses-{secrets.token_hex(12)}"}

    @router.post("/session_heartbeat")
    def heartbeat() -> _Json:
        return {"type": "session_heartbeat"}

    @router.post("/telemetry")
    def telemetry() -> _Json:
        return {"status": "accepted"}

    @router.post("/cancel_future", status_code=204)
    def cancel() -> None:
        """Samples are short; they are made to their end."""


def _add_models(router: APIRouter, wired: _Wire) -> None:
    @router.post("/create_model")
    async def create_model(request: Request) -> _Json:
        asked = await _read(request, wire.CreateModel)
        if asked.optimizer_config.get("type") != "adamw":
            raise ApiError(400, "optimizer_config: expected the type 'adamw'.")
        lora = asked.lora_config
        if lora is not None and not (lora.train_mlp and lora.train_attn):
            raise ApiError(400, "lora_config: adapters are to all projections of a layer.")
        rank = 0 if lora is None else lora.rank
        seed = None if lora is None else lora.seed
        model_id = f"{asked.session_id}:train:{asked.model_seq_id}"
        await run_in_threadpool(wired.create, model_id, asked.base_model, rank, seed)
        return {"request_id": f"created|{model_id}|0", "model_id": model_id}

    @router.post("/load_weights")
    async def load_weights(request: Request) -> _Json:
        asked = await _read(request, wire.LoadWeights)
        model_id = f"{asked.session_id}:train:{asked.model_seq_id}"
        await run_in_threadpool(wired.create_from, model_id, asked.path)
        return {"request_id": f"loaded|{model_id}|0", "model_id": model_id}

    @router.post("/get_info")
    async def get_info(request: Request) -> _Json:
        asked = await _read(request, wire.OfModel)
        session = wired.session(asked.model_id)
        named = {"model_name": session.model, "tokenizer_id": session.model}
        return {
            "type": "get_info",
            "model_id": asked.model_id,
            "model_data": named,
            "model_name": session.model,
            "is_lora": session.lora_rank > 0,
            "lora_rank": session.lora_rank or None,
        }

    @router.post("/unload_model")
    async def unload_model(request: Request) -> _Json:
        asked = await _read(request, wire.OfModel)
        return {"request_id": f"unloaded|{asked.model_id}|0", "model_id": asked.model_id}


def _add_verbs(router: APIRouter, wired: _Wire) -> None:
    @router.post("/forward_backward")
    async def forward_backward(request: Request) -> _Json:
        try:
            message = read_pass(await request.body())
            verb = wire.to_pass(message)
        except DataError as error:
            raise ApiError(400, str(error), code="invalid_value") from error
        except ValidationError as error:
            raise from_validation(error.errors(include_url=False)) from error
        return await wired.submit("passed", message.model_id, "forward_backward", verb)

    @router.post("/optim_step")
    async def optim_step(request: Request) -> _Json:
        asked = await _read(request, wire.OptimStep)
        step = OptimStepRequest(
            sequence=asked.seq_id - 1, optimizer=asked.adam_params.to_optimizer()
        )
        return await wired.submit("stepped", asked.model_id, "optim_step", step)

    @router.post("/save_weights")
    async def save_weights(request: Request) -> _Json:
        return await wired.save("saved", await _read(request, wire.SaveWeights))

    @router.post("/save_weights_for_sampler")
    async def save_for_sampler(request: Request) -> _Json:
        asked = await _read(request, wire.SaveWeights)
        return await wired.save("sampler" if asked.path is None else "saved", asked)


def _add_sampling(router: APIRouter, wired: _Wire) -> None:
    @router.post("/create_sampling_session")
    async def create_sampling_session(request: Request) -> _Json:
        asked = await _read(request, wire.CreateSamplingSession)
        path = (asked.model_path or "").removeprefix(_SCHEME)
        model = await run_in_threadpool(wired.model, path or asked.base_model or "")
        sampler = f"{asked.session_id}:sample:{asked.sampling_session_seq_id}:{model}"
        return {"type": "create_sampling_session", "sampling_session_id": sampler}

    @router.get("/samplers/{sampler:path}")
    def get_sampler(sampler: str) -> _Json:
        model = wired.sampled(sampler)
        return {"sampler_id": sampler, "base_model": model, "model_path": f"{_SCHEME}{model}"}

    @router.post("/asample")
    async def asample(request: Request) -> _Json:
        asked = await _read(request, wire.Sample)
        return await run_in_threadpool(wired.sample, asked)


class _Wire:
    """The wire's names for what the service has."""

    def __init__(self, service: ModelService) -> None:
        self._models = service.models
        self._training = service.training
        self._samples: OrderedDict[str, Future[_SamplesAndPrompt]] = OrderedDict()

    def model(self, name: str) -> str:
        """Return a model's id if there is one."""
        return self._models.get(name).id

    def sampled(self, sampler: str) -> str:
        """Return the model of a sampling session."""
        return self.model(":".join(sampler.split(":")[3:]))

    def session(self, model_id: str) -> SessionObject:
        """Return the session of a model that is trained."""
        records = self._training.records
        return records.describe(records.of_intent(_intent(model_id)))

    def create(self, model_id: str, base: str, rank: int, seed: int | None) -> None:
        """Open a model's session."""
        drawn = derive_seed(0, "low-rank change", purpose=model_id)
        seed = drawn if seed is None else seed % 2**63
        self._training.create(
            CreateSessionRequest(model=base, lora_rank=rank, seed=seed, intent=_intent(model_id))
        )

    def create_from(self, model_id: str, path: str) -> None:
        """Open the session of a model that starts from saved weights, with an adapter as theirs."""
        saved = self._models.get(path.removeprefix(_SCHEME))
        rank = self._training.records.rank_of(saved.id)
        self.create(model_id, saved.id, rank, None)

    async def save(self, kind: str, asked: wire.SaveWeights) -> _Json:
        """Take a name for the weights."""
        try:
            verb = SaveWeightsRequest(sequence=asked.seq_id - 1, name=asked.path or "sampler")
        except ValidationError as error:
            raise from_validation(error.errors(include_url=False)) from error
        return await self.submit(kind, asked.model_id, "save_weights", verb)

    async def submit(self, kind: str, model_id: str, name: str, verb: Verb) -> _Json:
        """Take a verb; return the name of what it will give."""
        session = await run_in_threadpool(self.session, model_id)
        try:
            await run_in_threadpool(self._training.submit, session.id, name, verb)
        except ApiError as error:
            if error.status == _CONFLICT:  # which the client would try again for minutes
                raise ApiError(400, str(error), code=error.code, param=error.param) from error
            raise
        return {"request_id": f"{kind}|{model_id}|{verb.sequence}", "model_id": model_id}

    def sample(self, asked: wire.Sample) -> _Json:
        """Take a prompt; the same request is one."""
        model = self.sampled(asked.sampling_session_id)
        request_id = f"samples|{asked.sampling_session_id}|{asked.seq_id}"
        if request_id not in self._samples:
            try:
                prompts = asked.to_prompts(_MOST_TOKENS)
            except (DataError, ValidationError) as error:
                raise ApiError(400, str(error), code="invalid_value") from error
            self._samples[request_id] = self._training.sample_and_score(
                model,
                [prompt.to_request() for prompt in prompts],
                asked.tokens if asked.prompt_logprobs else None,
            )
            while len(self._samples) > _KEPT_SAMPLES:
                self._samples.popitem(last=False)
        ids = [f"{request_id}|{number}" for number in range(asked.num_samples)]
        return {"request_id": request_id, "sample_sequence_ids": ids}

    async def retrieve(self, request_id: str) -> Response:
        """Return what was asked for, or that it is not there yet."""
        kind, _, rest = request_id.partition("|")
        name, _, number = rest.rpartition("|")
        try:
            if kind == "samples":
                return await self._retrieve_samples(request_id)
            if kind in ("created", "unloaded"):
                return JSONResponse({"model_id": name})
            if kind == "loaded":
                return JSONResponse({"type": "load_weights", "model_id": name})
            session = await run_in_threadpool(self.session, name)
            verb = self._training.again(session.id, int(number))
            return _told(kind, name, number, await _within(verb))
        except TimeoutError:
            waiting = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return JSONResponse(waiting, status_code=408)
        except ApiError as error:
            if error.status >= 500 or error.status == 410:
                raise
            return JSONResponse({"error": str(error), "category": "user"})

    async def _retrieve_samples(self, request_id: str) -> Response:
        waiting = self._samples.get(request_id)
        if waiting is None:
            raise ApiError(410, "These samples are gone; ask anew.", code="gone")
        completions, prompt = await _within(waiting)
        return Response(write_samples(completions, prompt), media_type=PROTOBUF)


def _told(kind: str, model_id: str, number: str, answer: _Json) -> Response:
    """Return the answer to a verb as the wire has it."""
    if kind == "passed":
        metrics = {
            f"{name}:{'sum' if name in ('loss', 'tokens') else 'mean'}": value
            for name, value in answer["metrics"].items()
        }
        log_probs = [values[1:] for values in answer["log_probs"]]  # the first token is no target
        return Response(write_pass(metrics, log_probs), media_type=PROTOBUF)
    if kind == "stepped":
        return JSONResponse({"metrics": answer["metrics"]})
    if kind == "sampler":
        sampler = f"{model_id.partition(':')[0]}:sample:verb-{number}:{answer['model']}"
        return JSONResponse({"sampling_session_id": sampler})
    return JSONResponse({"path": f"{_SCHEME}{answer['model']}"})


def _intent(model_id: str) -> str:
    return f"tinker:{model_id}"


_Result = TypeVar("_Result")


async def _within(waiting: Future[_Result]) -> _Result:
    """Wait for as long as a client holds the line."""
    future = asyncio.wrap_future(waiting)
    return await asyncio.wait_for(asyncio.shield(future), _POLL_SECONDS)


async def _read(request: Request, schema: type[_Asked]) -> _Asked:
    try:
        return schema.model_validate_json(await request.body())
    except ValidationError as error:
        raise from_validation(error.errors(include_url=False)) from error
