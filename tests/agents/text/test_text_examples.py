"""Training examples: an agent's point of view, cut after its last own reply, the same bytes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ratchet.errors import DataError
from ratchet.protocols.decision_scales import DECISION_SCALES
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.scenarios.pure_text.agents.examples import (
    PreferencePair,
    guess_replaced_examples,
    preference_examples,
    supervised_examples,
    to_lines,
)

PROVER, VERIFIER = 0, 1


def prompt(*texts):
    return json.dumps([{"role": "user", "content": text} for text in texts], ensure_ascii=False)


def rollouts():
    """Two rollouts of three steps: verifier, prover, verifier; the second ends after the first.

    In the first the verifier's last reply could not be read.
    """
    raw = [[[None, "Question: é?"], ["Answer: 1", None], [None, ""]]]
    raw += [[[None, "Decision: accept"], [None, None], [None, None]]]
    active = [[[False, True], [True, False], [False, True]], [[False, True]] * 3]
    valid = [[[False, True], [True, False], [False, False]], [[False, True]] + [[False] * 2] * 2]
    prompts = [[[None, prompt("v0")], [prompt("p1"), None], [None, prompt("v0", "v2")]]]
    prompts += [[[None, prompt("w0")], [None, None], [None, None]]]
    return NestedArrayDict(
        {
            "y": np.array([1, 0]),
            "padding": np.array([[False] * 3, [False, True, True]]),
            "agents": {
                "active": np.array(active),
                "valid": np.array(valid),
                "raw_message": raw,
                "prompt": prompts,
            },
        },
        2,
    )


def said(example):
    return [message["content"] for message in example["messages"]]


def test_an_example_ends_with_the_agents_last_readable_reply():
    assert [said(e) for e in supervised_examples(rollouts(), VERIFIER)] == [
        ["v0", "Question: é?"],
        ["w0", "Decision: accept"],
    ]
    assert supervised_examples(rollouts(), VERIFIER)[0]["messages"][-1]["role"] == "assistant"


def test_who_never_spoke_has_no_example():
    assert [said(e) for e in supervised_examples(rollouts(), PROVER)] == [["p1", "Answer: 1"]]


def test_a_replaced_guess_is_the_true_decision_after_the_last_prompt():
    assert [said(e) for e in guess_replaced_examples(rollouts(), VERIFIER)] == [
        ["v0", "v2", "Decision: accept"],
        ["w0", "Decision: reject"],
    ]


def test_a_replaced_guess_is_the_surest_answer_of_its_scale():
    scale = DECISION_SCALES["out_of_100"]
    replies = [said(e)[-1] for e in guess_replaced_examples(rollouts(), VERIFIER, scale)]
    assert replies == ["Decision: 100", "Decision: 0"]


def test_no_rollouts_make_no_examples():
    empty = rollouts()[np.array([], dtype=np.int64)]
    assert supervised_examples(empty, VERIFIER) == guess_replaced_examples(empty, VERIFIER) == []


def test_a_preference_is_in_the_form_that_services_read():
    pairs = [PreferencePair(prompt("q"), "good", "bad"), PreferencePair(prompt("q"), "x", "x")]
    assert preference_examples(pairs) == [
        {
            "input": {"messages": [{"role": "user", "content": "q"}]},
            "preferred_output": [{"role": "assistant", "content": "good"}],
            "non_preferred_output": [{"role": "assistant", "content": "bad"}],
        }
    ]


def test_equal_rollouts_make_equal_bytes_one_line_each():
    content = to_lines(supervised_examples(rollouts(), VERIFIER))
    assert content == to_lines(supervised_examples(rollouts().clone(), VERIFIER))
    assert "é".encode() in content
    assert content.count(b"\n") == 2 == len(content.split(b"\n")[:-1])


def test_a_prompt_of_another_form_is_an_error():
    with pytest.raises(DataError, match="JSON list of chat messages"):
        preference_examples([PreferencePair("hello", "a", "b")])
