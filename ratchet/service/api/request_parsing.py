"""Request parsing: JSON bodies by schema; unknown query parameters are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError

from ratchet.errors import nearest
from ratchet.service.api.errors import ApiError, from_validation
from ratchet.service.api.schemas.messages import RequestModel

Body = TypeVar("Body", bound=RequestModel)
_METADATA = re.compile(r"metadata\[(.*)\]", re.DOTALL)


async def read_body(request: Request, schema: type[Body]) -> Body:
    """Parse a JSON body; raises the 400 that names the field at fault."""
    data = await request.body()
    try:
        return schema.model_validate_json(data)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        invalid = problems[0]["type"] == "json_invalid"
        raise from_validation(problems, sent=None if invalid else json.loads(data)) from error


def body_of(schema: type[RequestModel]) -> dict[str, Any]:
    """Describe the JSON body of a route that reads it by :func:`read_body`."""
    reference = {"$ref": f"#/components/schemas/{schema.__name__}"}
    content = {"application/json": {"schema": reference}}
    return {"requestBody": {"required": True, "content": content}}


def form_of(**fields: dict[str, Any]) -> dict[str, Any]:
    """Describe the form of a route that parses it itself, by the schemas of its fields."""
    schema = {
        "type": "object",
        "required": list(fields),
        "properties": fields,
        "additionalProperties": False,
    }
    content = {"multipart/form-data": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


class StrictRoute(APIRoute):
    """A route that refuses query parameters which it does not declare."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, behind the check."""
        described = (self.openapi_extra or {}).get("parameters", ())
        known = {each["name"] for each in described}
        known |= {field.alias for field in self.dependant.query_params}
        handle = super().get_route_handler()

        async def handle_known(request: Request) -> Response:
            for name in request.query_params:
                if name.partition("[")[0] not in known:
                    hint = nearest(name, known) if known else ""
                    message = f"Unknown query parameter: {name!r}.{hint}"
                    raise ApiError(400, message, code="unknown_parameter", param=name)
            return await handle(request)

        return handle_known


def metadata_filter(request: Request) -> tuple[dict[str, str], bool]:
    """Parse ``metadata[k]=v``, and whether ``metadata=null`` selects jobs without metadata."""
    pairs: dict[str, str] = {}
    nothing = False
    for name, value in request.query_params.multi_items():
        if name == "metadata" and value == "null":
            nothing = True
        elif (match := _METADATA.fullmatch(name)) is not None:
            pairs[match[1]] = value
        elif name.startswith("metadata"):
            message = f"Got {name}={value!r}; write metadata[key]=value or metadata=null."
            raise ApiError(400, message, code="invalid_value", param="metadata")
    if nothing and pairs:
        message = "metadata=null and metadata[key]=value exclude each other."
        raise ApiError(400, message, code="invalid_value", param="metadata")
    return pairs, nothing
