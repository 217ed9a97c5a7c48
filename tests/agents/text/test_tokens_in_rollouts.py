"""Tokens of replies in rollouts: stored if requested, and unchanged by a round trip."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from local_services import LocalService, chat_answer

from ratchet.errors import DataError
from ratchet.protocols.registry import build_protocol_handler
from ratchet.rollouts import (
    NestedArrayDict,
    NestedArrayDictDataset,
    ReplyTokens,
    concatenate_nested_array_dicts,
    load_nested_array_dict,
    save_nested_array_dict,
    tokens_of,
)
from ratchet.rollouts.tokens import even_out_tokens
from ratchet.scenarios.pure_text.agents.whole_agent import CallContext
from ratchet.scenarios.pure_text.environment import PureTextEnvironment
from ratchet.scenarios.pure_text.rollout import sample_rollout
from trainers.registry import TRAINERS
from trainers.stage_parameters import TEXT_STAGES


@pytest.fixture
def service():
    service = LocalService()
    body = chat_answer("Decision: accept")
    log_probs = {"content": [{"token": "x", "bytes": None, "logprob": -0.30000000000000004}]}
    body["choices"][0] |= {"logprobs": log_probs, "token_ids": [9]}
    service.default.body = {**body, "prompt_token_ids": [3, 1]}
    yield service
    service.close()


@pytest.fixture
def play(service, game):
    def make(**verifier):
        parameters = game.parameters(
            _default={"base_url": service.url, "num_invalid_generation_retries": 0},
            verifier=verifier,
        )
        data = {"question": ["q"], "solution": ["s"]}
        numbers = {"y": np.array([1]), "datapoint_id": np.array([0])}
        dataset = NestedArrayDictDataset(NestedArrayDict({**data, **numbers}, 1))
        handler = build_protocol_handler(parameters)
        environment = PureTextEnvironment(parameters, dataset, handler, train=True)
        context = CallContext(None, None, "", 1)
        return asyncio.run(sample_rollout(environment, game.agents(parameters), 0, 1, 0, context))

    return make


def test_they_are_kept_bit_for_bit_for_who_asks(play, tmp_path):
    rollout = play(logprobs=True, return_token_ids=True)
    save_nested_array_dict(rollout, tmp_path / "rollouts.parquet")
    loaded = load_nested_array_dict(tmp_path / "rollouts.parquet")
    assert loaded == rollout
    active = np.argwhere(loaded["agents", "active"])
    found = {int(agent): tokens_of(loaded, *map(int, (r, t, agent))) for r, t, agent in active}
    verifier = ReplyTokens((-0.30000000000000004,), (9,), (3, 1))
    assert found[1] == verifier
    assert found.get(0) is None, "the prover requests none"


def test_without_asking_rollouts_are_as_they_were(play):
    rollout = play()
    assert ("agents", "tokens") not in rollout
    with pytest.raises(DataError, match=r"logprobs.*sample them again"):
        tokens_of(rollout, 0, 0, 1)


def test_rollouts_with_and_without_go_together(play):
    batches = [play(), play(logprobs=True)]
    even_out_tokens(batches)
    both = concatenate_nested_array_dicts(batches)
    step = int(np.argwhere(both["agents", "active"][1, :, 1])[0, 0])
    assert tokens_of(both, 0, step, 1) is None
    assert tokens_of(both, 1, step, 1) == ReplyTokens((-0.30000000000000004,))
    plain = [play(), play()]
    even_out_tokens(plain)
    assert ("agents", "tokens") not in plain[0]


@pytest.mark.parametrize("name", ["logprobs", "return_token_ids"])
def test_keys_of_stages_change_only_where_they_are_on(game, name):
    trainer = TRAINERS.find("pure_text_ei")

    def keys(**verifier):
        parameters = game.parameters(verifier=verifier)
        return {stage: trainer.stage_key_parameters(parameters, stage) for stage in TEXT_STAGES}

    off, on = keys(), keys(**{name: True})
    assert keys(**{name: False}) == off
    assert name not in str(off)
    assert {stage for stage in off if off[stage] != on[stage]} == {
        "sample_rollouts",
        "test_during_training",
        "create_fine_tune_jobs",
        "test",
    }


def test_an_unnamed_service_of_fine_tuning_is_in_no_key(game):
    trainer = TRAINERS.find("pure_text_ei")

    def key(stage, **service):
        agent = {"fine_tuning_service": service} if service else {}
        return trainer.stage_key_parameters(game.parameters(_default=agent), stage)

    assert "fine_tuning_service" not in str(key("create_fine_tune_jobs"))
    together = {"backend": "together", "hardware": "1x"}
    changed = {stage for stage in TEXT_STAGES if key(stage, **together) != key(stage)}
    assert changed == {"create_fine_tune_jobs"}
