"""Tokens of a reasoning model's reply that are trained: exactly those it would generate."""

from __future__ import annotations

import json

import pytest
from micro_model import write_micro_model
from thinking_template import FORGETS, MUST_THINK, THINKS

from ratchet.language_models.local.tokenizer import ChatTokenizer
from ratchet.language_models.types import ChatMessage
from ratchet.service.training.tokens import read_preferences, read_supervised

PROMPT = [{"role": "user", "content": "same"}]
ANSWER, THOUGHT = "Decision: accept", "<think>\nHm.\n</think>\n\nDecision: accept"
EMPTY = "<think>\n\n</think>\n\n"
ASKED = "<|user|>same<|end|><|assistant|>"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for name, template in (("thinks", THINKS), ("must", MUST_THINK), ("forgets", FORGETS)):
        made[name] = write_micro_model(tmp_path_factory.mktemp("base") / name)
        (made[name] / "chat_template.jinja").write_text(template)
    return made


def texts(tokenizer, sequence):
    """Return the texts of a sequence's context tokens and of its trained tokens."""
    ids = list(zip(sequence.ids, sequence.weights, strict=True))
    return tuple(
        tokenizer._tokenizer.decode([i for i, w in ids if w == wanted], skip_special_tokens=False)
        for wanted in (0.0, 1.0)
    )


def supervised(folder, tmp_path, reply):
    file = tmp_path / "chats.jsonl"
    message = {"role": "assistant", "content": reply}
    file.write_text(json.dumps({"messages": [*PROMPT, message]}) + "\n")
    tokenizer = ChatTokenizer(folder)
    (sequence,) = read_supervised(file, tokenizer, 1000)
    return texts(tokenizer, sequence)


@pytest.mark.parametrize(
    ("model", "reply", "read", "learned"),
    [
        ("thinks", ANSWER, ASKED + EMPTY, f"{ANSWER}<|end|>"),
        ("thinks", THOUGHT, ASKED, f"{THOUGHT}<|end|>"),
        ("must", ANSWER, ASKED + EMPTY, f"{ANSWER}<|end|>"),
        ("must", THOUGHT, f"{ASKED}<think>\n", f"Hm.\n</think>\n\n{ANSWER}<|end|>"),
        ("forgets", ANSWER, ASKED + EMPTY, f"{ANSWER}<|end|>"),
        ("forgets", THOUGHT, f"{ASKED}<think>\n", f"Hm.\n</think>\n\n{ANSWER}<|end|>"),
    ],
)
def test_a_templates_empty_block_is_context_and_reasoning_is_trained(
    folders, tmp_path, model, reply, read, learned
):
    assert supervised(folders[model], tmp_path, reply) == (read, learned)


def test_context_before_an_answer_is_the_prompt_without_reasoning(folders, tmp_path):
    tokenizer = ChatTokenizer(folders["thinks"])
    chat = [ChatMessage("user", "same")]
    told = tokenizer.render(chat, answer=True, variables={"enable_thinking": False})
    assert supervised(folders["thinks"], tmp_path, ANSWER)[0] == told


def test_earlier_replies_of_a_chat_are_trained_as_if_last(folders, tmp_path):
    file = tmp_path / "chats.jsonl"
    replies = [{"role": "assistant", "content": text} for text in ("Question: why?", ANSWER)]
    chat = [PROMPT[0], replies[0], {"role": "user", "content": "x"}, replies[1]]
    file.write_text(json.dumps({"messages": chat}) + "\n")
    tokenizer = ChatTokenizer(folders["thinks"])
    parts = [texts(tokenizer, each) for each in read_supervised(file, tokenizer, 1000)]
    assert parts == [
        (ASKED + EMPTY, "Question: why?<|end|>"),
        (
            f"{ASKED}Question: why?<|end|><|user|>x<|end|><|assistant|>{EMPTY}",
            f"{ANSWER}<|end|>",
        ),
    ]


@pytest.mark.parametrize("model", ["thinks", "must", "forgets"])
@pytest.mark.parametrize(
    "replies", [(ANSWER, "No"), (THOUGHT, "No"), (THOUGHT, "<think>x</think>No")]
)
def test_both_sides_of_a_preference_have_the_same_prompt(folders, tmp_path, model, replies):
    file = tmp_path / "pairs.jsonl"
    names = ("preferred_output", "non_preferred_output")
    sides = {
        name: [{"role": "assistant", "content": reply}]
        for name, reply in zip(names, replies, strict=True)
    }
    file.write_text(json.dumps({"input": {"messages": PROMPT}, **sides}) + "\n")
    tokenizer = ChatTokenizer(folders[model])
    (pair,) = read_preferences(file, tokenizer, 1000)
    (read, better), (also_read, worse) = (
        texts(tokenizer, side) for side in (pair.preferred, pair.non_preferred)
    )
    assert read == also_read
    assert better.endswith(f"{ANSWER}<|end|>")
    assert worse.endswith("No<|end|>")
    assert ("</think>" in worse) == (replies[0] == THOUGHT)
