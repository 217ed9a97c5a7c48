"""States that runs share: equal keys mean equal states, without parameters of training.

A shared state is one that another run has stored under the same key.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ratchet.errors import DataError
from ratchet.language_models.local.loading import load_language_model
from ratchet.scenarios.language_task.evaluators import Evaluator
from tasks.language.keys import LanguageArmKeys
from tests.trainers.language.test_language_trainer import (
    build,
    keep,
    load,
    parameters,
)
from trainers.registry import trainer_class

KL = {"language_task": {"evaluator": "partial"}}


@pytest.fixture
def own_model(tmp_path):
    trainer = build(parameters())
    trainer.initial_state()
    trainer.learner.save_model(tmp_path / "model")
    return tmp_path / "model"


def key(given, iteration):
    return LanguageArmKeys("main", given).state_key(iteration)


@pytest.mark.parametrize(
    "learning",
    [
        {"language": {"optimizer": {"lr": 0.01, "beta1": 0.5, "beta2": 0.9, "weight_decay": 0.3}}},
        {"grpo": {"kl": {"coef": 0.5}}},
        {"grpo": {"kl": {"coef": 0.5, "place": "reward", "target": 0.01, "horizon": 20}}},
    ],
)
def test_a_first_state_that_another_run_has_stored_brings_no_parameter_of_learning(
    learning, tmp_path
):
    plain, own = parameters(**KL), parameters(**KL, **learning)
    assert key(plain, 0) == key(own, 0), "else there is nothing to share"
    other = build(plain)
    other.initial_state()
    keep(other, tmp_path, "initial")
    alone, sharing = build(own), build(own)
    alone.initial_state()
    load(sharing, tmp_path, "initial")
    assert sharing.run_iterations(0, 3) == alone.run_iterations(0, 3)


@pytest.mark.parametrize("mode", ["synchronous", "one_step_behind"])
def test_a_longer_run_goes_on_from_a_shorter_ones_last_state(mode, tmp_path):
    short, long = (
        parameters(language={"mode": mode}, rl={"num_iterations": iterations}, **KL)
        for iterations in (2, 4)
    )
    assert key(short, 2) == key(long, 2)
    first = build(short)
    first.initial_state()
    first.run_iterations(0, 2)
    keep(first, tmp_path, "two")
    through, longer = build(long), build(long)
    through.initial_state()
    whole = through.run_iterations(0, 4)
    load(longer, tmp_path, "two")
    assert longer.run_iterations(2, 4) == whole[2:]


def test_keys_contain_the_states_from_which_agents_start():
    keys = [
        LanguageArmKeys("main", parameters(), checkpoints=digests).state_key(2)
        for digests in ({}, {"agent": "one"}, {"agent": "other"})
    ]
    assert len({*keys}) == 3


@pytest.mark.slow
def test_the_pull_goes_to_the_model_as_it_was_warmed_up_under_an_adapter(own_model):
    agent = {"max_tokens": 5, "model": str(own_model), "lora": {"rank": 2}}
    agent["warm_up"] = {"num_steps": 10, "batch_size": 8, "lr": 0.01}
    content = parameters(grpo={"kl": {"coef": 0.1}}, **KL).to_dict()
    trainer = build(type(parameters())(**{**content, "agents": {"_default": agent}}))
    trainer.initial_state()
    (metrics,) = trainer.run_iterations(0, 1)
    assert metrics["actor/kl"] == pytest.approx(0, abs=1e-9)


def test_a_state_stays_as_it_is_while_what_took_it_learns():
    trainer = build(parameters(**KL))
    trainer.initial_state()
    trainer.run_iterations(0, 1)
    state = trainer.state
    trainer.state = state
    once = trainer.run_iterations(1, 3)
    trainer.state = state
    assert trainer.run_iterations(1, 3) == once


class Dice(Evaluator):
    """Samples from torch's global generator, which no thread of another test uses."""

    def score(self, task, completion, messages):
        return torch.rand(()).item()


def test_what_an_evaluator_draws_depends_on_no_cut():
    def begun():
        trainer = build(parameters())
        environments = trainer.scenario_instance.environments
        train = environments["train"]
        environments["train"] = replace(train, rules=replace(train.rules, evaluator=Dice()))
        trainer.initial_state()
        return trainer

    through, cut, apart = begun(), begun(), begun()
    whole = through.run_iterations(0, 2)
    assert whole[0]["rollout/reward"] != whole[1]["rollout/reward"]
    assert [*cut.run_iterations(0, 1), *cut.run_iterations(1, 2)] == whole
    for iteration in range(2):
        apart.give_rollouts(iteration, apart.play_rollouts(iteration))
        assert apart.run_iterations(iteration, iteration + 1) == [whole[iteration]]


def test_an_adapter_is_found_again_where_its_base_was_moved(own_model, tmp_path):
    def given(folder):
        agent = {"max_tokens": 5, "model": str(folder), "lora": {"rank": 2}}
        return type(parameters())(**{**parameters().to_dict(), "agents": {"_default": agent}})

    first = build(given(own_model))
    before = key(given(own_model), 0)
    first.initial_state()
    keep(first, tmp_path, "initial")
    moved = own_model.rename(tmp_path / "moved")
    assert key(given(moved), 0) == before
    again = build(given(moved))
    load(again, tmp_path, "initial")
    assert again.run_iterations(0, 1) == first.run_iterations(0, 1)
    adapter = tmp_path / "initial" / "models" / "agent"
    with pytest.raises(DataError, match="no longer exists"):
        load_language_model(adapter, base_dir=tmp_path)
    other = build(parameters(seed=3))
    other.initial_state()
    other.learner.save_model(own_model)
    with pytest.raises(DataError, match="has different weights now"):
        load_language_model(adapter, base_dir=tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"language.train_service.url": "http://other-host:8000"},
        {"language.train_service.api_key_name": "OTHER_KEY"},
        {"language.failures.retries": 7},
        {"grpo.kl.horizon": 7},
    ],
)
def test_where_a_service_is_and_what_nobody_reads_is_in_no_key(change):
    given = parameters("remote_grpo", language={"train_service": {"backend": "ratchet"}})
    assert key(given.replace(change), 2) == key(given, 2)
    assert key(given.replace({"language.optimizer.beta1": 0.5}), 2) != key(given, 2)


WORDY = """
from ratchet.scenarios.language_task.environments.base import SingleTurn

class Wordy(SingleTurn):
    def __init__(self, sign):
        self.sign = sign

    def characters(self):
        return self.sign
"""


def test_models_of_other_alphabets_have_other_keys(tmp_path):
    (tmp_path / "mine.py").write_text(WORDY)
    environment = {"name": f"{tmp_path}/mine.py:Wordy"}
    first, other = (
        parameters(language_task={"environment": {**environment, "sign": sign}}) for sign in "!?"
    )
    alphabets = [build(given).scenario_instance.characters for given in (first, other)]
    assert alphabets[0] != alphabets[1]
    assert key(first, 0) != key(other, 0)


def test_a_loaded_model_needs_no_files_but_those_of_an_adapters_base(own_model):
    def read(**agent):
        given = parameters(agents={"agent": {"model": str(own_model), **agent}})
        return trainer_class(given).read_models(given, ["agent"])

    loaded = {"load_checkpoint_and_parameters": True, "checkpoint_run_id": "earlier"}
    assert read() == read(**loaded, lora={"rank": 2}) == {"agent": str(own_model)}
    assert read(**loaded) == {}
