"""``LanguageServices``: what a run's models need before they can be asked.

Keys from Prefect's secret blocks, and Ratchet's own service. Made ready by the first stage that
calls a model, so that a run that finds everything in the store starts and asks nothing.
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
from ratchet.parameters.key_names import SECRET_PREFIX
from ratchet.parameters.language import RATCHET, TINKER

if TYPE_CHECKING:
    from ratchet.parameters.chat_agents import TextAgentParameters
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.language import TrainServiceParameters
    from ratchet.parameters.service_fields import ServedModel
    from ratchet.parameters.settings import ExperimentSettings


class LanguageServices:
    """The services of a run's agents, and of the models that write part of its data.

    Of the settings ``home``, where the embedded service keeps its files, ``base_dir``, ``budget``
    and ``prices`` are read.
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
        """Look up keys and start the embedded service, unless that is done.

        Raises MissingKeyError if a secret block is not there.
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
        """Whether a model is served, or trained, by Ratchet itself."""
        from ratchet.language_models.endpoints import EMBEDDED

        trains = any(
            service.url == EMBEDDED or (service.url is None and service.backend == RATCHET)
            for service in self._training_services()
        )
        return trains or any(model.base_url == EMBEDDED for model in self._models())

    def check_prices(self) -> None:
        """Refuse a budget for models without a price: nothing could ever be held against it.

        Raises ParameterError with the models' names.
        """
        if self._budget is None:
            return
        from ratchet.language_models.endpoints import EMBEDDED
        from ratchet.language_models.pricing import PriceTable

        prices = PriceTable.load(self._prices)
        unknown = {
            model.model_name
            for model in self._models()
            if prices.find(model.model_name, embedded=model.base_url == EMBEDDED) is None
        }
        if unknown:
            raise ParameterError(
                f"settings.budget: got {self._budget:g}, but there is no price for"
                f" {', '.join(sorted(unknown))}. Give a table with their prices as settings.prices"
                " (0 for models of your own), or leave the budget out."
            )

    def close(self) -> None:
        """Stop the service, if this run has started it."""
        with self._lock:
            self._service.close()
            self._ready = False

    def _training_services(self) -> Iterator[TrainServiceParameters]:
        """Go through the services that hold models which learn from tokens."""
        for hyper_params in self._arms.values():
            service = hyper_params.language.train_service
            if service.backend in (RATCHET, TINKER):
                yield service

    def _models(self) -> Iterator[ServedModel]:
        """Go through the models that a service is asked for."""
        from ratchet.scenarios.registry import build_scenario

        for hyper_params in self._arms.values():
            scenario = build_scenario(hyper_params.scenario, self._base_dir)
            asked = [each.model for each in scenario.asked_for_data(hyper_params)]
            for model in (*self._agents(hyper_params), *asked):
                if not model.use_dummy_api:
                    yield model

    def _agents(self, hyper_params: HyperParameters) -> Iterator[TextAgentParameters]:
        """Go through the agents that are chat models."""
        from ratchet.parameters.chat_agents import TextAgentParameters
        from ratchet.protocols.registry import build_protocol_handler

        for name in build_protocol_handler(hyper_params, base_dir=self._base_dir).agent_names:
            agent = hyper_params.agents[name]
            if isinstance(agent, TextAgentParameters):
                yield agent


@contextmanager
def embedded_service(home: Path) -> Iterator[None]:
    """Run Ratchet's own service, unless the user has named one in the environment.

    ``home`` is Ratchet's own folder. Raises LanguageServiceError if it does not start.
    """
    from ratchet.language_models.endpoints import EMBEDDED_URL_VARIABLE

    if os.environ.get(EMBEDDED_URL_VARIABLE):
        yield
        return
    from ratchet.language_models.service.launch import EmbeddedService
    from trainers.progress import describe

    with EmbeddedService.start(home, on_wait=describe) as service:
        os.environ[EMBEDDED_URL_VARIABLE] = service.url
        try:
            yield
        finally:
            os.environ.pop(EMBEDDED_URL_VARIABLE, None)


def find_key(name: str | None) -> None:
    """Put the value of a secret block into the environment, under its whole name.

    It is ``"prefect-secret:BLOCK"``; any other name is that of a variable, and left alone.
    Raises MissingKeyError if there is no such block.
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
            f"api_key_name: Prefect has no secret block {block!r}. Make one in its UI (Blocks,"
            " Secret), or name an environment variable instead."
        ) from error
