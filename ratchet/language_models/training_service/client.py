"""A training session at Ratchet's service, over HTTP in the JSON form of Tinker's protocol.

Operations are numbered, so that a request whose response was lost, truncated or late is sent again:
the service executes it once. Information that the protocol lacks is in its metadata and in extra
fields: an intent, the exact adapter and seed, masks, several prompts with their own seeds.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import aiohttp
from pydantic import TypeAdapter, ValidationError

from ratchet.language_models.connection import Connection, StatusError
from ratchet.language_models.endpoints import EMBEDDED, Endpoint, ModelAddress
from ratchet.language_models.engines.interface import FinishReason
from ratchet.language_models.engines.rollouts import Completion, SampleRequest
from ratchet.language_models.retrying import RetryPolicy, with_retries
from ratchet.language_models.training_service.interface import (
    ForwardBackward,
    OptimizerSettings,
    SessionSettings,
    TrainingExample,
    TrainingService,
)
from ratchet.language_models.training_service.models import read_model_files, uploaded_model_id

_API = "/api/v1"
_SCHEME = "tinker://"
_NOT_FOUND, _GONE = 404, 410
_SAMPLED_AT_ONCE = 128
_INTEGERS = ("target_tokens", "loss_mask")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Tensor:
    data: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Sequence:
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: FinishReason


_METRICS = TypeAdapter(dict[str, float])
_OUTPUTS = TypeAdapter(list[dict[Literal["logprobs"], _Tensor]])
_SEQUENCES = TypeAdapter(list[_Sequence])
_TEXT = TypeAdapter(str)
_FILES = TypeAdapter(dict[str, str])
_NUMBER = TypeAdapter(int)


class RatchetClient:
    """Calls Ratchet's service in a separate event loop, with retries.

    Parameters
    ----------
    url
        The service's, with or without ``/v1``, or ``"embedded"`` for the one that Ratchet starts.
    api_key_name
        The environment variable that contains the key.
    """

    asks_old = False
    """Whether losses require old log-probabilities even if all ratios are 1."""

    def __init__(
        self,
        url: str,
        api_key_name: str | None = None,
        *,
        timeout_seconds: float = 600.0,
        policy: RetryPolicy | None = None,
    ) -> None:
        if url != EMBEDDED and not url.rstrip("/").endswith("/v1"):
            url = f"{url.rstrip('/')}/v1"
        self.endpoint = Endpoint(url, api_key_name, timeout_seconds=timeout_seconds)
        self._connection = Connection(self.endpoint)
        self._policy = policy or RetryPolicy()
        self._runner = asyncio.Runner()
        # chosen here, so that a repeated request does not open another session
        self._session_id = f"ses-{secrets.token_hex(12)}"
        self._models, self._samples = count(), count()

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        make_form: Callable[[], aiohttp.FormData] | None = None,
        /,
        **fields: TypeAdapter[Any],
    ) -> dict[str, Any]:
        """Retry until a response has these fields; return them.

        A form can be sent only once, so one is created for each attempt.
        """
        return self._call(method, path, body, lambda answer: _read(answer, fields), make_form)

    def result(
        self, path: str, body: Mapping[str, Any], /, **fields: TypeAdapter[Any]
    ) -> dict[str, Any]:
        """Submit an operation, wait for its result, and return its fields."""
        submitted = self.request("POST", f"{_API}/{path}", body, request_id=_TEXT)

        def read(answer: Mapping[str, Any]) -> dict[str, Any] | None:
            if answer.get("type") == "try_again":
                return None
            if "error" in answer:
                raise self._connection.refusal(answer)
            return _read(answer, fields)

        result: dict[str, Any] | None = None
        while result is None:
            result = self._call("POST", f"{_API}/retrieve_future", submitted, read)
        return result

    def open(self, settings: SessionSettings) -> HttpTrainingService:
        """Open a session, or find the one with the same intent."""
        options = {name: getattr(settings, name) for name in ("intent", "seed", "lora_alpha")}
        body: dict[str, Any] = {
            "session_id": self._session_id,
            "model_seq_id": next(self._models),
            "user_metadata": {"ratchet": options},
        }
        if settings.resume:
            path = "load_weights"
            body |= {"path": f"{_SCHEME}{settings.model}", "optimizer": True}
        else:
            path, rank = "create_model", settings.lora_rank
            body |= {"base_model": settings.model, "lora_config": {"rank": rank} if rank else None}
        return HttpTrainingService(self, str(self.result(path, body, model_id=_TEXT)["model_id"]))

    def sample(
        self, sampler: str, model: str, requests: Sequence[SampleRequest]
    ) -> list[Completion]:
        """Sample completions from a saved or initial model, in the order of the requests."""
        return [
            completion
            for start in range(0, len(requests), _SAMPLED_AT_ONCE)
            for completion in self.sample_weights(
                requests[start : start + _SAMPLED_AT_ONCE], model_path=model
            )
        ]

    def sample_weights(
        self, requests: Sequence[SampleRequest], **weights: str | None
    ) -> list[Completion]:
        """Sample with a saved model, ``model_path``, or a session's weights, ``model_id``."""
        named = {"session_id": self._session_id, "sampling_session_seq_id": 0, **weights}
        path = f"{_API}/create_sampling_session"
        sampler = self.request("POST", path, named, sampling_session_id=_TEXT)
        prompts = [asdict(request) for request in requests]
        while True:
            body = {**sampler, "seq_id": next(self._samples), "requests": prompts}
            try:
                sequences = self.result("asample", body, sequences=_SEQUENCES)["sequences"]
            except StatusError as error:
                if error.status != _GONE:  # lost at a restart of the service
                    raise
                continue
            return [Completion(one.tokens, one.logprobs, one.stop_reason) for one in sequences]

    def sampler(self, session: TrainingService) -> str:
        """Return the id of a session whose saved weights are sampled."""
        return session.session_id

    def upload(self, folder: Path, name: str) -> str:
        """Upload a complete model in Hugging Face's layout unless the service has it.

        Returns its id, computed from the name and the files, so that equal files are the same
        model.
        """
        files = read_model_files(folder)
        model = uploaded_model_id(name, files)

        def make_form() -> aiohttp.FormData:
            form = aiohttp.FormData({"name": name})
            for file, content in files.items():
                form.add_field("files", content, filename=file)
            return form

        try:
            return str(self.request("GET", f"models/{quote(model)}", id=_TEXT)["id"])
        except StatusError as error:
            if error.status != _NOT_FOUND:
                raise
        return str(self.request("POST", "training/models", None, make_form, id=_TEXT)["id"])

    def download_tokenizer(self, model: str, folder: Path) -> None:
        """Download a model's tokenizer and its configuration into an existing folder."""
        path = f"training/tokenizer?model={quote(model, safe='')}"
        files: dict[str, str] = self.request("GET", path, files=_FILES)["files"]
        for name, text in files.items():
            (folder / Path(name).name).write_text(text, encoding="utf-8")

    def address(self, model: str) -> ModelAddress:
        """Return a model's address for chat requests."""
        return ModelAddress(str(self.endpoint.url()), model, self.endpoint.api_key())

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        read: Callable[[Mapping[str, Any]], _Result],
        make_form: Callable[[], aiohttp.FormData] | None = None,
    ) -> _Result:
        async def once() -> _Result:
            form = None if make_form is None else make_form()
            answer = await self._connection.request_json(method, path, body, form=form)
            try:
                return read(answer)
            except (KeyError, ValidationError):
                raise self._connection.unreadable(str(answer)) from None

        return self._runner.run(
            with_retries(once, self._policy, f"{self.endpoint.label}: {method} {path}")
        )

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        with ThreadPoolExecutor(1) as thread:  # the caller may be in another event loop
            thread.submit(self._runner.close).result()
        self._runner = asyncio.Runner()


def connect(
    url: str,
    *,
    model: str,
    lora_rank: int = 0,
    lora_alpha: int | None = None,
    seed: int = 0,
    intent: str | None = None,
    resume: bool = False,
    api_key_name: str | None = None,
    timeout_seconds: float = 600.0,
    policy: RetryPolicy | None = None,
) -> HttpTrainingService:
    """Open a session, or reopen that of an intent.

    See :class:`SessionSettings` for the session's settings, :class:`RatchetClient` for the others.
    """
    client = RatchetClient(url, api_key_name, timeout_seconds=timeout_seconds, policy=policy)
    try:
        return client.open(SessionSettings(model, lora_rank, lora_alpha, seed, intent, resume))
    except BaseException:
        client.close()
        raise


class HttpTrainingService:
    """An open session; a context manager, not thread-safe."""

    def __init__(self, client: RatchetClient, session_id: str) -> None:
        self._client = client
        self._session_id = session_id

    @property
    def session_id(self) -> str:
        """The session's id at the service."""
        return self._session_id

    def next_sequence(self) -> int:
        """Return the next sequence number that the session expects."""
        body = {"model_id": self._session_id}
        model_info = self._client.request("POST", f"{_API}/get_info", body, next_seq_id=_NUMBER)
        return int(model_info["next_seq_id"]) - 1

    def forward_backward(
        self,
        examples: Sequence[TrainingExample],
        *,
        loss: str,
        loss_config: Mapping[str, float],
        sequence: int,
    ) -> ForwardBackward:
        """Accumulate the gradient of a loss; see :class:`TrainingService`."""
        return self._pass(examples, loss, loss_config, sequence, backward=True)

    def forward(self, examples: Sequence[TrainingExample], *, sequence: int) -> ForwardBackward:
        """Return log-probabilities; see :class:`TrainingService`."""
        return self._pass(examples, "cross_entropy", {}, sequence, backward=False)

    def optim_step(self, optimizer: OptimizerSettings, *, sequence: int) -> dict[str, float]:
        """Apply the accumulated gradient; see :class:`TrainingService`."""
        params = asdict(optimizer)
        params["grad_clip_norm"] = params.pop("max_grad_norm")
        body = {"adam_params": params}
        metrics: dict[str, float] = self._verb("optim_step", body, sequence, metrics=_METRICS)[
            "metrics"
        ]
        return metrics

    def sample(
        self, requests: Sequence[SampleRequest], *, model: str | None = None
    ) -> list[Completion]:
        """Sample; see :class:`TrainingService`."""
        if model is None:
            return self._client.sample_weights(requests, model_id=self._session_id)
        return self._client.sample_weights(requests, model_path=model)

    def save_weights(self, *, sequence: int, name: str, optimizer: bool = False) -> str:
        """Save the weights as a model; see :class:`TrainingService`."""
        verb = "save_weights" if optimizer else "save_weights_for_sampler"
        path = self._verb(verb, {"path": name}, sequence, path=_TEXT)["path"]
        return str(path).removeprefix(_SCHEME)

    def delete(self) -> None:
        """Delete the session at the service; the models that it saved remain."""
        body = {"model_id": self._session_id, "delete": True}
        self._client.request("POST", f"{_API}/unload_model", body)

    def close(self) -> None:
        """Close the connections; the session remains."""
        self._client.close()

    def __enter__(self) -> HttpTrainingService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pass(
        self,
        examples: Sequence[TrainingExample],
        loss: str,
        config: Mapping[str, float],
        sequence: int,
        *,
        backward: bool,
    ) -> ForwardBackward:
        pass_input = {
            "data": [_datum(example) for example in examples],
            "loss_fn": loss,
            "loss_fn_config": dict(config),
        }
        body = {"forward_backward_input": pass_input, "forward_only": not backward}
        answer = self._verb(
            "forward_backward", body, sequence, metrics=_METRICS, loss_fn_outputs=_OUTPUTS
        )
        metrics = {name.partition(":")[0]: value for name, value in answer["metrics"].items()}
        rows = [(0.0, *output["logprobs"].data) for output in answer["loss_fn_outputs"]]
        return ForwardBackward(metrics, tuple(rows))

    def _verb(
        self, verb: str, body: Mapping[str, Any], sequence: int, /, **fields: TypeAdapter[Any]
    ) -> dict[str, Any]:
        numbered = {"model_id": self._session_id, "seq_id": sequence + 1, **body}
        return self._client.result(verb, numbered, **fields)


def _datum(example: TrainingExample) -> dict[str, Any]:
    """Return an example in the protocol's form: targets, and vectors from the second token on."""
    vectors = {
        "target_tokens": example.tokens,
        "loss_mask": example.loss_mask,
        "weights": example.weights,
        "advantages": example.advantages,
        "logprobs": example.log_probs,
    }
    return {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": example.tokens[:-1]}]},
        "loss_fn_inputs": {
            name: {"data": values[1:], "dtype": "int64" if name in _INTEGERS else "float32"}
            for name, values in vectors.items()
            if values is not None
        },
    }


def _read(answer: Mapping[str, Any], fields: Mapping[str, TypeAdapter[Any]]) -> dict[str, Any]:
    return {name: adapter.validate_python(answer[name]) for name, adapter in fields.items()}
