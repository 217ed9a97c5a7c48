"""Fields of OpenAI's API that this service accepts only with values that have no effect."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pydantic import GetJsonSchemaHandler, JsonValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

UNSUPPORTED = "unsupported"
"""Type of the validation errors."""


@dataclass(frozen=True, slots=True, eq=False)  # `Annotated` would merge 0 and False
class NoEffect:
    """The values of a field that have no effect, in addition to null; all others are refused.

    Parameters
    ----------
    instead
        What to do instead: a sentence; by default to omit the field, or to send the first value.
    """

    values: tuple[JsonValue, ...] = ()
    instead: str = ""

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> CoreSchema:
        """Accept only the values."""
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, JsonValue]:
        """List the values."""
        return {"enum": [None, *self.values]}

    def _check(self, value: JsonValue) -> JsonValue:
        numbers = (int, float)
        for allowed in (None, *self.values):
            is_number = isinstance(value, numbers) and isinstance(allowed, numbers)
            if value == allowed and (type(value) is type(allowed) or is_number):
                return value
        or_send = "".join(f" or send {json.dumps(each)}" for each in self.values[:1])
        raise PydanticCustomError(
            UNSUPPORTED, "{advice}", {"advice": self.instead or f"Omit it{or_send}."}
        )


TOOL_CALLS = "Tool calls cannot be trained on. Leave out these examples, or the calls."
NO_TOOLS = NoEffect(([], {}), TOOL_CALLS)
"""For fields of training examples with tools or calls."""
