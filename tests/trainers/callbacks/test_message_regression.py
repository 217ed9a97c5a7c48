"""Message regression detects information in messages, and does not affect training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tensordict import TensorDict

from ratchet import ExperimentSettings
from ratchet.errors import ParameterError
from ratchet.scenarios import build_scenario_instance
from trainers.callbacks.base import Moment
from trainers.callbacks.message_regression import MessageRegression, episode_messages
from trainers.compatibility import check_combination
from trainers.registry import build_trainer
from trainers.tensordict.states.state import State

ON = {"message_regression__enabled": True}
METHODS = ("mlp", "cnn")


def rollouts_of(tiny, **changes):
    trainer = tiny.trainer(tiny.parameters(**changes))
    trainer.initial_state()
    return trainer, trainer.components.collector.collect(0)


@pytest.mark.parametrize("protocol", ["nip", "debate", "multi_channel_test"])
def test_what_an_agent_said_is_laid_out_by_round(tiny, protocol):
    changes = {"include_linear_message_space": True, "message_size": 2}
    trainer, rollouts = rollouts_of(tiny, interaction_protocol=protocol, **changes)
    environment = trainer.train_environment
    channels, positions, symbols = environment.message_shape
    for agent in range(len(trainer.agent_names)):
        laid = iter(episode_messages(rollouts, agent, environment.max_rounds))
        for row in rollouts:
            first = 0
            for step in range(rollouts.shape[1]):
                if not row["next", "done"][step]:
                    continue
                expected = torch.zeros(environment.max_rounds, channels * positions * symbols + 2)
                for now, place in enumerate(range(first, step + 1)):
                    active = row["agents", "active"][place, agent]
                    for channel in active.nonzero().flatten().tolist():
                        for position in range(positions):
                            said = int(row["agents", "message"][place, agent, channel, position])
                            where = (channel * positions + position) * symbols + said
                            expected[now, where] = 1
                    if active.any():
                        said = int(row["agents", "linear_message"][place, agent])
                        expected[now, channels * positions * symbols + said] = 1
                assert torch.equal(next(laid), expected)
                first = step + 1
        assert next(laid, None) is None


def fit(regression, rollouts):
    return regression.after_rollouts(Moment(0, "train", {}), rollouts)


def say(rollouts: TensorDict, said: torch.Tensor) -> TensorDict:
    """Let all agents send the given symbols, [E], in all rounds."""
    changed = rollouts.clone()
    message = changed["agents", "message"]
    changed["agents", "message"] = said.view(-1, 1, 1, 1, 1).expand_as(message).clone()
    return changed


@pytest.mark.parametrize("method", METHODS)
def test_messages_that_give_y_away_score_1_and_others_as_chance(tiny, method):
    hyper_params = tiny.parameters(
        **ON,
        interaction_protocol="adp",
        rl__frames_per_batch=800,
        message_regression__method=method,
        message_regression__num_epochs=30,
        message_regression__learning_rate=0.01,
        message_regression__test_size=0.5,
        message_regression__agents=("prover",),
    )
    settings, datasets = ExperimentSettings(), {s: tiny.dataset(400, 3) for s in ("train", "test")}
    scenario = build_scenario_instance(hyper_params, settings, datasets=datasets)
    trainer = build_trainer(hyper_params, scenario, settings)
    trainer.initial_state()
    rollouts = trainer.components.collector.collect(0)
    regression = trainer.callbacks._all["message_regression"]
    y = rollouts["y"][:, 0]
    told = fit(regression, say(rollouts, 1 + 2 * y))
    assert told == {"prover.message_regression_score": 1.0}
    generator = torch.Generator().manual_seed(5)
    noise = torch.randint(0, 8, y.shape, generator=generator)
    untold = fit(regression, say(rollouts, noise))["prover.message_regression_score"]
    assert 0.4 < untold < 0.6


def test_episodes_of_one_datapoint_are_held_out_together(tiny):
    regression = tiny.trainer(tiny.parameters(**ON)).callbacks._all["message_regression"]
    assert isinstance(regression, MessageRegression)
    ids = torch.tensor([3, 9, 9, 1, 40, 3, 3, 7, 5, 1, 40, 9, 8, 2, 5, 6, 6, 2])
    held_out = regression._hold_out(ids, 0)
    assert len(ids[held_out].unique()) == 2
    assert not set(ids[held_out].tolist()) & set(ids[~held_out].tolist())
    assert torch.equal(held_out, regression._hold_out(ids, 0))
    draws = [tuple(regression._hold_out(ids, i).nonzero().flatten().tolist()) for i in range(9)]
    assert len(set(draws)) > 1
    assert regression._hold_out(ids[:1], 0) is None


def metrics_of(trainer):
    return [record.values for record in trainer.history if record.stage == "train"]


def test_every_agent_has_a_score_and_learns_as_without_it(tiny):
    without = tiny.trainer(tiny.parameters())
    without.train()
    trainer = tiny.trainer(tiny.parameters(**ON))
    trainer.train()
    assert replace(trainer.state, callbacks={}) == without.state
    for plain, values in zip(metrics_of(without), metrics_of(trainer), strict=True):
        scores = {name: value for name, value in values.items() if name not in plain}
        assert set(scores) == {
            "prover.message_regression_score",
            "verifier.message_regression_score",
        }
        assert all(0 <= score <= 1 for score in scores.values())
        assert {name: values[name] for name in plain} == plain


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reset", [True, False])
def test_saved_and_resumed_is_uninterrupted_bit_for_bit(tiny, tmp_path, method, reset):
    hyper_params = tiny.parameters(
        **ON, message_regression__method=method, message_regression__reset_on_fit=reset
    )
    whole = tiny.trainer(hyper_params)
    whole.train()
    state, metrics = tiny.trainer(hyper_params).initial_state(), []
    for iteration in range(3):
        state.save(tmp_path / str(iteration))
        trainer = tiny.trainer(hyper_params)
        trainer.state = State.load(tmp_path / str(iteration))
        metrics += trainer.run_iterations(iteration, iteration + 1)
        state = trainer.state
    assert state == whole.state
    assert metrics == metrics_of(whole)
    assert ("message_regression" in state.callback_tensors) != reset
    whole.initial_state()  # the same trainer, again from the initial state
    assert whole.run_iterations(0, 3) == metrics


def test_agents_that_are_not_there_and_trainers_without_rollouts_are_refused(tiny):
    check_combination(tiny.parameters(**ON))
    with pytest.raises(ParameterError, match=r"got 'provr', expected agents.*mean 'prover'"):
        check_combination(tiny.parameters(**ON, message_regression__agents=("provr",)))
    with pytest.raises(ParameterError, match=r"message_regression\.enabled.*solo_agent"):
        check_combination(tiny.parameters(**ON, trainer="solo_agent"))
