"""Endpoints: which service is called, and with which key.

Keys are read from the environment when a client is created, and never stored in an object, so that
no ``repr``, log, error or artifact can contain one.
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
EMBEDDED_PACKAGES = ("tokenizers", "httptools", "python_multipart")
"""Optional packages that the service which Ratchet starts needs."""
EMBEDDED_URL_VARIABLE = "RATCHET_LLM_URL"
EMBEDDED_KEY_VARIABLE = "RATCHET_LLM_API_KEY"
OPENAI_KEY_VARIABLE = "OPENAI_API_KEY"

NO_KEY = "none"


@dataclass(frozen=True, slots=True)
class ModelAddress:
    """A chat model at a service; ``url`` ends in ``/v1``, ``api_key`` is the key's value."""

    url: str
    model: str
    api_key: str = field(default=NO_KEY, repr=False)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible service.

    Parameters
    ----------
    base_url
        ``None``: OpenAI. ``"embedded"``: the service that Ratchet starts, whose URL is in the
        environment variable ``RATCHET_LLM_URL``. Otherwise the service's URL, with ``/v1``.
    api_key_name
        The environment variable that contains the key. Default: ``OPENAI_API_KEY`` for OpenAI,
        ``RATCHET_LLM_API_KEY`` if set for the embedded service, no key for any other, so that no
        key is sent to a service for which it was not named.
    api_version
        If set: Azure's API, with this ``api-version``; ``base_url`` is then the resource's
        endpoint.
    timeout_seconds
        Timeout of one attempt.
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
        """Return the endpoint of an agent, or of another model user."""
        return cls(model.base_url, model.api_key_name, model.api_version, timeout_seconds)

    @property
    def is_embedded(self) -> bool:
        """Whether Ratchet starts the service."""
        return self.base_url == EMBEDDED

    @property
    def label(self) -> str:
        """The service's name for messages and tables, without credentials or query."""
        if self.base_url is None:
            return "openai"
        if self.is_embedded:
            return EMBEDDED
        parts = urlsplit(self.base_url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def __repr__(self) -> str:
        return f"Endpoint({self.label!r}, api_key_name={self.api_key_name!r})"

    def url(self) -> str | None:
        """Return the current URL; None for OpenAI's own.

        Raises
        ------
        MissingKeyError
            If the URL of the embedded service is not in the environment.
        """
        if not self.is_embedded:
            return self.base_url
        url = os.environ.get(EMBEDDED_URL_VARIABLE)
        if not url:
            raise MissingKeyError(
                f"base_url is {EMBEDDED!r}, but the environment variable {EMBEDDED_URL_VARIABLE}"
                " is not set. `ratchet run` starts the service and sets it; elsewhere start one"
                " with `ratchet llm serve` and set it to the URL that it prints."
            )
        url = url.rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"

    @property
    def key_variable(self) -> str | None:
        """The environment variable of the key; None if no key is required."""
        if self.api_key_name is None and self.base_url is None:
            return OPENAI_KEY_VARIABLE
        return self.api_key_name

    def api_key(self) -> str:
        """Read the key from the environment; a placeholder if none is required."""
        name = self.key_variable
        if name is None:
            return (self.is_embedded and os.environ.get(EMBEDDED_KEY_VARIABLE)) or NO_KEY
        key = os.environ.get(name)
        if not key:
            raise MissingKeyError(
                f"{self.label}: the environment variable {name} is not set, expected the API key."
                f" Set it, or name another variable with agents.NAME.api_key_name."
            )
        return key
