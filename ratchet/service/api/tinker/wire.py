"""Mapping of the wire's names to the service's sessions and models."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TypeVar

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from ratchet.language_models.engines.rollouts import SampleRequest
from ratchet.seeding import derive_seed
from ratchet.service.api.errors import ApiError, from_validation
from ratchet.service.api.tinker import requests as wire
from ratchet.service.api.tinker.messages import PROTOBUF, write_pass, write_samples
from ratchet.service.api.tinker.runs import Json, TrainingRuns
from ratchet.service.service import ModelService
from ratchet.service.training_sessions.checkpoints import SCHEME
from ratchet.service.training_sessions.operations import (
    CheckpointKind,
    CreateSessionRequest,
    RefusedRequest,
    SessionOperation,
)
from ratchet.service.training_sessions.records import TINKER
from ratchet.service.training_sessions.sessions import Samples

_POLL_SECONDS = 20.0
_KEPT_SAMPLES = 4096
_CONFLICT = 409
_CURRENT = "current"  # marks samplers of a session's current weights
_MOST_TOKENS = 2**30  # the model's context is shorter
_Result = TypeVar("_Result")


class Wire:
    """The wire's names for a service's sessions and models."""

    def __init__(self, service: ModelService) -> None:
        self._models = service.models
        self._training = service.training
        self.runs = TrainingRuns(service)
        self._samples: OrderedDict[str, tuple[Future[Samples], int]] = OrderedDict()

    def sampler(self, request: wire.CreateSamplingSession) -> str:
        """Return the id of a sampling session, which names its weights."""
        if request.model_id is not None:
            kind, weights = _CURRENT, self.runs.session(request.model_id).id
        else:
            kind, weights = "sample", self._saved(request.model_path or request.base_model or "")
        return f"{request.session_id}:{kind}:{request.sampling_session_seq_id}:{weights}"

    def sampled(self, sampler: str) -> str:
        """Return the model of a sampling session."""
        return self._models.get(":".join(sampler.split(":")[3:])).id

    def _saved(self, name: str) -> str:
        """Return the id of a model, from its id or a path of saved weights."""
        return self._models.get(self._training.checkpoints.model_of(name)).id

    def info(self, model_id: str) -> Json:
        """Describe a trained model."""
        session = self.runs.session(model_id)
        adapter = self.runs.adapter(session)
        base = adapter["base_model"]
        return {
            **adapter,
            "type": "get_info",
            "model_id": model_id,
            "model_data": {"model_name": base, "tokenizer_id": base},
            "model_name": base,
            "next_seq_id": session.next_sequence + 1,
        }

    def create(self, request: wire.CreateModel) -> Json:
        """Open a model's session."""
        lora = request.lora_config
        return self._create(
            request,
            model=self._saved(request.base_model),
            lora_rank=0 if lora is None else lora.rank,
            seed=None if lora is None else lora.seed,
        )

    def load(self, request: wire.ModelFromWeights) -> Json:
        """Open the session of a model from saved weights, with the same adapter size."""
        saved = self._saved(request.path)
        if request.optimizer or self._training.saves_state(self._models.get(saved)):
            return self._create(
                request, model=saved, resume=True, new_optimizer=not request.optimizer
            )
        saver = self._training.records.saver_of(saved)
        rank = 0 if saver is None else saver["lora_rank"]
        return self._create(request, model=saved, lora_rank=rank)

    def _create(
        self,
        request: wire.NewModel,
        *,
        model: str,
        lora_rank: int = 0,
        seed: int | None = None,
        resume: bool = False,
        new_optimizer: bool = False,
    ) -> Json:
        model_id, options = request.model_id, request.options or wire.SessionOptions()
        if request.options is not None:
            seed = options.seed
        elif seed is None:
            seed = derive_seed(0, "low-rank change", purpose=model_id)
        session = self._training.create(
            CreateSessionRequest(
                model=model,
                lora_rank=lora_rank,
                lora_alpha=options.lora_alpha,
                seed=seed % 2**63,
                intent=options.intent or f"{TINKER}{model_id}",
                resume=resume,
                new_optimizer=new_optimizer,
                metadata=request.metadata,
            )
        )
        if request.options is not None:
            model_id = session.id
        kind = "loaded" if isinstance(request, wire.ModelFromWeights) else "created"
        return {"request_id": f"{kind}|{model_id}|0", "model_id": model_id}

    async def unload(self, request: wire.UnloadModel) -> Json:
        """Delete a model's session if requested; the models that it saved remain."""
        if request.delete:
            session = await run_in_threadpool(self.runs.session, request.model_id)
            await _until(self._training.delete(session.id), None)
        return {"request_id": f"unloaded|{request.model_id}|0", "model_id": request.model_id}

    async def save(self, kind: CheckpointKind, body: wire.SaveWeights) -> Json:
        """Save weights under a name, or for a sampler."""
        result = "sampler" if body.path is None else "saved"
        return await self.submit(result, body.model_id, "save_weights", body.to_operation(kind))

    async def load_into(self, request: wire.LoadInto) -> Json:
        """Replace the weights of a trained model by saved ones."""
        verb = request.to_operation()
        return await self.submit("loaded-into", request.model_id, "load_weights", verb)

    async def refuse(self, model_id: str, seq_id: int, message: str) -> Json:
        """Refuse a numbered request through its future.

        The client has used the number by then: without an operation of that number, the session
        would refuse every later request.
        """
        verb = RefusedRequest(sequence=seq_id - 1, message=message)
        return await self.submit("refused", model_id, "refused", verb)

    async def submit(self, kind: str, model_id: str, name: str, verb: SessionOperation) -> Json:
        """Submit an operation; return the id of its result."""
        session = await run_in_threadpool(self.runs.session, model_id)
        try:
            await run_in_threadpool(
                self._training.submit, session.id, name, verb, skips=wire.is_run(model_id)
            )
        except ApiError as error:
            if error.status == _CONFLICT:  # which the client would retry for minutes
                raise ApiError(400, str(error), code=error.code, param=error.param) from error
            raise
        return {"request_id": f"{kind}|{model_id}|{verb.sequence}", "model_id": model_id}

    def sample(self, body: wire.Sample) -> Json:
        """Submit prompts; equal requests are one."""
        request_id = f"samples|{body.sampling_session_id}|{body.seq_id}"
        try:
            prompts = body.to_prompts(_MOST_TOKENS)
        except ValidationError as error:
            raise from_validation(error.errors(include_url=False)) from error
        if request_id not in self._samples:
            requests = [prompt.to_request() for prompt in prompts]
            self._samples[request_id] = self._submit(body, requests), len(requests)
            while len(self._samples) > 1 and self._num_samples() > _KEPT_SAMPLES:
                self._samples.popitem(last=False)
        ids = [f"{request_id}|{number}" for number in range(len(prompts))]
        return {"request_id": request_id, "sample_sequence_ids": ids}

    def _submit(self, body: wire.Sample, requests: Sequence[SampleRequest]) -> Future[Samples]:
        sampler = body.sampling_session_id
        if sampler.split(":")[1:2] == [_CURRENT]:
            return self._training.sample(sampler.rpartition(":")[2], requests)
        prompt = body.prompt.tokens if body.prompt_logprobs else None
        return self._training.sample_and_score(self.sampled(sampler), requests, prompt, body.stops)

    def _num_samples(self) -> int:
        return sum(count for _, count in self._samples.values())

    async def retrieve(self, request_id: str, *, as_protobuf: bool) -> Response:
        """Return a result, or that it is pending."""
        kind, _, rest = request_id.partition("|")
        name, _, number = rest.rpartition("|")
        try:
            if kind == "samples":
                return await self._retrieve_samples(request_id, as_protobuf)
            if kind in ("created", "unloaded"):
                return JSONResponse({"model_id": name})
            if kind == "loaded":
                return JSONResponse({"type": "load_weights", "model_id": name})
            session = await run_in_threadpool(self.runs.session, name)
            answer = await _until(self._training.again(session.id, int(number)), _POLL_SECONDS)
            return _to_wire(kind, name, number, answer, as_protobuf=as_protobuf)
        except TimeoutError:
            waiting = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return JSONResponse(waiting)
        except ApiError as error:
            if error.status >= 500 or error.status == 410:
                raise
            return JSONResponse({"error": str(error), "category": "user"})

    async def _retrieve_samples(self, request_id: str, as_protobuf: bool) -> Response:
        if request_id not in self._samples:
            raise ApiError(
                410, "These samples are no longer stored; request them again.", code="gone"
            )
        completions, prompt = await _until(self._samples[request_id][0], _POLL_SECONDS)
        if as_protobuf:
            return Response(write_samples(completions, prompt), media_type=PROTOBUF)
        sequences = [
            {"stop_reason": each.finish_reason, "tokens": each.tokens, "logprobs": each.log_probs}
            for each in completions
        ]
        known = None if prompt is None else [None, *prompt[1:]]  # the first has no predecessor
        return JSONResponse({"type": "sample", "sequences": sequences, "prompt_logprobs": known})


def _to_wire(kind: str, model_id: str, number: str, answer: Json, *, as_protobuf: bool) -> Response:
    """Return an operation's response in the wire's format."""
    if kind == "passed":
        metrics = {
            f"{name}:{'sum' if name in ('loss', 'tokens') else 'mean'}": value
            for name, value in answer["metrics"].items()
        }
        log_probs = [values[1:] for values in answer["log_probs"]]  # the first token is no target
        if as_protobuf:
            return Response(write_pass(metrics, log_probs), media_type=PROTOBUF)
        outputs = [{"logprobs": {"data": row, "dtype": "float32"}} for row in log_probs]
        return JSONResponse(
            {
                "loss_fn_output_type": "ArrayRecord",
                "loss_fn_outputs": outputs,
                "metrics": metrics,
            }
        )
    if kind == "loaded-into":
        return JSONResponse({"type": "load_weights", "model_id": model_id})
    if kind == "stepped":
        return JSONResponse({"metrics": answer["metrics"]})
    if kind == "sampler":
        sampler = f"{model_id.partition(':')[0]}:sample:verb-{number}:{answer['model']}"
        return JSONResponse({"sampling_session_id": sampler})
    return JSONResponse({"path": f"{SCHEME}{answer.get('path', answer['model'])}"})


async def _until(waiting: Future[_Result], seconds: float | None) -> _Result:
    """Wait for a result for the time that a client keeps the connection open.

    The operation continues after that time, or if the client disconnects.
    """
    try:
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(waiting)), seconds)
    except asyncio.CancelledError:
        if waiting.cancelled():
            raise ApiError(503, "The service is stopping.", code="stopping") from None
        raise
