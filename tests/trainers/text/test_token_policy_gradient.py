"""Chat models that learn from tokens: from rollouts to the steps that a service takes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from ratchet.errors import DataError, ParameterError
from ratchet.language_models.training_service.interface import ForwardBackward
from ratchet.language_models.training_service.steps import ServiceLoss, mean_figures
from ratchet.parameters.text_trainers import PureTextGrpoParameters
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.outcomes import episode_rewards
from ratchet.rollouts.tokens import ReplyTokens, tokens_of
from ratchet.rollouts.trajectory import Trajectory
from ratchet.scenarios.pure_text.agents.group_state import (
    PureTextSharedModelGroupState,
    TokenTraining,
)
from trainers.registry import trainer_class
from trainers.text.grpo import reply_trajectories, training_steps
from trainers.text.state import State

NAME = "pure_text_grpo"


def rollouts_of(*rows):
    """Make rollouts in which the second agent replies, of (datapoint, reward, replies)."""
    steps = max(len(replies) for _, _, replies in rows)
    size = (len(rows), steps, 2)
    active, reward = np.zeros(size, dtype=bool), np.zeros(size)
    tokens = np.full(size, None, dtype=object)
    padding = np.ones(size[:2], dtype=bool)
    for row, (_, paid, replies) in enumerate(rows):
        for step, reply in enumerate(replies):
            padding[row, step] = False
            active[row, step, 1] = reply is not None
            tokens[row, step, 1] = None if reply is None else reply.to_json()
        reward[row, len(replies) - 1] = (-paid, paid)
    return NestedArrayDict(
        {
            "datapoint_id": np.array([datapoint for datapoint, _, _ in rows]),
            "padding": padding,
            "node_id": np.full(size[:2], -1),
            "agents": NestedArrayDict(
                {
                    "active": active,
                    "reward": reward,
                    "tokens": tokens,
                    "token_limit": active & (np.arange(steps) == 1)[:, None],
                },
                size,
            ),
        },
        len(rows),
    )


FIRST = ReplyTokens((-0.5, -1.25), (7, 2), (1, 5, 6))
SECOND = ReplyTokens((-2.0,), (9,), (1, 5, 6, 7, 2, 8))


def test_replies_become_trajectories_with_the_ids_the_service_gave():
    rollouts = rollouts_of((4, 1.0, [FIRST, SECOND]), (3, -1.0, [None, SECOND, None]))
    shared = {"agent": "verifier", "model_version": 2}
    second = {"tokens": [1, 5, 6, 7, 2, 8, 9], "loss_mask": [0] * 6 + [1]}
    second |= {"logprobs": [0.0] * 6 + [-2.0], "finish_reason": "length", "is_truncated": True}
    of_four = {"attempt_id": "0", "task_id": "4", "reward": 1.0}
    of_three = {"attempt_id": "1", "task_id": "3", "reward": -1.0}
    for each in (of_four, of_three):
        each["group_id"] = each["run_id"] = f"{each['task_id']}/verifier"
    assert reply_trajectories(rollouts, "verifier", 1, model_version=2) == [
        Trajectory([1, 5, 6, 7, 2], [0, 0, 0, 1, 1], [0, 0, 0, -0.5, -1.25], **of_four, **shared),
        Trajectory(**second, **of_four, **shared),
        Trajectory(**second, **of_three, **shared),
    ]
    assert reply_trajectories(rollouts, "prover", 0) == []


@pytest.mark.parametrize(
    "reply",
    [
        ReplyTokens(token_ids=(7,), prompt_token_ids=(1,)),
        ReplyTokens((-0.5,), (7, 2), (1,)),
        ReplyTokens((-0.5,), (7,)),
    ],
)
def test_a_reply_that_is_not_known_whole_is_refused(reply):
    with pytest.raises(DataError, match="rollout 0, step 0, agent 'verifier': the service ret"):
        reply_trajectories(rollouts_of((0, 1.0, [reply])), "verifier", 1)


def test_tokens_are_asked_for_in_training_and_of_those_who_learn(tiny_text, tmp_path):
    hyper_params = tiny_text.parameters(trainer=NAME, agents__prover__freeze_agent=True)
    trainer = tiny_text.trainer(hyper_params)
    trainer.initial_state()
    rollouts, _ = trainer.sample_rollouts(0, tmp_path / "calls.jsonl")
    for place, agent in enumerate(trainer.agent_names):
        acted = np.argwhere(rollouts["agents", "active"][:, :, place]).tolist()
        found = {tokens_of(rollouts, row, step, place) is not None for row, step in acted}
        assert found == {agent == "verifier"}
    tested, _, _ = trainer.test(0, tmp_path / "test.jsonl")
    assert ("agents", "tokens") not in tested
    state = trainer.create_fine_tune_jobs(0, rollouts)
    assert state.shared_model_groups["prover"].token_training is None
    assert trainer.job_stats()["prover.frozen"] == 1
    assert state.shared_model_groups["verifier"].token_training.model is not None


@pytest.fixture
def learned(tiny_text, monkeypatch):
    """Train on rollouts in which only the verifier replies; return the trainer's steps."""

    def learn(rollouts, **changes):
        taken = []

        def take(group, steps, name):
            taken.append(steps)
            return f"session-{len(taken)}", f"model-{len(taken)}", {"loss": 1.0, "kl": 0.5}

        monkeypatch.setattr("ratchet.scenarios.pure_text.agents.token_training._train", take)
        hyper_params = tiny_text.parameters(
            trainer=NAME, agents__prover__freeze_agent=True, **changes
        )
        trainer = tiny_text.trainer(hyper_params)
        trainer.initial_state()
        for iteration in range(2):
            trainer.create_fine_tune_jobs(iteration, rollouts)
            metrics = trainer.job_stats()
            trainer.await_fine_tune_jobs(iteration)
        return trainer, taken, metrics

    return learn


def test_advantages_are_measured_from_an_agents_running_average(learned):
    rollouts = rollouts_of((0, 1.0, [FIRST, SECOND]), (1, -2.0, [SECOND]))
    trainer, taken, metrics = learned(
        rollouts, pure_text_grpo__advantage_scale="none", pure_text_grpo__baseline_decay=0.5
    )
    advantages = [[example.advantages[-1] for example in steps.examples] for steps in taken]
    # The first average is that of the rewards themselves, -0.5; so is the second.
    assert advantages == [[1.5, 1.5, -1.5]] * 2
    assert trainer.state.shared_model_groups["verifier"] == PureTextSharedModelGroupState(
        "model-2",
        ("ratchet-tiny", "model-1", "model-2"),
        token_training=TokenTraining({"verifier": -0.5}, "session-2", "model-2"),
    )
    assert metrics["verifier.actor/approximate_kl"] == 0.5
    assert metrics["verifier.critic/baseline"] == -0.5
    assert metrics["verifier.critic/rewards/max"] == 1.0
    trainer._stage = "create_fine_tune_jobs"
    trainer.create_fine_tune_jobs(2, rollouts_of((0, 1.5, [FIRST])))
    assert taken[2].examples[0].advantages[-1] == 2.0
    averages = trainer.state.shared_model_groups["verifier"].token_training.reward_averages
    assert averages == {"verifier": 0.5}


def test_advantages_are_measured_among_the_rollouts_of_a_datapoint(learned):
    same = rollouts_of((0, 1.0, [FIRST]), (0, 0.0, [SECOND]), (1, 1.0, [FIRST]), (1, 1.0, [FIRST]))
    changes = {"text_rl__rollouts_per_datapoint": 2, "pure_text_grpo__advantage_scale": "group"}
    _, taken, metrics = learned(same, pure_text_grpo__baseline="mean", **changes)
    assert [example.advantages[-1] for example in taken[0].examples] == pytest.approx([1, -1], 1e-5)
    assert metrics["verifier.grpo/frac_constant_groups"] == 0.5
    alike = rollouts_of((0, 1.0, [FIRST]), (0, 1.0, [SECOND]))
    trainer, taken, metrics = learned(alike, pure_text_grpo__baseline="mean", **changes)
    assert taken == []
    assert metrics["verifier.insufficient_data"] == 1
    assert trainer.text_agents["verifier"].model_name == "ratchet-tiny"


def test_agents_of_one_model_learn_together_each_from_its_own_average(
    tiny_text, tmp_path, monkeypatch
):
    taken = []

    def take(group, steps, name):
        taken.append(steps)
        return "session", "model", {}

    monkeypatch.setattr("ratchet.scenarios.pure_text.agents.token_training._train", take)
    hyper_params = tiny_text.parameters(
        trainer=NAME, agents___default__shared_model_group="both", seed=5
    )
    trainer = tiny_text.trainer(hyper_params)
    trainer.initial_state()
    rollouts, _ = trainer.sample_rollouts(0, tmp_path / "calls.jsonl")
    state = trainer.create_fine_tune_jobs(0, rollouts)
    (steps,) = taken
    assert sum(map(len, steps.batches)) == rollouts["agents", "active"].sum()
    rewards = episode_rewards(rollouts)
    learned = state.shared_model_groups["both"].token_training
    for place, agent in enumerate(trainer.agent_names):
        spoke = rollouts["agents", "active"][:, :, place].any(1)
        assert learned.reward_averages[agent] == pytest.approx(rewards[spoke, place].mean())
    trainer.await_fine_tune_jobs(0)
    assert {agent.model_name for agent in trainer.text_agents.values()} == {"model"}


def replies(*advantages):
    lengths = range(1, 1 + len(advantages))
    return [
        Trajectory([1, *range(n)], [0] + [1] * n, [0] + [-1.0] * n, advantage=advantage)
        for n, advantage in zip(lengths, advantages, strict=True)
    ]


@pytest.mark.parametrize(
    ("aggregation", "weights"),
    [
        ("token_mean", [1 / 6, 1 / 6]),
        ("sequence_mean_token_mean", [1 / 3, 1 / 9]),
        ("sequence_mean_token_sum", [1 / 3, 1 / 3]),
        ("constant", [1 / 60, 1 / 60]),
    ],
)
def test_what_is_not_sent_counts_in_means(aggregation, weights):
    parameters = PureTextGrpoParameters(aggregation=aggregation, clip_high=0.28)
    steps = training_steps(
        replies(1.0, 0.0, -2.0), parameters, np.random.default_rng(0), longest_reply=20
    )
    first, last = steps.examples
    assert [list(rows) for rows in steps.batches] == [[0, 1]]
    assert [first.weights, last.weights] == [
        pytest.approx((0.0, weights[0])),
        pytest.approx((0.0, *[weights[1]] * 3)),
    ]
    assert last.advantages == (0, -2.0, -2.0, -2.0)
    clips = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28}
    assert steps.loss == ServiceLoss("ppo", clips, of_sampler=True)


def test_each_pass_draws_anew_which_replies_are_in_which_step():
    parameters = PureTextGrpoParameters(num_epochs=2, batch_size=2, policy_loss="reinforce")
    made = [
        training_steps(
            replies(1, 2, 3, 4, 5), parameters, np.random.default_rng(seed), longest_reply=9
        )
        for seed in (0, 0, 1)
    ]
    assert made[0] == made[1]
    assert made[0].digest == made[1].digest != made[2].digest
    passes = [made[0].batches[:3], made[0].batches[3:]]
    assert [[len(batch) for batch in one] for one in passes] == [[2, 2, 1]] * 2
    given = [example.advantages[-1] for example in made[0].examples]
    seen = [[given[place] for batch in one for place in batch] for one in passes]
    assert seen[0] != seen[1]
    assert sorted(seen[0]) == sorted(seen[1]) == [1, 2, 3, 4, 5]
    assert made[0].loss.config == {}


class _Session:
    """Repeats its prompt."""

    def __init__(self):
        self.asked = []

    def forward_backward(self, examples, *, loss, loss_config, sequence):
        self.asked.append((sequence, len(examples)))
        count = float(len(examples))
        return ForwardBackward({"loss": count, "tokens": count, "kl": float(sequence)}, ())

    def optim_step(self, optimizer, *, sequence):
        self.asked.append((sequence, "step"))
        return {"grad_norm": 2.0}

    def save_weights(self, *, sequence, name, optimizer):
        self.asked.append((sequence, name, optimizer))
        return "made"


def test_verbs_are_numbered_in_their_order_and_their_answers_averaged():
    parameters = PureTextGrpoParameters(batch_size=3, micro_batch_size=2)
    steps = training_steps(
        replies(1, 2, 3, 4), parameters, np.random.default_rng(0), longest_reply=9
    )
    session = _Session()
    model, taken = steps.take(session, "name")
    assert session.asked == [
        *[(0, 2), (1, 1), (2, "step"), (3, 1), (4, "step")],
        (5, "name", True),
    ]
    assert model == "made"
    # kl: tokens times the number of the verb
    expected = {"loss": 2.0, "kl": (2 * 0 + 1 + 3) / 4, "grad_norm": 2.0, "steps": 2.0}
    assert mean_figures(taken) == {**expected, "tokens": 4.0}


def test_more_verbs_than_a_service_can_answer_again_are_refused():
    few = PureTextGrpoParameters(batch_size=1)
    generator = np.random.default_rng(0)
    assert training_steps(replies(*range(1, 128)), few, generator, longest_reply=9)
    with pytest.raises(ParameterError, match="257 requests, expected at most 256"):
        training_steps(replies(*range(1, 129)), few, generator, longest_reply=9)


def test_stages_with_a_trainer_each_do_what_train_does(tiny_text, tmp_path):
    hyper_params = tiny_text.parameters(trainer=NAME)
    whole = tiny_text.trainer(hyper_params)
    whole.train()
    folder = tmp_path / "state"
    tiny_text.trainer(hyper_params).initial_state().save(folder)

    def fresh():
        made = tiny_text.trainer(hyper_params)
        made.state = State.load(folder)
        return made

    for iteration in range(2):
        rollouts, _ = fresh().sample_rollouts(iteration, tmp_path / f"{iteration}.jsonl")
        again = fresh().create_fine_tune_jobs(iteration, rollouts)
        fresh().create_fine_tune_jobs(iteration, rollouts).save(folder)
        assert State.load(folder) == again
        fresh().await_fine_tune_jobs(iteration).save(folder)
    assert State.load(folder).shared_model_groups == whole.state.shared_model_groups
    assert [len(g.model_names) for g in whole.state.shared_model_groups.values()] == [3, 3]


def test_a_group_that_never_learned_from_tokens_is_saved_as_before():
    state = PureTextSharedModelGroupState("m", ("m",))
    assert "token_training" not in state.to_dict()
    learned = replace(state, token_training=TokenTraining({"a": 0.1}, "s", "m"))
    plain = json.loads(json.dumps(learned.to_dict()))
    assert PureTextSharedModelGroupState.from_dict(plain) == learned
    assert PureTextSharedModelGroupState.from_dict(state.to_dict()) == state


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agents__verifier__temperature": 0.7}, "verifier.temperature: got 0.7, expected 1"),
        ({"agents__verifier__top_p": 0.9}, "verifier.top_p: got 0.9"),
        ({"agents__verifier__base_url": None}, "without training sessions"),
        ({"text_rl__fine_tune_on_all_previous_rollouts": True}, "expected false"),
        ({"text_rl__verifier_guess_replacement_proportion": 0.5}, "got 0.5, expected 0"),
        ({"pure_text_grpo__baseline": "mean"}, "rollouts_per_datapoint: got 1, expected more"),
        (
            {"pure_text_grpo__advantage_scale": "mean"},
            "got advantage_scale 'mean' with the baseline 'agent_average'",
        ),
    ],
)
def test_what_cannot_be_learned_from_is_refused_before_anything_is_built(
    tiny_text, changes, message
):
    with pytest.raises(ParameterError, match=message):
        trainer_class(tiny_text.parameters(trainer=NAME, **changes))


def test_frozen_agents_may_play_anywhere_at_any_temperature(tiny_text):
    frozen = {"freeze_agent": True, "temperature": 0.7, "base_url": None}
    changes = {f"agents__prover__{name}": value for name, value in frozen.items()}
    assert trainer_class(tiny_text.parameters(trainer=NAME, **changes))
