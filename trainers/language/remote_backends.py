"""Where a remote trainer's model is: sessions that train it, answers, its tokenizer."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.errors import ParameterError
from ratchet.language_models.endpoints import EMBEDDED, Endpoint, ModelAddress
from ratchet.language_models.local.model_locations import find_model
from ratchet.language_models.service.engine.tokenizer import ChatTokenizer
from ratchet.language_models.training_service.client import HttpTrainingService, open_session
from ratchet.language_models.training_service.models import download_tokenizer, upload_model
from ratchet.language_models.training_service.sync_client import SyncClient
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
    from ratchet.language_models.local.rollout_engine import Completion, SampleRequest
    from ratchet.language_models.training_service.interface import TrainingService
    from ratchet.parameters.language import TrainServiceParameters

_SAMPLED_AT_ONCE = 128


class ServiceBackend(ABC):
    """A training service."""

    asks_old: ClassVar[bool] = False
    """Whether losses need the log-probabilities that ratios are to, even where those are 1."""
    names_only_bases: ClassVar[bool] = False
    """Whether a tokenizer is known by the base model's name alone."""

    @abstractmethod
    def tokenizer(self, model: str) -> ChatTokenizer:
        """Return a model's tokenizer."""

    @abstractmethod
    def bring(self, folder: Path, name: str) -> str:
        """Put a model among those of the service; return its id."""

    @abstractmethod
    def open(self, asked: Mapping[str, Any]) -> TrainingService:
        """Open a session, or find that of the intent.

        ``asked``: the ``model`` that it starts from, whether it goes on with its optimizer
        (``resume``), ``seed``, ``lora_rank``, ``lora_alpha`` and ``intent``.
        """

    @abstractmethod
    def first_sampler(self, open_session: Callable[[], TrainingService]) -> str:
        """Return what answers before there is anything saved, as :meth:`sampler` does."""

    @abstractmethod
    def sampler(self, session: TrainingService) -> str:
        """Return what answers with the weights that a session has saved, as text."""

    @abstractmethod
    def sample(
        self, sampler: str, model: str, requests: Sequence[SampleRequest]
    ) -> list[Completion]:
        """Answer with a model."""

    @abstractmethod
    def address(self, model: str) -> ModelAddress:
        """Return where a model chats."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""


class RatchetBackend(ServiceBackend):
    """A service of Ratchet's own, or the one that a run starts."""

    def __init__(self, url: str, api_key_name: str | None) -> None:
        self._url, self._key = url, api_key_name
        self._open_client: SyncClient | None = None

    @property
    def _client(self) -> SyncClient:
        if self._open_client is None:
            self._open_client = SyncClient(self._url, self._key)
        return self._open_client

    def tokenizer(self, model: str) -> ChatTokenizer:
        """Return a model's tokenizer, as the service has it."""
        with tempfile.TemporaryDirectory(prefix="ratchet-tokenizer-") as name:
            download_tokenizer(self._client, model, Path(name))
            return ChatTokenizer(Path(name))

    def bring(self, folder: Path, name: str) -> str:
        """Put a model among those of the service, unless it is there; return its id."""
        return upload_model(self._client, folder, name=name)

    def open(self, asked: Mapping[str, Any]) -> HttpTrainingService:
        """Open a session, or find that of the intent."""
        return open_session(self._client, asked)

    def first_sampler(self, open_session: Callable[[], TrainingService]) -> str:
        """Open a session that learns nothing."""
        return open_session().session_id

    def sampler(self, session: TrainingService) -> str:
        """Return the session's id."""
        return session.session_id

    def sample(
        self, sampler: str, model: str, requests: Sequence[SampleRequest]
    ) -> list[Completion]:
        """Answer through a session, which may be any."""
        session = HttpTrainingService(self._client, sampler)
        found: list[Completion] = []
        for start in range(0, len(requests), _SAMPLED_AT_ONCE):
            found += session.sample(requests[start : start + _SAMPLED_AT_ONCE], model=model)
        return found

    def address(self, model: str) -> ModelAddress:
        """Return where a model chats."""
        endpoint = self._client.endpoint
        return ModelAddress(str(endpoint.url()), model, endpoint.api_key())

    def close(self) -> None:
        """Let go of connections; what the service has stays."""
        if self._open_client is not None:
            self._open_client.close()
        self._open_client = None


class TinkerBackend(ServiceBackend):
    """A service that speaks ``tinker``, through that service's own client.

    Parameters
    ----------
    url
        The service's; None for the one that the client asks by itself.
    tokenizer
        The folder of the model's tokenizer; None for the model's name on the hub.
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
        """Return the tokenizer that the experiment names: the service gives none."""
        return ChatTokenizer(find_model(self._tokenizer or model, self._base_dir))

    def bring(self, folder: Path, name: str) -> str:
        """Refuse: models cannot be brought."""
        raise ParameterError(
            f"agents.NAME.model: got {name!r} of {folder}, expected the name of a base model of the"
            " service's: with the backend 'tinker' none can be brought."
        )

    def open(self, asked: Mapping[str, Any]) -> TinkerTrainingService:
        """Open a new session: it knows nothing of intents, and ends with this process."""
        return open_tinker_session(
            self._client,
            model=asked["model"],
            lora_rank=asked["lora_rank"],
            seed=asked["seed"],
            resume=asked["resume"],
        )

    def first_sampler(self, open_session: Callable[[], TrainingService]) -> str:
        """Return nothing: the base model answers."""
        return ""

    def sampler(self, session: TrainingService) -> str:
        """Save the weights to sample from, apart from those to train from."""
        return session.save_weights(sequence=session.next_sequence(), name="sampled")

    def sample(
        self, sampler: str, model: str, requests: Sequence[SampleRequest]
    ) -> list[Completion]:
        """Answer with saved weights, or with the base model where there are none."""
        where = {"model_path": sampler} if sampler else {"base_model": model}
        return sample_with_tinker(open_tinker_sampler(self._client, **where), requests)

    def address(self, model: str) -> ModelAddress:
        """Refuse: how such a model chats is not known."""
        raise ParameterError("evaluation.suites: expected none with the backend 'tinker'.")

    def close(self) -> None:
        """Let go of connections; what the service has stays."""
        client = vars(self).pop("_client", None)
        if client is not None:
            client.holder.close()


def make_backend(service: TrainServiceParameters, base_dir: str | None) -> ServiceBackend:
    """Return the service that an experiment names; nothing is asked yet.

    A tokenizer's folder starts from ``base_dir``.
    """
    if service.backend == TINKER:
        tokenizer = ServiceConfig.of(service).tokenizer
        return TinkerBackend(service.url, service.api_key_name, tokenizer, Path(base_dir or "."))
    return RatchetBackend(service.url or EMBEDDED, service.api_key_name)
