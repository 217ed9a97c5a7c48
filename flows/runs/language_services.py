"""``LanguageServices``: API keys from Prefect's secret blocks, and the embedded service.

Prepared by the first stage that calls a model, so that a run whose stages are all cached starts no
service and reads no keys.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import MissingKeyError, ParameterError
from ratchet.lazy import require_packages
from ratchet.parameters.language import RATCHET, TINKER
from ratchet.parameters.service_fields import SECRET_PREFIX

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.language import TrainServiceParameters
    from ratchet.parameters.service_fields import ServedModel
    from ratchet.parameters.settings import ExperimentSettings


class LanguageServices:
    """Services of a run's agents, and of the models that generate part of its data.

    Reads the settings ``home``, which contains the embedded service's files, ``base_dir``,
    ``budget`` and ``prices``.
    """

    def __init__(self, settings: ExperimentSettings, arms: Mapping[str, HyperParameters]) -> None:
        self._home = Path(settings.home)
        self._budget, self._prices = settings.budget, settings.prices
        self._base_dir = None if settings.base_dir is None else Path(settings.base_dir)
        self._arms = arms
        self._lock = threading.Lock()
        self._ready = False
        self._service = ExitStack()

    def make_ready(self) -> None:
        """Look up keys and start the embedded service, on the first call.

        Raises MissingKeyError if a secret block is missing.
        """
        from ratchet.parameters.chat_agents import TextAgentParameters

        with self._lock:
            if self._ready:
                return
            for model in self._models():
                find_key(model.api_key_name)
                if isinstance(model, TextAgentParameters):
                    find_key(model.fine_tuning_service.api_key_name)
            for service in self._training_services():
                find_key(service.api_key_name)
            if self.needs_embedded:
                self._service.enter_context(embedded_service(self._home))
            self._ready = True

    @property
    def needs_embedded(self) -> bool:
        """Whether the embedded service serves or trains a model."""
        from ratchet.language_models.endpoints import EMBEDDED

        trains = any(
            service.url == EMBEDDED or (service.url is None and service.backend == RATCHET)
            for service in self._training_services()
        )
        return trains or any(model.base_url == EMBEDDED for model in self._models())

    def check_prices(self) -> None:
        """Refuse a budget for models without a price, whose calls would not count.

        Raises ParameterError with the models' names.
        """
        if self._budget is None:
            return
        from ratchet.language_models.endpoints import EMBEDDED
        from ratchet.language_models.pricing import PriceTable

        prices = PriceTable.load(self._prices)
        unpriced = {
            model.model_name
            for model in self._models()
            if prices.find(model.model_name, embedded=model.base_url == EMBEDDED) is None
        }
        if unpriced:
            raise ParameterError(
                f"settings.budget: got {self._budget:g}, but there is no price for"
                f" {', '.join(sorted(unpriced))}. Add their prices to a table in settings.prices"
                " (0 for local models), or remove the budget."
            )

    def close(self) -> None:
        """Stop the embedded service if this run started it."""
        with self._lock:
            self._service.close()
            self._ready = False

    def _training_services(self) -> Iterator[TrainServiceParameters]:
        """Yield the services that train token-level language models."""
        for hyper_params in self._arms.values():
            service = hyper_params.language.train_service
            if service.backend in (RATCHET, TINKER):
                yield service

    def _models(self) -> Iterator[ServedModel]:
        """Yield the models that services are called for."""
        from ratchet.parameters.chat_agents import TextAgentParameters
        from ratchet.protocols.registry import playing_agents
        from ratchet.scenarios.registry import build_scenario

        for hyper_params in self._arms.values():
            scenario = build_scenario(hyper_params.scenario, self._base_dir)
            generators = [each.model for each in scenario.asked_for_data(hyper_params)]
            agents = playing_agents(hyper_params, self._base_dir).values()
            chat_models = [each for each in agents if isinstance(each, TextAgentParameters)]
            for model in (*chat_models, *generators):
                if not model.use_dummy_api:
                    yield model


@contextmanager
def embedded_service(home: Path) -> Iterator[None]:
    """Run the embedded service, unless the environment names a running one.

    ``home`` is Ratchet's home folder. Raises LanguageServiceError if the service does not start.
    """
    from ratchet.language_models.endpoints import EMBEDDED_PACKAGES, EMBEDDED_URL_VARIABLE

    if os.environ.get(EMBEDDED_URL_VARIABLE):
        yield
        return
    require_packages(EMBEDDED_PACKAGES, "The model service that Ratchet starts")
    from ratchet.service import EmbeddedService
    from trainers.progress import describe

    with EmbeddedService.start(home, on_wait=describe) as service:
        os.environ[EMBEDDED_URL_VARIABLE] = service.url
        try:
            yield
        finally:
            os.environ[EMBEDDED_URL_VARIABLE] = ""  # not removed: a thread may be copying it


def find_key(name: str | None) -> None:
    """Load a secret block into an environment variable of the same name.

    Loads names such as ``"prefect-secret:BLOCK"``; other names are environment variables already.
    Raises MissingKeyError if the block does not exist.
    """
    if name is None or not name.startswith(SECRET_PREFIX) or name in os.environ:
        return
    from prefect.blocks.system import Secret

    block = name.removeprefix(SECRET_PREFIX)

    async def load() -> str:
        secret: Any = await Secret.aload(block)
        return str(secret.get())

    try:
        os.environ[name] = asyncio.run(load())
    except ValueError as error:
        raise MissingKeyError(
            f"api_key_name: Prefect has no secret block {block!r}. Create it in its UI (Blocks,"
            " Secret), or name an environment variable instead."
        ) from error
