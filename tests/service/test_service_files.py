"""Files: stored unchanged, or refused with the line and the invalid field."""

from __future__ import annotations

import json

import openai
import pytest

USER, SAID = {"role": "user", "content": "?"}, {"role": "assistant", "content": "fine"}


def _line(*messages, **more):
    return json.dumps({"messages": list(messages), **more})


GOOD = _line(USER, SAID)


def _preference(**changes):
    example = {"input": {"messages": [USER]}, "preferred_output": [SAID]}
    return json.dumps({**example, "non_preferred_output": [SAID], **changes})


def test_a_file_is_stored_listed_and_deleted(client, upload):
    data = (GOOD + "\n").encode() * 12
    first, second = upload(client, data=data), upload(client, method="dpo")
    entry = client.files.retrieve(first)
    assert (entry.bytes, entry.filename, entry.purpose) == (len(data), "train.jsonl", "fine-tune")
    assert client.files.content(first).read() == data
    assert [file.id for file in client.files.list(limit=1)][:2] == [second, first]
    assert [file.id for file in client.files.list(order="asc", after=first)] == [second]
    assert client.files.list(purpose="vision").data == []
    assert client.files.delete(first).deleted
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match=f"The file '{first}' does not exist"):
            ask(first)
    client.files.delete(second)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD + "\n\n \n",
        GOOD + "\r\n" + GOOD,
        _line({**SAID, "weight": 0}, USER, {**SAID, "weight": 1}),
        _line({"role": "developer", "content": [{"type": "text", "text": "x"}]}, SAID),
        _line({**USER, "name": "Bob: the prover"}, SAID),
        _preference(),
    ],
)
def test_valid_examples_are_accepted(client, upload, text):
    client.files.delete(upload(client, data=text.encode()))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the file is empty"),
        (GOOD + "\n{", "line 2 is not valid JSON"),
        (GOOD + "\n\n" + GOOD, "line 2 is empty"),
        ("[1]", "line 1: Input should be an object"),
        (GOOD + "\n" + _line(USER), "line 2: .*the last message must be the assistant's"),
        (_line(), "line 1, messages: List should have at least 1 item"),
        (_line(USER, SAID, extra=1).replace("extra", "tools"), "line 1, tools: Tool calls cannot"),
        (GOOD + "\n" + _line({"role": "user"}, SAID), r"line 2, messages\[0\].content: Field"),
        (_line({"role": "robot", "content": ""}, SAID), r"line 1, messages\[0\]: .*'robot'"),
        (_line(USER, {**SAID, "weight": 2}), r"line 1, messages\[1\].weight: Input should be 0"),
        (_line(USER, {**SAID, "weight": 0}), "line 1: .*no assistant message has a weight"),
        (_preference() + "\n" + GOOD, r"line 2, input: Field required \(a dpo example"),
        (_preference(preferred_output=[]), "line 1, preferred_output: List should have at least"),
        (_preference(preferred_output=[USER]), r"line 1, preferred_output\[0\].role: Input"),
        (GOOD.replace("fine", "\\ud800"), "line 1 is not valid JSON"),
    ],
)
def test_errors_name_line_and_field(client, upload, text, complaint):
    with pytest.raises(openai.BadRequestError, match=complaint) as caught:
        upload(client, data=text.encode())
    assert caught.value.code == "invalid_training_file"
    assert caught.value.param == "file"
    assert client.files.list().data == []


def test_uploads_need_a_file_and_a_purpose(client):
    file = ("a.jsonl", GOOD.encode())
    with pytest.raises(openai.BadRequestError, match="'purpose': got 'vision'"):
        client.files.create(file=file, purpose="vision")
    with pytest.raises(openai.BadRequestError, match="Unknown parameter: 'expires_after"):
        client.files.create(
            file=file, purpose="fine-tune", expires_after={"anchor": "created_at", "seconds": 1}
        )
    with pytest.raises(openai.BadRequestError, match="'file', as a file in multipart"):
        client.post("/files", body={"purpose": "fine-tune"}, cast_to=object)
