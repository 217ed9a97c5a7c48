"""Fields of whatever names a chat model's service. Light: pydantic only."""

from __future__ import annotations

from typing import Annotated, Protocol, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, JsonValue
from pydantic_core import PydanticCustomError

from ratchet.parameters.key_names import key_name_problem
from ratchet.parameters.messages import SECRET_VALUE

_REQUEST_FIELDS = frozenset(
    {
        *("model", "messages", "temperature", "top_p", "max_tokens", "max_completion_tokens"),
        *("repetition_penalty", "seed", "stop", "n", "stream"),
        *("reasoning_effort", "chat_template_kwargs", "logprobs", "return_token_ids"),
    }
)


class ServedModel(Protocol):
    """Which chat model is asked, and where."""

    @property
    def model_name(self) -> str:
        """Its name at the service."""

    @property
    def base_url(self) -> str | None:
        """The service; see :class:`ratchet.language_models.endpoints.Endpoint`."""

    @property
    def api_key_name(self) -> str | None:
        """The environment variable that holds the key."""

    @property
    def api_version(self) -> str | None:
        """Of Azure's form of the API."""

    @property
    def use_dummy_api(self) -> bool:
        """Whether no service is asked: answers are drawn by seed."""


def _keep_secrets_out(url: str | None) -> str | None:
    """Refuse a URL that may hold a secret, without repeating it."""
    parts = urlsplit(url or "")
    if parts.query or "@" in parts.netloc:
        raise PydanticCustomError(
            SECRET_VALUE,
            "The URL has a user, a password or a query, which would be written down with the"
            " parameters; put the key into an environment variable and name it in"
            " api_key_name",
        )
    return url


def _refuse_keys(name: str | None) -> str | None:
    """Refuse what may be the key itself, without repeating it."""
    problem = None if name is None else key_name_problem(name)
    if problem is not None:
        raise PydanticCustomError(SECRET_VALUE, "{problem}", {"problem": problem})
    return name


def _leave_the_request_alone(extra: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Refuse what has a parameter of its own, or would change what an answer is."""
    taken = sorted(_REQUEST_FIELDS.intersection(extra))
    if taken:
        raise ValueError(
            f"got {', '.join(taken)}, which requests have already; expected only what no other"
            " parameter of an agent sets"
        )
    return extra


BaseUrl: TypeAlias = Annotated[str | None, AfterValidator(_keep_secrets_out)]
KeyName: TypeAlias = Annotated[str | None, AfterValidator(_refuse_keys)]
ExtraBody: TypeAlias = Annotated[dict[str, JsonValue], AfterValidator(_leave_the_request_alone)]


def check_sampling(temperature: float | None, top_p: float | None) -> None:
    """Refuse two ways of sampling at once: a ``ValueError`` for pydantic."""
    if temperature is not None and top_p is not None:
        raise ValueError(
            f"got temperature={temperature} and top_p={top_p}, expected at most one of them"
        )
