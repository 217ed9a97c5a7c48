"""Plans contain an upper bound on sampled tokens that language models never exceed."""

from __future__ import annotations

import pytest

from flows.planning.estimates import TokenUpperBound
from flows.planning.plan import plan_experiment
from ratchet import ExperimentSettings
from tests.trainers.language.test_language_trainer import build, parameters

MOST = 32  # the model's context


def planned(tmp_path, hyper_params, **settings):
    chosen = ExperimentSettings(home=str(tmp_path), runs=str(tmp_path / "runs"), **settings)
    stages = plan_experiment(hyper_params, chosen)
    return [(stage.stage, stage.tokens) for stage in stages if stage.tokens is not None]


def most(answers, replies=5, together=MOST):
    return TokenUpperBound(answers, answers * replies, together and answers * together)


def test_the_bound_of_each_stage(tmp_path):
    given = parameters(language={"samples_per_test": 2})
    assert planned(tmp_path, given) == [("train", most(4 * 12)), ("test", most(8 * 2))]
    assert planned(tmp_path, given, iterations_per_task=1) == [
        *[("rollouts", most(12))] * 4,
        ("test", most(16)),
    ]
    searching = {"language_task.num_validation": 5, "validation.replaces_test": True}
    assert planned(tmp_path, given.replace(searching))[-1] == ("test", most(5 * 2))
    behind = given.replace({"language.mode": "one_step_behind"})
    assert planned(tmp_path, behind, iterations_per_task=2)[:2] == [
        ("train", most(36)),
        ("train", most(24)),
    ]


def test_the_bound_with_resampling_retries_and_several_turns(tmp_path):
    again = parameters(
        grpo={"variant": "dapo", "max_resamples": 2},
        language={"failures": {"policy": "retry", "retries": 1}},
    )
    assert planned(tmp_path, again)[0] == ("train", most(4 * 12 * 3 * 2))
    turns = parameters(
        language_task={"environment": "python_tool", "max_turns": 3},
        language={"max_sequence_length": 14},
    )
    assert planned(tmp_path, turns)[0] == ("train", most(48, 14, 14))


def test_the_bound_of_an_agent_with_its_own_parameters(tmp_path):
    own = {"agents": {"agent": {"max_tokens": 3, "small_model": {"context_length": 40}}}}
    named = parameters(**own)
    assert named.agents["_default"].max_tokens != 3
    assert planned(tmp_path, named) == [("train", most(48, 3, 40)), ("test", most(8, 3, 40))]


@pytest.mark.parametrize("mode", ["synchronous", "one_step_behind"])
def test_sampled_tokens_are_within_the_bound(tmp_path, mode):
    given = parameters(language={"mode": mode})
    trainer = build(given)
    trainer.initial_state()
    played = []
    inside = trainer.play_rollouts

    def noted(iteration):
        found = inside(iteration)
        played.extend(found.trajectories)
        return found

    trainer.play_rollouts = noted
    trainer.run_iterations(0, 4)
    ((_, tokens), _) = planned(tmp_path, given)
    assert tokens.answers == len(played)
    assert sum(one.num_written for one in played) <= tokens.written
    assert sum(map(len, played)) <= tokens.together
