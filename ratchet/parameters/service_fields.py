"""Fields of parameters that name a chat model's service. Imports only pydantic."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Protocol, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, JsonValue
from pydantic_core import PydanticCustomError

from ratchet.parameters.reading.messages import SECRET_VALUE

_REQUEST_FIELDS = frozenset(
    {
        *("model", "messages", "temperature", "top_p", "max_tokens", "max_completion_tokens"),
        *("repetition_penalty", "seed", "stop", "n", "stream"),
        *("reasoning_effort", "chat_template_kwargs", "logprobs", "return_token_ids"),
    }
)


class ServedModel(Protocol):
    """A chat model and its service."""

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
        """Whether completions are sampled by seed without a service."""


def _keep_secrets_out(url: str | None) -> str | None:
    """Refuse a URL that may contain a secret, without repeating it."""
    parts = urlsplit(url or "")
    if parts.query or "@" in parts.netloc:
        raise PydanticCustomError(
            SECRET_VALUE,
            "The URL has a user, a password or a query, which would be saved with the"
            " parameters; put the key into an environment variable and name it in"
            " api_key_name",
        )
    return url


def _refuse_keys(name: str | None) -> str | None:
    """Refuse a value that may be the key itself, without repeating it."""
    problem = None if name is None else key_name_problem(name)
    if problem is not None:
        raise PydanticCustomError(SECRET_VALUE, "{problem}", {"problem": problem})
    return name


def _leave_the_request_alone(extra: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Refuse fields that have their own parameter or change the form of responses."""
    reserved = sorted(_REQUEST_FIELDS.intersection(extra))
    if reserved:
        raise ValueError(
            f"got {', '.join(reserved)}, which requests already contain; expected only fields that"
            " no other parameter of an agent sets"
        )
    return extra


def _is_a_url(url: str | None) -> str | None:
    if url is None or url == "embedded" or _URL.match(url):
        return url
    raise ValueError("expected a URL that starts with http:// or https://")


def _of_finite_numbers(value: JsonValue) -> JsonValue:
    """Refuse numbers that JSON cannot contain, naming their path."""
    for path, number in _numbers(value, ""):
        if not math.isfinite(number):
            where = f"{path.lstrip('.')}: " if path else ""
            raise ValueError(f"{where}got {number}, expected a finite number")
    return value


def _numbers(value: JsonValue, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _numbers(each, f"{path}.{name}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _numbers(each, f"{path}.{number}")
    elif isinstance(value, float):
        yield path, value


_URL = re.compile(r"https?://[^/\s]")
BaseUrl: TypeAlias = Annotated[
    str | None, AfterValidator(_keep_secrets_out), AfterValidator(_is_a_url)
]
KeyName: TypeAlias = Annotated[str | None, AfterValidator(_refuse_keys)]
ExtraBody: TypeAlias = Annotated[
    dict[str, JsonValue],
    AfterValidator(_of_finite_numbers),
    AfterValidator(_leave_the_request_alone),
]


def check_sampling(temperature: float | None, top_p: float | None) -> None:
    """Raise ``ValueError``, for pydantic, if both ``temperature`` and ``top_p`` are set."""
    if temperature is not None and top_p is not None:
        raise ValueError(
            f"got temperature={temperature} and top_p={top_p}, expected at most one of them"
        )


SECRET_PREFIX = "prefect-secret:"
"""Prefix of the name of a Prefect secret block."""

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_BLOCK = re.compile(r"[a-z0-9-]+")
_LONGEST_WORD = 15
_SHOWN = 3


def key_name_problem(name: str) -> str | None:
    """Describe the problem with a name that may be the key itself, without repeating it."""
    if name.startswith(SECRET_PREFIX):
        is_name = _BLOCK.fullmatch(name.removeprefix(SECRET_PREFIX)) is not None
    else:
        words = name.split("_")
        is_long = any(len(w) > _LONGEST_WORD and re.search(r"\d", w) for w in words)
        is_name = _VARIABLE.fullmatch(name) is not None and not is_long
    if is_name:
        return None
    return (
        f"got {name[:_SHOWN]!r}… ({len(name)} letters), expected the name of the environment"
        " variable that holds the key, such as MY_API_KEY (capitals, digits and underscores), or"
        f" {SECRET_PREFIX}BLOCK. The key itself would be saved with the parameters: set"
        " the variable to it; if the key was ever saved, replace it"
    )
