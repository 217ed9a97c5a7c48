"""Agents with a chat model: requests, parsing of replies, and errors."""

from __future__ import annotations

import asyncio

import pytest

from ratchet.errors import ContentFilterError, ParameterError, UnexpectedFinishError
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.usage import UsageMeter
from ratchet.parameters import HyperParameters
from ratchet.scenarios.pure_text.agents.whole_agent import CallContext


@pytest.fixture
def agents(chat_service, game):
    return game.agents(
        game.parameters(
            _default={
                "base_url": chat_service.url,
                "model_name": "tiny",
                "temperature": 0.7,
                "num_invalid_generation_retries": 3,
            },
        )
    )


def act(agent, view, journal=None, usage=None, seed=5):
    return asyncio.run(agent.act(view, CallContext(journal, usage, "r12", seed)))


def test_a_reply_is_read_and_counted(chat_service, agents, game):
    usage = UsageMeter("sample_rollouts")
    output = act(agents["verifier"], game.view(), usage=usage)
    assert output.messages == {"main": "why?"}
    assert (output.raw_message, output.decision, output.valid) == ("Question: why?", 2, True)
    assert (output.retry_count, output.prompt_tokens, output.completion_tokens) == (0, 11, 7)
    assert output.prompt[0].content == "You are the verifier. Add two numbers."
    (asked,) = chat_service.asked
    assert asked["model"] == "tiny"
    assert asked["temperature"] == 0.7
    assert "top_p" not in asked
    assert asked["max_tokens"] == 225  # 1.5 tokens for each of 150 words
    (row,) = usage.rows()
    assert (row.stage, row.agent, row.model) == ("sample_rollouts", "verifier", "tiny")
    assert (row.calls, row.prompt_tokens, row.completion_tokens) == (1, 11, 7)
    assert row.cost is None  # this model has no price


def test_a_decision_is_read(chat_service, agents, game):
    chat_service.replies = [("**Decision: Accept.**", "stop")]
    output = act(agents["verifier"], game.view())
    assert (output.decision, output.messages, output.valid) == (1, {}, True)


def test_unreadable_replies_are_asked_for_again_with_other_seeds(chat_service, agents, game):
    chat_service.replies = [("Hm", "stop"), ("", "stop"), ("Question: so?", "length")]
    usage = UsageMeter()
    output = act(agents["verifier"], game.view(), usage=usage)
    assert (output.retry_count, output.valid, output.token_limit) == (2, True, True)
    assert (output.prompt_tokens, output.completion_tokens) == (33, 21)
    assert len({asked["seed"] for asked in chat_service.asked}) == 3
    assert usage.total.calls == 3


def test_after_the_last_retry_an_empty_message_and_a_flag(chat_service, agents, game):
    chat_service.replies = [("Hm", "stop")]
    output = act(agents["verifier"], game.view())
    assert (output.messages, output.raw_message) == ({"main": ""}, "")
    assert (output.decision, output.valid, output.retry_count) == (2, False, 3)
    assert len(chat_service.asked) == 4


def test_seeds_depend_on_rollout_round_and_agent_alone(chat_service, agents, game):
    def seeds():
        chat_service.asked.clear()
        for name in ("prover", "verifier"):
            for round in (0, 1):
                act(agents[name], game.view(name, round))
        act(agents["verifier"], game.view(), seed=6)
        return [asked["seed"] for asked in chat_service.asked]

    first = seeds()
    assert len(set(first)) == 5
    assert first == seeds()
    assert all(0 <= seed < 2**31 for seed in first)


def test_what_the_journal_has_is_not_asked_again(chat_service, agents, game, tmp_path):
    chat_service.replies = [("Hm", "stop"), ("Question: so?", "stop")]
    outputs = []
    for _ in range(2):
        with CallJournal(tmp_path / "calls.jsonl") as journal:
            outputs.append(act(agents["verifier"], game.view(round=2), journal))
    assert outputs[0] == outputs[1]
    assert len(chat_service.asked) == 2
    lines = (tmp_path / "calls.jsonl").read_text()
    assert '"r12/t2/verifier/a0"' in lines
    assert '"r12/t2/verifier/a1"' in lines


@pytest.mark.parametrize(
    ("finish", "kind"),
    [("content_filter", ContentFilterError), ("tool_calls", UnexpectedFinishError)],
)
def test_errors_name_datapoint_agent_and_round(chat_service, agents, game, finish, kind):
    chat_service.replies = [("Question: so?", finish)]
    with pytest.raises(kind, match=r"datapoint 42, agent 'verifier', round 2 .*r12/t2/verifier/a0"):
        act(agents["verifier"], game.view(round=2))


def test_dummy_answers_are_seeded_valid_and_make_no_call(chat_service, game):
    parameters = game.parameters(_default={"base_url": chat_service.url, "use_dummy_api": True})
    agents = game.agents(parameters)
    outputs = [act(agents["verifier"], game.view(), seed=seed) for seed in range(40)]
    assert outputs == [act(agents["verifier"], game.view(), seed=seed) for seed in range(40)]
    assert all(output.valid and output.retry_count == 0 for output in outputs)
    assert {output.decision for output in outputs} == {0, 1, 2}
    last = game.view(is_last_round=True)
    assert {act(agents["verifier"], last, seed=seed).decision for seed in range(20)} == {0, 1}
    silent = game.view("prover", headers={"main": "Answer:"}, may_decide=False)
    assert {act(agents["prover"], silent, seed=seed).decision for seed in range(20)} == {2}
    assert chat_service.asked == []


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 1.0, "top_p": 0.9},
        {"is_random": True},
        {"agent_lr_factor": {"actor": 0.5}},
        {"num_invalid_generation_retries": -1},
        {"model_name": ""},
    ],
)
def test_parameters_that_do_not_fit_are_errors(game, changes):
    with pytest.raises(ParameterError, match=r"agents\.prover"):
        game.parameters(prover=changes)


def test_parameters_survive_a_round_trip(game):
    parameters = game.parameters(prover={"top_p": 0.5, "fine_tuning": {"n_epochs": 4}})
    assert HyperParameters.from_dict(parameters.to_dict()) == parameters
