"""Calls of tools: the schema of a reply that has to be one, and what a reply calls.

How a call is written is the model's own; these are read: ``<tool_call>{…}</tool_call>`` (Hermes,
Qwen), and a reply that is nothing but the JSON of one call or of a list of them (Llama, Mistral,
and every reply that was made to call).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ratchet.language_models.service.api.answer_ids import answer_id
from ratchet.language_models.service.api.schemas.closing import closed
from ratchet.language_models.service.api.schemas.formats import FunctionTool
from ratchet.language_models.types import ToolCall

_MARKED = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def call_schema(tools: Sequence[FunctionTool]) -> str:
    """Return the schema of one call of any of these tools."""
    parameters = {tool.function.name: _moved(tool) for tool in tools}
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{name}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name in parameters
    ]
    return json.dumps({"$defs": parameters, "anyOf": calls})


def read_calls(text: str, tools: Sequence[FunctionTool]) -> tuple[str, tuple[ToolCall, ...]]:
    """Part a reply into what it says and what it calls; what calls none of the tools is said."""
    names = {tool.function.name for tool in tools}
    marked = list(_MARKED.finditer(text))
    written = [found[1] for found in marked] or [text]
    calls = [call for piece in written for call in _calls(piece)]
    if not calls or any(name not in names for name, _ in calls):
        return text, ()
    said = text[: marked[0].start()].strip() if marked else ""
    return said, tuple(ToolCall(answer_id("call_"), *call) for call in calls)


def _calls(text: str) -> list[tuple[str, str]]:
    """Names and arguments; none if the text is no call."""
    try:
        content = json.loads(text)
    except ValueError:
        return []
    calls = []
    for item in content if isinstance(content, list) else [content]:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            return []
        arguments = item.get("arguments", item.get("parameters"))
        if not isinstance(arguments, dict):
            return []
        calls.append((item["name"], json.dumps(arguments, ensure_ascii=False)))
    return calls


def _moved(tool: FunctionTool) -> Any:  # noqa: ANN401 -- parsed JSON
    """A tool's parameters, with what refers to their root referring to where they are put."""
    root = f"#/$defs/{tool.function.name}"

    def moved(value: Any) -> Any:  # noqa: ANN401 -- parsed JSON
        if isinstance(value, list):
            return [moved(item) for item in value]
        if not isinstance(value, dict):
            return value
        content = {name: moved(item) for name, item in value.items()}
        reference = content.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            content["$ref"] = root + reference[1:]
        return content

    return moved(closed(tool.function.parameters or {"type": "object", "properties": {}}))
