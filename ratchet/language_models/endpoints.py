"""Which service is asked, and with which key.

A key is read from the environment when a client is made; it is never a value of ours, so that no
``repr``, log, error or artifact can hold it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from ratchet.errors import MissingKeyError, ParameterError
from ratchet.parameters.service_fields import key_name_problem

if TYPE_CHECKING:
    from ratchet.parameters.service_fields import ServedModel

EMBEDDED = "embedded"
EMBEDDED_URL_VARIABLE = "RATCHET_LLM_URL"
EMBEDDED_KEY_VARIABLE = "RATCHET_LLM_API_KEY"
OPENAI_KEY_VARIABLE = "OPENAI_API_KEY"

NO_KEY = "none"


@dataclass(frozen=True, slots=True)
class ModelAddress:
    """A model that chats at a service; ``url`` ends in ``/v1``, and the key is a value."""

    url: str
    model: str
    api_key: str = field(default=NO_KEY, repr=False)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A service that speaks OpenAI's API.

    Parameters
    ----------
    base_url
        ``None``: OpenAI. ``"embedded"``: the service that Ratchet starts, whose URL is in the
        environment variable ``RATCHET_LLM_URL``. Everything else: its URL, with ``/v1``.
    api_key_name
        The environment variable that holds the key. When not given: ``OPENAI_API_KEY`` for
        OpenAI, ``RATCHET_LLM_API_KEY`` if set for the embedded service, no key for any other, so
        that a key never goes to a service that nobody named it for.
    api_version
        Given: Azure's form of the API, with this ``api-version``; ``base_url`` is then the
        resource's endpoint.
    timeout_seconds
        How long one attempt may take.
    """

    base_url: str | None = None
    api_key_name: str | None = None
    api_version: str | None = None
    timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url or "")
        if parts.query or "@" in parts.netloc:
            raise ParameterError(
                f"base_url of {self.label}: got one with a user, a password or a query, expected"
                " none. Put the key into an environment variable and name it in api_key_name."
            )
        problem = None if self.api_key_name is None else key_name_problem(self.api_key_name)
        if problem is not None:
            raise ParameterError(f"api_key_name of {self.label}: {problem}.")

    @classmethod
    def of(cls, model: ServedModel, timeout_seconds: float = 600.0) -> Endpoint:
        """Return the endpoint of an agent, or of who else asks a model."""
        return cls(model.base_url, model.api_key_name, model.api_version, timeout_seconds)

    @property
    def is_embedded(self) -> bool:
        """Whether Ratchet starts the service itself."""
        return self.base_url == EMBEDDED

    @property
    def label(self) -> str:
        """The service's name for messages and tables: no user, password or query of its URL."""
        if self.base_url is None:
            return "openai"
        if self.is_embedded:
            return EMBEDDED
        parts = urlsplit(self.base_url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def __repr__(self) -> str:
        return f"Endpoint({self.label!r}, api_key_name={self.api_key_name!r})"

    def url(self) -> str | None:
        """Return the URL to speak to now; None for OpenAI's own.

        Raises
        ------
        MissingKeyError
            If it is the embedded service and its URL isn't in the environment.
        """
        if not self.is_embedded:
            return self.base_url
        url = os.environ.get(EMBEDDED_URL_VARIABLE)
        if not url:
            raise MissingKeyError(
                f"base_url is {EMBEDDED!r}, but the environment variable {EMBEDDED_URL_VARIABLE}"
                " isn't set. `ratchet run` starts the service and sets it; elsewhere start one"
                " with `ratchet llm serve` and set it to the URL that this prints."
            )
        url = url.rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"

    @property
    def key_variable(self) -> str | None:
        """The environment variable that must hold the key; None where none is needed."""
        if self.api_key_name is None and self.base_url is None:
            return OPENAI_KEY_VARIABLE
        return self.api_key_name

    def api_key(self) -> str:
        """Read the key from the environment; a placeholder where none is needed.

        Raises
        ------
        MissingKeyError
            If the variable that should hold it isn't set.
        """
        name = self.key_variable
        if name is None:
            return (self.is_embedded and os.environ.get(EMBEDDED_KEY_VARIABLE)) or NO_KEY
        key = os.environ.get(name)
        if not key:
            raise MissingKeyError(
                f"{self.label}: the environment variable {name} isn't set, expected the API key."
                f" Set it, or name another variable with agents.NAME.api_key_name."
            )
        return key
