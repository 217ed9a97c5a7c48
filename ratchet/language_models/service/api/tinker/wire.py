"""Mapping of the wire's names to the service's sessions and models."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import Future
from typing import Any, TypeVar

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from ratchet.errors import DataError
from ratchet.language_models.local.rollout_engine import Completion
from ratchet.language_models.service.api.errors import ApiError, from_validation
from ratchet.language_models.service.api.schemas.training import (
    CreateSessionRequest,
    RefusedRequest,
    SaveWeightsRequest,
    SessionObject,
    SessionOperation,
)
from ratchet.language_models.service.api.tinker import requests as wire
from ratchet.language_models.service.api.tinker.messages import PROTOBUF, write_pass, write_samples
from ratchet.language_models.service.service import ModelService
from ratchet.language_models.service.training_sessions.records import TINKER
from ratchet.seeding import derive_seed

SCHEME = "tinker://"
_POLL_SECONDS = 20.0
_KEPT_SAMPLES = 4096
_CONFLICT = 409
_MOST_TOKENS = 2**30  # the model's context is shorter
Json = dict[str, Any]
_SamplesAndPrompt = tuple[list[Completion], list[float] | None]
_Result = TypeVar("_Result")


class Wire:
    """The wire's names for a service's sessions and models."""

    def __init__(self, service: ModelService) -> None:
        self._models = service.models
        self._training = service.training
        self._samples: OrderedDict[str, Future[_SamplesAndPrompt]] = OrderedDict()

    def model(self, name: str) -> str:
        """Return a model's id if it exists."""
        return self._models.get(name).id

    def sampled(self, sampler: str) -> str:
        """Return the model of a sampling session."""
        return self.model(":".join(sampler.split(":")[3:]))

    def session(self, model_id: str) -> SessionObject:
        """Return the session of a trained model."""
        records = self._training.records
        return records.describe(records.of_intent(_intent(model_id)))

    def create(self, model_id: str, base: str, rank: int, seed: int | None) -> None:
        """Open a model's session."""
        drawn = derive_seed(0, "low-rank change", purpose=model_id)
        seed = drawn if seed is None else seed % 2**63
        self._training.create(
            CreateSessionRequest(model=base, lora_rank=rank, seed=seed, intent=_intent(model_id))
        )

    def create_from(self, model_id: str, path: str, resume: bool) -> None:
        """Open the session of a model from saved weights, with the same adapter size."""
        saved = self.model(path.removeprefix(SCHEME))
        if resume:
            self._training.create(
                CreateSessionRequest(model=saved, intent=_intent(model_id), resume=True)
            )
            return
        saver = self._training.records.saver_of(saved)
        self.create(model_id, saved, 0 if saver is None else saver["lora_rank"], None)

    async def save(self, kind: str, body: wire.SaveWeights) -> Json:
        """Return a name for the weights, with the optimizer's state for ``state``."""
        name, with_optimizer = body.path or "sampler", kind == "state"
        verb = SaveWeightsRequest(sequence=body.seq_id - 1, name=name, optimizer=with_optimizer)
        return await self.submit(kind, body.model_id, "save_weights", verb)

    async def refuse(self, model_id: str, seq_id: int, message: str) -> Json:
        """Refuse a numbered request through its future.

        The client has used the number by then: without an operation of that number, the session
        would refuse every later request.
        """
        verb = RefusedRequest(sequence=seq_id - 1, message=message)
        return await self.submit("refused", model_id, "refused", verb)

    async def submit(self, kind: str, model_id: str, name: str, verb: SessionOperation) -> Json:
        """Submit an operation; return the id of its result."""
        session = await run_in_threadpool(self.session, model_id)
        try:
            await run_in_threadpool(self._training.submit, session.id, name, verb)
        except ApiError as error:
            if error.status == _CONFLICT:  # which the client would retry for minutes
                raise ApiError(400, str(error), code=error.code, param=error.param) from error
            raise
        return {"request_id": f"{kind}|{model_id}|{verb.sequence}", "model_id": model_id}

    def sample(self, body: wire.Sample) -> Json:
        """Submit a prompt; equal requests are one."""
        model = self.sampled(body.sampling_session_id)
        request_id = f"samples|{body.sampling_session_id}|{body.seq_id}"
        if request_id not in self._samples:
            try:
                prompts, end_ids = body.to_prompts(_MOST_TOKENS), body.end_ids
            except DataError as error:
                raise ApiError(400, str(error), code="invalid_value") from error
            except ValidationError as error:
                raise from_validation(error.errors(include_url=False)) from error
            self._samples[request_id] = self._training.sample_and_score(
                model,
                [prompt.to_request() for prompt in prompts],
                body.tokens if body.prompt_logprobs else None,
                end_ids,
            )
            while len(self._samples) > _KEPT_SAMPLES:
                self._samples.popitem(last=False)
        ids = [f"{request_id}|{number}" for number in range(body.num_samples)]
        return {"request_id": request_id, "sample_sequence_ids": ids}

    async def retrieve(self, request_id: str) -> Response:
        """Return a result, or that it is pending."""
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
            return _to_wire(kind, name, number, await _within(verb))
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
            raise ApiError(
                410, "These samples are no longer stored; request them again.", code="gone"
            )
        completions, prompt = await _within(waiting)
        return Response(write_samples(completions, prompt), media_type=PROTOBUF)


def _to_wire(kind: str, model_id: str, number: str, answer: Json) -> Response:
    """Return an operation's response in the wire's format."""
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
    return JSONResponse({"path": f"{SCHEME}{answer['model']}"})


def _intent(model_id: str) -> str:
    return f"{TINKER}{model_id}"


async def _within(waiting: Future[_Result]) -> _Result:
    """Wait within the time that a client keeps the connection open."""
    future = asyncio.wrap_future(waiting)
    return await asyncio.wait_for(asyncio.shield(future), _POLL_SECONDS)
