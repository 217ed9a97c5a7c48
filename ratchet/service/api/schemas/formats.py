"""Response formats: text, JSON, JSON of a schema, tool calls."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from ratchet.service.api.schemas.messages import PromptModel, RequestModel
from ratchet.service.api.schemas.strict_json import closed

ANY_OBJECT = '{"type":"object"}'
FormatName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class TextFormat(RequestModel):
    """Any text."""

    type: Literal["text"]

    @property
    def json_schema_text(self) -> str | None:
        """The schema of the completion."""
        return None


class JsonObjectFormat(RequestModel):
    """Any JSON object."""

    type: Literal["json_object"]

    @property
    def json_schema_text(self) -> str | None:
        """The schema of the completion."""
        return ANY_OBJECT


class NamedSchema(PromptModel):
    """A JSON schema; enforced regardless of ``strict``."""

    name: FormatName
    description: str | None = None
    schema_: Annotated[dict[str, JsonValue] | None, Field(alias="schema")] = None
    strict: bool | None = None

    @property
    def json_schema_text(self) -> str | None:
        """The schema of the completion."""
        return ANY_OBJECT if self.schema_ is None else json.dumps(closed(self.schema_))


class JsonSchemaFormat(RequestModel):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema

    @property
    def json_schema_text(self) -> str | None:
        """The schema of the completion."""
        return self.json_schema.json_schema_text


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class FunctionContent(PromptModel):
    """A function that the model may call."""

    name: FormatName
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class FunctionTool(PromptModel):
    """A tool."""

    type: Literal["function"]
    function: FunctionContent

    def for_template(self) -> dict[str, JsonValue]:
        """Return the tool in the format of chat templates."""
        function: dict[str, JsonValue] = {
            "name": self.function.name,
            "description": self.function.description or "",
            "parameters": self.function.parameters or {"type": "object", "properties": {}},
        }
        return {"type": "function", "function": function}


class ChosenFunction(RequestModel):
    """The name of a function."""

    name: FormatName


class ToolChoice(RequestModel):
    """The tool that must be called."""

    type: Literal["function"]
    function: ChosenFunction
