"""Real clients: OpenAI's typed helpers, LangChain's, OpenAI's agents."""

from __future__ import annotations

from typing import Literal

import pytest
from micro_model import write_micro_model
from pydantic import BaseModel
from tools_template import CALLS_TOOLS

pytest.importorskip("llguidance", reason="llguidance is not installed (extra 'llm')")

from ratchet.language_models.engines.torch_engine import TorchEngine

MODEL = "ratchet-tiny"


class Verdict(BaseModel):
    """A verifier's decision."""

    decision: Literal["accept", "reject"]
    sure: bool


@pytest.fixture(scope="module")
def running(tmp_path_factory, running_service):
    """A model of random weights, whose template supports tools."""
    home = tmp_path_factory.mktemp("clients")
    folder = write_micro_model(home / "micro")
    (folder / "chat_template.jinja").write_text(CALLS_TOOLS)
    with running_service(home, TorchEngine(), model=folder).serving() as service:
        yield service


def test_openais_typed_helpers(client):
    import openai

    ask = {"model": MODEL, "messages": [{"role": "user", "content": "right?"}]}
    parsed = client.chat.completions.parse(**ask, response_format=Verdict)
    assert isinstance(parsed.choices[0].message.parsed, Verdict)
    old = client.beta.chat.completions.parse(**ask, response_format=Verdict)
    assert isinstance(old.choices[0].message.parsed, Verdict)
    with client.chat.completions.stream(**ask, response_format=Verdict) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Verdict)
    response = client.responses.parse(model=MODEL, input="right?", text_format=Verdict)
    assert isinstance(response.output_parsed, Verdict)
    called = client.chat.completions.parse(
        **ask, tools=[openai.pydantic_function_tool(Verdict)], tool_choice="required"
    )
    (call,) = called.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Verdict)
    assert called._request_id.startswith("req_")


def test_langchain_with_tools_and_structured_output(running):
    langchain = pytest.importorskip(
        "langchain_openai", reason="langchain-openai is not installed (extra 'clients')"
    )
    service = {"model": MODEL, "base_url": f"{running.url}/v1", "api_key": "none"}
    chat = langchain.ChatOpenAI(**service, max_tokens=200, max_retries=0)
    assert chat.invoke("right?").response_metadata["finish_reason"] in ("stop", "length")
    assert len(list(chat.stream("right?"))) > 1
    for method in ("json_schema", "function_calling"):
        structured = chat.with_structured_output(Verdict, method=method)
        assert isinstance(structured.invoke("right?"), Verdict)
    (call,) = chat.bind_tools([Verdict], tool_choice="required").invoke("right?").tool_calls
    assert call["name"] == "Verdict"
    Verdict.model_validate(call["args"])
    embeddings = langchain.OpenAIEmbeddings(**service, check_embedding_ctx_length=False)
    one, other = embeddings.embed_documents(["accept", "reject"])
    assert len(one) == len(other) > 0
    assert langchain.OpenAI(**service, max_tokens=4, seed=1).invoke("add 4")
    responses = langchain.ChatOpenAI(**service, use_responses_api=True, max_tokens=4, temperature=0)
    assert responses.invoke("right?").text


@pytest.mark.slow
def test_openais_agents_with_a_type_for_the_output(running):
    agents = pytest.importorskip(
        "agents", reason="openai-agents is not installed (extra 'clients')"
    )
    agents.set_tracing_disabled(True)
    for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
        model = kind(model=MODEL, openai_client=running.async_client())
        agent = agents.Agent(
            name="verifier", instructions="Judge.", model=model, output_type=Verdict
        )
        result = agents.Runner.run_sync(agent, "right?")
        assert isinstance(result.final_output, Verdict)
