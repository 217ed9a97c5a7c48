"""Completions, responses, embeddings, formats and tools of a tiny model of random weights."""

from __future__ import annotations

import base64
import json
import struct

import httpx
import openai
import pytest
from micro_model import write_micro_model
from tools_template import CALLS_TOOLS

from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.language_models.local.tokenizer import ChatTokenizer
from ratchet.service.api.chat_responses import read_calls
from ratchet.service.api.schemas.formats import FunctionTool
from ratchet.service.api.schemas.strict_json import closed

MODEL = "ratchet-tiny"
VERDICT = {
    "type": "object",
    "properties": {
        "decision": {"enum": ["accept", "reject"]},
        "sure": {"type": "boolean"},
        "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}, "maxItems": 3},
    },
    "required": ["decision", "sure", "steps"],
    "additionalProperties": False,
    "$defs": {"step": {"type": "integer", "minimum": 0, "maximum": 99}},
}
ASK = [{"role": "user", "content": "right?"}]


def _tool(name="decide", parameters=VERDICT):
    function = {"name": name, "description": "Decide.", "parameters": parameters}
    return {"type": "function", "function": function}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("apis")


@pytest.fixture(scope="module")
def running(home, running_service):
    folder = write_micro_model(home / "micro")
    with running_service(home, TorchEngine(), model=folder).serving() as service:
        yield service


@pytest.fixture(scope="module")
def calling(tmp_path_factory, running_service):
    """The same model with a chat template that supports tools."""
    home = tmp_path_factory.mktemp("calling")
    folder = write_micro_model(home / "micro")
    (folder / "chat_template.jinja").write_text(CALLS_TOOLS)
    with running_service(home, TorchEngine(), model=folder).serving() as service:
        yield service


def _post(running, path, **body):
    return httpx.post(f"{running.url}/v1/{path}", json={"model": MODEL, **body}, timeout=30)


# continuations


def test_a_text_is_continued_without_a_template(client):
    whole = client.completions.create(model=MODEL, prompt="add 4", seed=1, max_tokens=8)
    assert whole.object == "text_completion"
    assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (8, "length")
    chunks = client.completions.create(
        model=MODEL, prompt="add 4", seed=1, max_tokens=8, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    several = client.completions.create(model=MODEL, prompt=["a", "b"], n=2, seed=1)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]


def test_an_echo_scores_the_prompt_as_a_chain_of_single_tokens_does(client, home):
    """Log-probabilities of the prompt, as lm-eval requests them."""
    tokenizer = ChatTokenizer(home / "micro")
    ids = tokenizer.encode("Answer: accept x")
    options = {"model": MODEL, "logprobs": 3, "temperature": 0, "echo": True}
    answer = client.completions.create(prompt=[ids], max_tokens=1, **options)
    scored = answer.choices[0].logprobs
    assert scored.token_logprobs[0] is None
    assert scored.top_logprobs[0] is None
    assert len(scored.tokens) == len(ids) + 1
    assert "".join(scored.tokens) == answer.choices[0].text
    assert scored.text_offset[1] == len(scored.tokens[0])
    for place in range(1, len(ids)):
        alone = client.completions.create(prompt=ids[:place], max_tokens=1, **options)
        likeliest = alone.choices[0].logprobs.top_logprobs[-1]
        assert likeliest == pytest.approx(scored.top_logprobs[place], abs=1e-6)
        assert scored.token_logprobs[place] <= max(likeliest.values()) + 1e-9
    none = client.completions.create(prompt=ids, max_tokens=0, **options)
    assert none.usage.completion_tokens == 0
    assert none.choices[0].logprobs.token_logprobs == scored.token_logprobs[:-1]


def test_unknown_token_ids_are_refused(client):
    with pytest.raises(openai.BadRequestError, match="no token 99999"):
        client.completions.create(model=MODEL, prompt=[99999])
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024 tokens"):
        client.completions.create(model=MODEL, prompt="x" * 2000)


# responses


def test_a_response_is_text_with_openais_types(client):
    answer = client.responses.create(
        model=MODEL, input="right?", instructions="Judge.", max_output_tokens=5, temperature=0
    )
    assert (answer.object, answer.status) == ("response", "incomplete")
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage.output_tokens == 5
    assert answer.usage.input_tokens_details.cache_write_tokens == 0
    assert answer.output_text == answer.output[0].content[0].text
    again = [*answer.model_dump()["output"], {"role": "user", "content": "why?"}]
    assert client.responses.create(
        model=MODEL, input=again, max_output_tokens=2, temperature=0
    ).output_text


def test_a_streamed_response_has_openais_events(client):
    with client.responses.stream(model=MODEL, input="right?", max_output_tokens=20) as stream:
        events = list(stream)
    final = events[-1].response
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    told = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert told == final.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))


# embeddings


def test_an_embedding_does_not_depend_on_the_batch(client):
    one = client.embeddings.create(model=MODEL, input="add 4").data[0].embedding
    both = client.embeddings.create(model=MODEL, input=["reject", "add 4"])
    assert one == both.data[1].embedding != both.data[0].embedding
    assert len(one) == 16
    assert sum(number**2 for number in one) == pytest.approx(1, abs=1e-5)
    assert both.usage.prompt_tokens > 0


def test_vectors_are_returned_as_floats_or_base64(running):
    plain = _post(running, "embeddings", input="x").json()["data"][0]["embedding"]
    packed = _post(running, "embeddings", input="x", encoding_format="base64").json()
    data = base64.b64decode(packed["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(plain)}f", data)) == pytest.approx(plain, abs=1e-6)


# formats


def test_completions_fit_their_schema_for_any_seed(client):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    named = {"name": "verdict", "schema": VERDICT, "strict": True}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        seed=1,
        n=16,
        temperature=2,
        response_format={"type": "json_schema", "json_schema": named},
    )
    for choice in answer.choices:
        content = json.loads(choice.message.content)
        assert choice.finish_reason == "stop"
        assert set(content) == {"decision", "sure", "steps"}
        assert content["decision"] in ("accept", "reject")
        assert isinstance(content["sure"], bool)
        assert all(isinstance(step, int) and 0 <= step <= 99 for step in content["steps"])
    assert len({choice.message.content for choice in answer.choices}) > 8


def test_json_object_format_returns_an_object(client):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, seed=2, n=8, response_format={"type": "json_object"}
    )
    assert all(choice.message.content.startswith("{") for choice in answer.choices)
    whole = [c.message.content for c in answer.choices if c.finish_reason == "stop"]
    assert all(isinstance(json.loads(text), dict) for text in whole)


def test_only_the_request_with_an_unsupported_schema_is_refused(client):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    named = {"name": "x", "schema": {"type": "robot"}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL,
            messages=ASK,
            response_format={"type": "json_schema", "json_schema": named},
        )
    assert (caught.value.param, caught.value.code) == ("response_format", "invalid_schema")


def test_objects_are_closed_unless_the_schema_opens_or_combines_them():
    part = {"properties": {"properties": {"properties": {}}}}
    assert closed({"$defs": {"p": part}, "items": part}) == {
        "$defs": {
            "p": {
                "properties": {"properties": {"properties": {}, "additionalProperties": False}},
                "additionalProperties": False,
            }
        },
        "items": {
            "properties": {"properties": {"properties": {}, "additionalProperties": False}},
            "additionalProperties": False,
        },
    }
    for said in ({"additionalProperties": True}, {"patternProperties": {}}, {"allOf": [part]}):
        assert closed({**part, **said}).get("additionalProperties") is not False
    assert closed({"enum": [part]}) == {"enum": [part]}


@pytest.mark.parametrize("name", ["anyOf", "oneOf", "$ref"])
def test_objects_whose_properties_are_named_in_several_places_stay_open(name):
    other = {"properties": {"b": {"type": "integer"}}, "required": ["b"]}
    schema = {"properties": {"a": {"type": "integer"}}, "required": ["a"], "$defs": {"b": other}}
    schema[name] = "#/$defs/b" if name == "$ref" else [other]
    assert closed(schema) == schema, "closed, nothing would fit both"
    assert "additionalProperties" in closed({"$defs": {"b": other}, "anyOf": [other]})["anyOf"][0]


# tools


def test_a_model_whose_template_has_no_tools_refuses_them(client):
    with pytest.raises(openai.BadRequestError, match="not supported with this model") as caught:
        client.chat.completions.create(model=MODEL, messages=ASK, tools=[_tool()])
    assert (caught.value.param, caught.value.code) == ("tools", "unsupported_parameter")


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "decide"}}]
)
def test_a_required_call_is_generated_and_fits_the_tool(calling, choice):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    with calling.client() as client:
        options = {"model": MODEL, "messages": ASK, "tools": [_tool()], "tool_choice": choice}
        answer = client.chat.completions.create(seed=3, **options)
        (call,) = answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason == "tool_calls"
        assert answer.choices[0].message.content is None
        assert call.function.name == "decide"
        assert json.loads(call.function.arguments)["decision"] in ("accept", "reject")
        with client.chat.completions.stream(seed=3, **options) as stream:
            streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
        assert streamed.function.arguments == call.function.arguments
        told = {"role": "tool", "tool_call_id": call.id, "content": "done"}
        said = answer.choices[0].message.model_dump()
        after = client.chat.completions.create(
            model=MODEL, messages=[*ASK, said, told], tools=[_tool()], max_tokens=3
        )
        assert after.usage.prompt_tokens > answer.usage.prompt_tokens


def test_an_unsupported_tool_is_refused_by_its_name(calling):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    with calling.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL,
            messages=ASK,
            tools=[_tool(parameters={"type": "robot"})],
            tool_choice="required",
        )
    assert (caught.value.param, caught.value.code) == ("tools", "invalid_schema")


def test_of_several_tools_one_is_called(calling):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    tools = [_tool(), _tool("ask", {"type": "object", "additionalProperties": False})]
    with calling.client() as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=ASK, tools=tools, tool_choice="required", n=8, seed=1
        )
        with pytest.raises(openai.BadRequestError, match="not in 'tools'"):
            client.chat.completions.create(
                model=MODEL,
                messages=ASK,
                tools=tools,
                tool_choice={"type": "function", "function": {"name": "none"}},
            )
    names = [choice.message.tool_calls[0].function.name for choice in answer.choices]
    assert set(names) <= {"ask", "decide"}


@pytest.mark.parametrize(
    ("text", "said", "called"),
    [
        ("accept", "accept", []),
        ('{"decision": 1}', '{"decision": 1}', []),
        ('So: <tool_call>\n{"name": "ask", "arguments": {"x": 1}}\n</tool_call>', "So:", ["ask"]),
        ('{"name": "ask", "parameters": {}}', "", ["ask"]),
        ('[{"name": "ask", "arguments": {}}, {"name": "ask", "arguments": {}}]', "", ["ask"] * 2),
        ('{"name": "other", "arguments": {}}', '{"name": "other", "arguments": {}}', []),
    ],
)
def test_tool_calls_are_parsed_from_models_formats(text, said, called):
    found, calls = read_calls(text, [FunctionTool.model_validate(_tool("ask"))])
    assert found == said
    assert [call.name for call in calls] == called
