"""``LanguageServices``: what a run's agents need before they can speak to their services.

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

if TYPE_CHECKING:
    from ratchet.parameters.chat_agents import TextAgentParameters
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings


class LanguageServices:
    """The services of a run's agents.

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
        with self._lock:
            if self._ready:
                return
            for agent in self._agents():
                find_key(agent.api_key_name)
            if self.needs_embedded:
                self._service.enter_context(embedded_service(self._home))
            self._ready = True

    @property
    def needs_embedded(self) -> bool:
        """Whether an agent's model is served by Ratchet itself."""
        from ratchet.language_models.endpoints import EMBEDDED

        return any(agent.base_url == EMBEDDED for agent in self._agents())

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
            agent.model_name
            for agent in self._agents()
            if prices.find(agent.model_name, embedded=agent.base_url == EMBEDDED) is None
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

    def _agents(self) -> Iterator[TextAgentParameters]:
        """Go through the agents that call a service."""
        from ratchet.parameters.chat_agents import TextAgentParameters
        from ratchet.protocols.registry import build_protocol_handler

        for hyper_params in self._arms.values():
            for name in build_protocol_handler(hyper_params, base_dir=self._base_dir).agent_names:
                agent = hyper_params.agents[name]
                if isinstance(agent, TextAgentParameters) and not agent.use_dummy_api:
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
