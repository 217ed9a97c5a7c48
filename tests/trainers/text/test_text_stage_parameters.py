"""A changed parameter recomputes exactly the stages that depend on it."""

from __future__ import annotations

import pytest

from trainers.registry import trainer_class
from trainers.text.base import PureTextRlTrainer

STAGES = [
    "initial_state",
    "sample_rollouts",
    "log_stats",
    "test_during_training",
    "create_fine_tune_jobs",
    "await_fine_tune_jobs",
    "test",
]
PLAYED = {"sample_rollouts", "test_during_training", "test"}
TESTED = {"test_during_training", "test"}
ALL = set(STAGES) - {"await_fine_tune_jobs"}


@pytest.mark.parametrize(
    ("path", "value", "stages"),
    [
        ("rl.num_iterations", 7, set()),
        ("rl.lr", 0.1, set()),
        ("rl.rollouts_per_iteration", 6, {"sample_rollouts"}),
        ("text_rl.rollouts_per_datapoint", 2, {"sample_rollouts"}),
        ("text_rl.test_scheme", "all", set()),
        ("text_rl.test_on_whole_dataset", False, TESTED),
        ("text_rl.test_rollouts_per_datapoint", 2, TESTED),
        ("text_rl.fine_tune_on_all_previous_rollouts", True, {"create_fine_tune_jobs"}),
        ("text_rl.verifier_guess_replacement_proportion", 0.5, {"create_fine_tune_jobs"}),
        ("text_rl.transcript_format", "json", {"log_stats", *TESTED}),
        ("pure_text_ei.reward_threshold", 0.5, {"create_fine_tune_jobs"}),
        ("pure_text_malt.num_responses_per_timestep", 3, set()),
        ("agents._default.temperature", 0.5, {*PLAYED, "create_fine_tune_jobs"}),
        ("agents._default.repetition_penalty", 1.2, {*PLAYED, "create_fine_tune_jobs"}),
        ("agents._default.use_supervisor_message", "always", ALL),
        ("protocol_common.verifier_decision_scale", "out_of_10", ALL),
        ("protocol_common.invalid_response_penalty", -1.0, ALL),
        ("agents._default.reasoning_effort", "low", {*PLAYED, "create_fine_tune_jobs"}),
        (
            "agents._default.chat_template_kwargs",
            {"enable_thinking": False},
            {*PLAYED, "create_fine_tune_jobs"},
        ),
        ("agents._default.extra_body", {"top_k": 9}, {*PLAYED, "create_fine_tune_jobs"}),
        ("agents._default.freeze_agent", True, {"create_fine_tune_jobs"}),
        ("agents._default.model_name", "another", ALL),
        ("nip_protocol.max_message_rounds", 5, ALL),
        ("protocol_common.verifier_reward", 2.0, ALL),
        ("debate_protocol.sequential", True, set()),
        ("solo_agent.num_epochs", 3, set()),
        ("seed", 1, ALL),
    ],
)
def test_a_change_concerns_the_stages_that_read_it(tiny_text, path, value, stages):
    before, after = tiny_text.parameters(), tiny_text.parameters().replace({path: value})
    found = trainer_class(before)
    changed = {
        stage
        for stage in STAGES
        if found.stage_key_parameters(before, stage) != found.stage_key_parameters(after, stage)
    }
    assert changed == stages


def test_what_is_played_once_has_the_key_that_it_always_had(tiny_text):
    hyper_params = tiny_text.parameters()
    read = trainer_class(hyper_params).stage_key_parameters(hyper_params, "test")
    assert "test_rollouts_per_datapoint" not in read["text_rl"]


def test_rollouts_per_iteration_concern_tests_on_as_many(tiny_text):
    before = tiny_text.parameters(text_rl__test_on_whole_dataset=False)
    after = before.replace({"rl.rollouts_per_iteration": 5})
    found = trainer_class(before)
    assert found.stage_key_parameters(before, "test") != found.stage_key_parameters(after, "test")


def test_malt_samples_by_its_number_of_responses(tiny_text):
    before = tiny_text.parameters(trainer="pure_text_malt")
    after = before.replace({"pure_text_malt.num_responses_per_timestep": 3})
    found = trainer_class(before)
    changed = [
        stage
        for stage in ("sample_rollouts", "test")
        if found.stage_key_parameters(before, stage) != found.stage_key_parameters(after, stage)
    ]
    assert changed == ["sample_rollouts"]


def test_of_a_custom_trainer_everything_counts_but_the_number_of_iterations(tiny_text):
    class CustomTrainer(PureTextRlTrainer):
        def _stage_create_fine_tune_jobs(self, rollouts):
            pass

    before = tiny_text.parameters()

    def keys(**changes):
        hyper_params = tiny_text.parameters(**changes)
        return CustomTrainer.stage_key_parameters(hyper_params, "sample_rollouts")

    before = CustomTrainer.stage_key_parameters(before, "sample_rollouts")
    assert before == keys(rl__num_iterations=9)
    assert keys() != keys(rl__lr=0.5)
    assert keys() != keys(pure_text_malt__num_responses_per_timestep=3)
    assert CustomTrainer.supports_stages()


def test_a_custom_loop_is_no_sequence_of_stages():
    class CustomLoop(PureTextRlTrainer):
        def _stage_create_fine_tune_jobs(self, rollouts):
            pass

        def train(self):
            pass

    assert not CustomLoop.supports_stages()
