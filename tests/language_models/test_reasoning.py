"""Reasoning is split from the answer, however the service returns it."""

from __future__ import annotations

import asyncio

import pytest

from ratchet.language_models.chat import ChatClient
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.reasoning import empty_block_length, opened_tags, split_reasoning
from ratchet.language_models.types import ChatMessage, ChatRequest, Completion

REQUEST = ChatRequest("m", (ChatMessage("user", "?"),))


@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        ("Decision: accept", "", "Decision: accept"),
        ("<think>\n\n</think>\n\nDecision: accept", "", "Decision: accept"),
        ("\n<think>\nHm.\n\nWell.\n</think>\n\nYes", "Hm.\n\nWell.", "Yes"),
        ("<thinking>Hm.</thinking>Yes", "Hm.", "Yes"),
        ("[THINK]Hm.[/THINK]Yes", "Hm.", "Yes"),
        ("<think></think><think>Hm.</think>Yes", "Hm.", "Yes"),
        ("<think>\nHm, the loop", "Hm, the loop", ""),  # truncated
        ("Hm.\n</think>\n\nYes", "Hm.", "Yes"),  # the prompt has opened it
        ("Question: what is <think>x</think>?", "", "Question: what is <think>x</think>?"),
        ("Question: why </think> here?", "", "Question: why </think> here?"),
        ("", "", ""),
    ],
)
def test_a_leading_block_of_thinking_is_taken_off(text, thinking, answer):
    assert split_reasoning(text) == (thinking, answer)


def test_only_an_empty_block_is_a_templates_own():
    assert empty_block_length("<think>\n\n</think>\n\nYes") == len("<think>\n\n</think>\n\n")
    assert empty_block_length("\n</think>\n\nYes") == len("\n</think>\n\n")
    assert empty_block_length("<think>\nHm\n</think>\n\nYes") == empty_block_length("Yes") == 0
    assert opened_tags("…<|assistant|><think>\n") == ("<think>", "</think>")
    assert opened_tags("…<think>\n\n</think>\n\n") is None


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_services_that_give_thinking_apart_are_read(service, answer, chat, quick, field):
    service.default = answer(body=chat("Decision: accept", **{field: "\nHm.\n"}))
    client = ChatClient(Endpoint(service.url), quick)
    completion = asyncio.run(client.complete(REQUEST))
    assert (completion.text, completion.thinking) == ("Decision: accept", "Hm.")


def test_thinking_is_kept_in_the_journal_and_older_lines_are_read(
    service, answer, chat, quick, tmp_path
):
    service.default = answer(body=chat("<think>Hm.</think>Yes"))
    client = ChatClient(Endpoint(service.url), quick)

    async def ask():
        with CallJournal(tmp_path / "calls.jsonl") as journal:
            return await journal.call("a", REQUEST, lambda: client.complete(REQUEST))

    first, again = asyncio.run(ask()), asyncio.run(ask())
    assert first == again
    assert (again.text, again.thinking, len(service.requests)) == ("Yes", "Hm.", 1)
    plain = Completion("Yes", "stop", 1, 1, "m")
    assert "thinking" not in plain.to_dict()
    assert Completion.from_dict(plain.to_dict()) == plain


def test_what_decides_how_a_model_thinks_is_sent(service, answer, chat, quick):
    asked = ChatRequest(
        "m",
        (ChatMessage("user", "?"),),
        reasoning_effort="low",
        chat_template_kwargs={"enable_thinking": False},
        extra_body={"top_k": 20},
    )
    asyncio.run(ChatClient(Endpoint(service.url), quick).complete(asked))
    body = service.requests[0].json
    assert body["reasoning_effort"] == "low"
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["top_k"] == 20
    assert "extra_body" not in body
    assert ChatRequest.from_dict(asked.to_dict()) == asked
    assert asked.digest() != REQUEST.digest()
