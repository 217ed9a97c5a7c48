"""Backends of remote trainers: training sessions, sampling, tokenizers."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.errors import ParameterError
from ratchet.language_models.endpoints import EMBEDDED, Endpoint, ModelAddress
from ratchet.language_models.engines.tokenizer import ChatTokenizer
from ratchet.language_models.local.model_locations import find_model
from ratchet.language_models.training_service.client import (
    HttpTrainingService,
    SyncClient,
    open_session,
)
from ratchet.language_models.training_service.models import download_tokenizer, upload_model
from ratchet.language_models.training_service.tinker_client import (
    TinkerTrainingService,
    open_tinker_client,
    open_tinker_sampler,
    open_tinker_session,
    sample_with_tinker,
)
from ratchet.parameters.language import TINKER
from trainers.language.remote_settings import ServiceConfig

if TYPE_CHECKING:
    from ratchet.language_models.engines.rollouts import Completion, SampleRequest
    from ratchet.language_models.training_service.interface import TrainingService
    from ratchet.parameters.language import TrainServiceParameters

_SAMPLED_AT_ONCE = 128


class ServiceBackend(ABC):
    """A training service."""

    asks_old: ClassVar[bool] = False
    """Whether losses require old log-probabilities even if all ratios are 1."""
    names_only_bases: ClassVar[bool] = False
    """Whether tokenizers are identified by the base model's name only."""

    @abstractmethod
    def tokenizer(self, model: str) -> ChatTokenizer:
        """Return a model's tokenizer."""

    @abstractmethod
    def upload(self, folder: Path, name: str) -> str:
        """Upload a model to the service; return its id."""

    @abstractmethod
    def open(self, asked: Mapping[str, Any]) -> TrainingService:
        """Open a session, or find the one with the same intent.

        ``asked``: the initial ``model``, whether its optimizer state is restored (``resume``),
        ``seed``, ``lora_rank``, ``lora_alpha`` and ``intent``.
        """

    @abstractmethod
    def sampler(self, session: TrainingService) -> str:
        """Return the id of a sampler with the weights that a session has saved."""

    @abstractmethod
    def sample(
        self, sampler: str, model: str, requests: Sequence[SampleRequest]
    ) -> list[Completion]:
        """Sample completions from a model; without a sampler, from an initial one."""

    @abstractmethod
    def address(self, model: str) -> ModelAddress:
        """Return a model's address for chat requests."""

    @abstractmethod
    def close(self) -> None:
        """Release connections."""


class RatchetBackend(ServiceBackend):
    """A Ratchet model service: the one configured, or the one that a run starts."""

    def __init__(self, url: str, api_key_name: str | None) -> None:
        self._url, self._key = url, api_key_name
        self._open_client: SyncClient | None = None

    @property
    def _client(self) -> SyncClient:
        if self._open_client is None:
            self._open_client = SyncClient(self._url, self._key)
        return self._open_client

    def tokenizer(self, model: str) -> ChatTokenizer:
        """Return a model's tokenizer, downloaded from the service."""
        with tempfile.TemporaryDirectory(prefix="ratchet-tokenizer-") as name:
            download_tokenizer(self._client, model, Path(name))
            return ChatTokenizer(Path(name))

    def upload(self, folder: Path, name: str) -> str:
        """Upload a model unless the service has it; return its id."""
        return upload_model(self._client, folder, name=name)

    def open(self, asked: Mapping[str, Any]) -> HttpTrainingService:
        """Open a session, or find the one with the same intent."""
        return open_session(self._client, asked)

    def sampler(self, session: TrainingService) -> str:
        """Return the session's id."""
        return session.session_id

    def sample(
        self, sampler: str, model: str, requests: Sequence[SampleRequest]
    ) -> list[Completion]:
        """Sample a saved model."""
        completions: list[Completion] = []
        for start in range(0, len(requests), _SAMPLED_AT_ONCE):
            some = requests[start : start + _SAMPLED_AT_ONCE]
            completions += self._client.sample(some, model_path=model)
        return completions

    def address(self, model: str) -> ModelAddress:
        """Return a model's address for chat requests."""
        endpoint = self._client.endpoint
        return ModelAddress(str(endpoint.url()), model, endpoint.api_key())

    def close(self) -> None:
        """Release connections; models and sessions at the service remain."""
        if self._open_client is not None:
            self._open_client.close()
        self._open_client = None


class TinkerBackend(ServiceBackend):
    """A ``tinker`` service, called through its own client.

    Parameters
    ----------
    url
        The service's URL; None for the client's default.
    tokenizer
        The folder of the model's tokenizer; None to use the model's name on the hub.
    """

    asks_old = True
    names_only_bases = True

    def __init__(
        self, url: str | None, api_key_name: str | None, tokenizer: str | None, base_dir: Path
    ) -> None:
        self._url, self._key = url, api_key_name
        self._tokenizer, self._base_dir = tokenizer, base_dir

    @cached_property
    def _client(self) -> Any:  # noqa: ANN401 -- tinker's ServiceClient
        url = self._url
        if url == EMBEDDED:
            url = str(Endpoint(url).url())
        if url is not None:
            url = url.rstrip("/").removesuffix("/v1")
        return open_tinker_client(url, self._key, of_run=True)

    def tokenizer(self, model: str) -> ChatTokenizer:
        """Return the tokenizer of the experiment's configuration: the service provides none."""
        return ChatTokenizer(find_model(self._tokenizer or model, self._base_dir))

    def upload(self, folder: Path, name: str) -> str:
        """Refuse: the service accepts no uploads."""
        raise ParameterError(
            f"agents.NAME.model: got {name!r} of {folder}, expected the name of one of the"
            " service's base models: the backend 'tinker' accepts no uploads."
        )

    def open(self, asked: Mapping[str, Any]) -> TinkerTrainingService:
        """Open a new session: the service has no intents; sessions end with this process."""
        return open_tinker_session(
            self._client,
            model=asked["model"],
            lora_rank=asked["lora_rank"],
            seed=asked["seed"],
            resume=asked["resume"],
        )

    def sampler(self, session: TrainingService) -> str:
        """Save weights for sampling, separate from those for training."""
        return session.save_weights(sequence=session.next_sequence(), name="sampled")

    def sample(
        self, sampler: str, model: str, requests: Sequence[SampleRequest]
    ) -> list[Completion]:
        """Sample with saved weights, or with the base model if there are none."""
        where = {"model_path": sampler} if sampler else {"base_model": model}
        return sample_with_tinker(open_tinker_sampler(self._client, **where), requests)

    def address(self, model: str) -> ModelAddress:
        """Refuse: such models have no known address for chat requests."""
        raise ParameterError("evaluation.suites: expected none with the backend 'tinker'.")

    def close(self) -> None:
        """Release connections; models and sessions at the service remain."""
        client = vars(self).pop("_client", None)
        if client is not None:
            client.holder.close()


def make_backend(service: TrainServiceParameters, base_dir: str | None) -> ServiceBackend:
    """Return the backend of an experiment's service, without calling it.

    A tokenizer's folder starts from ``base_dir``.
    """
    if service.backend == TINKER:
        tokenizer = ServiceConfig.of(service).tokenizer
        return TinkerBackend(service.url, service.api_key_name, tokenizer, Path(base_dir or "."))
    return RatchetBackend(service.url or EMBEDDED, service.api_key_name)
