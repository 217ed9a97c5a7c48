"""Complete training of random chat models, in one run and split into stages."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from ratchet.errors import (
    BudgetExceededError,
    CheckPointNotFoundError,
    FineTuneError,
    ParameterError,
    RolloutError,
    StateError,
)
from ratchet.language_models.dummy import dummy_completion
from ratchet.language_models.fine_tune_jobs import FineTuneJob
from ratchet.language_models.pricing import ModelPrice
from ratchet.rollouts.files import load_nested_array_dict, save_nested_array_dict
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.scenarios.pure_text.agents import whole_agent
from ratchet.scenarios.pure_text.agents.whole_agent import PureTextWholeAgent
from trainers.registry import trainer_class
from trainers.text.state import State

TRAINERS = ["pure_text_ei", "pure_text_malt"]


def plays(trainer, monkeypatch, change) -> list[tuple[str, str, int]]:
    """Put ``change`` before every answer; list (agent, rollout or node, round) of all answers."""
    asked = []
    for name, agent in trainer.text_agents.items():

        async def act(view, context, *, name=name, original=agent.act):
            asked.append((name, context.call_prefix, view.round))
            await change(name, view)
            return await original(view, context)

        monkeypatch.setattr(agent, "act", act)
    return asked


async def nothing(name, view) -> None:
    pass


def run_in_stages(tiny_text, hyper_params, tmp_path) -> tuple[State, list[dict[str, float]]]:
    """Run every stage with a separate trainer, writing and reading its state between stages."""
    folder, metrics, played = tmp_path / "state", [], []
    tiny_text.trainer(hyper_params).initial_state().save(folder)

    def fresh():
        made = tiny_text.trainer(hyper_params)
        made.state = State.load(folder)
        return made

    for iteration in range(3):
        rollouts, _ = fresh().sample_rollouts(iteration, tmp_path / f"{iteration}.jsonl")
        metrics.append(fresh().compute_stats(iteration, rollouts))
        if fresh().tests_during_training(hyper_params, iteration):
            metrics.append(fresh().test(iteration, tmp_path / f"test{iteration}.jsonl")[1])
        if iteration < 2:
            fresh().create_fine_tune_jobs(iteration, rollouts, played).save(folder)
            fresh().await_fine_tune_jobs(iteration).save(folder)
        played.append(rollouts)
    metrics.append(fresh().test("test", tmp_path / "test.jsonl")[1])
    return State.load(folder), metrics


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("all_previous", [False, True])
def test_stages_with_a_trainer_each_do_what_train_does(tiny_text, tmp_path, name, all_previous):
    hyper_params = tiny_text.parameters(
        trainer=name,
        text_rl__test_scheme="first_and_last",
        text_rl__fine_tune_on_all_previous_rollouts=all_previous,
        text_rl__verifier_guess_replacement_proportion=0.25,
    )
    whole = tiny_text.trainer(hyper_params)
    whole.train()
    stages = [(record.stage, record.iteration) for record in whole.history]
    jobs, test = "create_fine_tune_jobs", "test_during_training"
    assert stages == [
        *[("train", 0), (test, 0), (jobs, 0), ("train", 1), (jobs, 1)],
        *[("train", 2), (test, 2), ("test", 2)],
    ]
    state, metrics = run_in_stages(tiny_text, hyper_params, tmp_path)
    assert state.shared_model_groups == whole.state.shared_model_groups
    assert len(state.shared_model_groups["verifier"].model_names) == 3
    expected = [r.values for r in whole.history if r.stage != jobs]
    for found, wanted in zip(metrics, expected, strict=True):
        np.testing.assert_equal(found, wanted)


def test_verifiers_may_stay_undecided(tiny_text):
    trainer = tiny_text.trainer(
        tiny_text.parameters(
            protocol_common__verifier_decision_scale="likert_scale_5", rl__num_iterations=1
        )
    )
    trainer.train()
    (played,) = (record.values for record in trainer.history if record.stage == "train")
    assert 0 < played["no_decision_proportion"] < 0.5
    assert played["verifier.invalid_proportion"] == 0


@pytest.mark.parametrize(
    ("name", "redraws"),
    [*((name, {}) for name in TRAINERS), ("pure_text_grpo", {}), ("pure_text_grpo", {"prover": 1})],
)
def test_a_run_that_breaks_off_goes_on_to_the_same_end(
    tiny_text, tmp_path, monkeypatch, name, redraws
):
    hyper_params = tiny_text.parameters(
        trainer=name,
        pure_text_grpo__redraws=redraws,
        text_rl__test_scheme="all",
        text_rl__fine_tune_on_all_previous_rollouts=name == "pure_text_malt",
    )
    calls, limit = 0, float("inf")

    class PowerCutError(BaseException):
        pass

    def answer(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls % limit == 0:
            raise PowerCutError
        return dummy_completion(*args, **kwargs)

    monkeypatch.setattr(whole_agent, "dummy_completion", answer)
    whole = tiny_text.trainer(hyper_params, home=str(tmp_path / "whole"), run_id="r")
    whole.train()
    total = calls
    calls, limit, cuts = 0, total // 4, 0
    while True:
        broken = tiny_text.trainer(hyper_params, home=str(tmp_path / "broken"), run_id="r")
        try:
            broken.train()
        except PowerCutError:
            cuts += 1
            assert cuts < 9
            continue
        break
    assert cuts >= 4
    assert calls - total <= cuts * (1 + broken.settings.num_rollout_workers)
    assert broken.state == whole.state
    assert broken.state.train_loop_stage == "done"
    for mine, theirs in zip(broken.history, whole.history, strict=True):
        np.testing.assert_equal(mine, theirs)
    for file in sorted((tmp_path / "whole").rglob("*.parquet")):
        other = tmp_path / "broken" / file.relative_to(tmp_path / "whole")
        assert file.read_bytes() == other.read_bytes(), file.name
    assert not list((tmp_path / "broken").rglob("journals/*.jsonl"))


def test_one_failed_rollout_loses_no_other(tiny_text, tmp_path, monkeypatch):
    trainer = tiny_text.trainer(tiny_text.parameters(), num_rollout_workers=2)
    trainer.initial_state()

    async def fail(name, view) -> None:
        if name == "prover" and view.datapoint_id == 3:
            raise FineTuneError(f"datapoint 3, agent {name!r}, round {view.round}: refused.")

    plays(trainer, monkeypatch, fail)
    with pytest.raises(RolloutError, match=r"of 24 rollouts failed.*datapoint 3.*'prover', round"):
        trainer.sample_rollouts(0, tmp_path / "journal.jsonl")
    lines = len((tmp_path / "journal.jsonl").read_text().split("\n"))

    again = tiny_text.trainer(tiny_text.parameters(), num_rollout_workers=2)
    again.initial_state()
    asked = plays(again, monkeypatch, nothing)
    rollouts, usage = again.sample_rollouts(0, tmp_path / "journal.jsonl")
    made = len((tmp_path / "journal.jsonl").read_text().split("\n")) - lines
    assert 0 < made < len(asked) / 3
    assert usage.total.calls == len(asked)
    whole = tiny_text.trainer(tiny_text.parameters())
    whole.initial_state()
    assert whole.sample_rollouts(0, tmp_path / "other.jsonl")[0] == rollouts


@pytest.mark.parametrize("name", TRAINERS)
def test_no_more_steps_are_played_at_once_than_there_are_workers(
    tiny_text, tmp_path, monkeypatch, name
):
    import asyncio

    trainer = tiny_text.trainer(tiny_text.parameters(trainer=name), num_rollout_workers=3)
    trainer.initial_state()
    now, most = 0, 0

    async def wait(agent, view) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.0005)
        now -= 1

    plays(trainer, monkeypatch, wait)
    trainer.sample_rollouts(0, tmp_path / "journal.jsonl")
    assert most == 3


def test_every_datapoint_comes_once_before_any_comes_twice(tiny_text, tmp_path):
    trainer = tiny_text.trainer(tiny_text.parameters(rl__rollouts_per_iteration=3))
    trainer.initial_state()
    played = []
    for iteration in range(8):
        trainer.state = replace(trainer.state, iteration=iteration)
        rollouts, _ = trainer.sample_rollouts(iteration, tmp_path / f"{iteration}.jsonl")
        played += rollouts["datapoint_id"].tolist()
    epochs = np.array(played).reshape(3, 8)
    assert (np.sort(epochs) == np.arange(8)).all()
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 3


def test_tests_play_the_same_games_whatever_the_iteration(tiny_text, tmp_path):
    for whole, count in ((True, 4), (False, 3)):
        hyper_params = tiny_text.parameters(
            text_rl__test_on_whole_dataset=whole, rl__rollouts_per_iteration=3
        )
        trainer = tiny_text.trainer(hyper_params)
        first = trainer.initial_state()
        early, _, _ = trainer.test(0, tmp_path / f"{whole}0")
        trainer.state = replace(first, iteration=2)
        late, _, _ = trainer.test(2, tmp_path / f"{whole}2")
        final, stats, usage = trainer.test("test", tmp_path / f"{whole}test")
        assert early == late == final
        assert len(early) == count
        assert len(set(early["datapoint_id"].tolist())) == count
        assert all(name.startswith("test_") for name in stats)
        assert {row.stage for row in usage.rows()} == {"test"}


@pytest.mark.parametrize(
    ("scheme", "iterations"),
    [("none", []), ("all", [0, 1, 2]), ("last", [2]), ("first_and_last", [0, 2])],
)
def test_the_scheme_says_when_to_test(tiny_text, scheme, iterations):
    hyper_params = tiny_text.parameters(text_rl__test_scheme=scheme)
    found = trainer_class(hyper_params)
    assert [i for i in range(3) if found.tests_during_training(hyper_params, i)] == iterations


def test_the_last_iterations_test_is_not_paid_for_twice(tiny_text, monkeypatch):
    """The final test has the same models and plays the same games."""
    asked = {}
    for scheme in ("none", "last"):
        trainer = tiny_text.trainer(tiny_text.parameters(text_rl__test_scheme=scheme))
        asked[scheme] = plays(trainer, monkeypatch, nothing)
        trainer.train()
        np.testing.assert_equal(trainer.history[-1].stage, "test")
    assert len(asked["none"]) == len(asked["last"])


def test_no_iterations_is_a_test_of_the_first_models(tiny_text):
    trainer = tiny_text.trainer(tiny_text.parameters(rl__num_iterations=0))
    trainer.train()
    assert [record.stage for record in trainer.history] == ["test"]


def test_the_state_is_another_iterations(tiny_text, tmp_path):
    trainer = tiny_text.trainer(tiny_text.parameters())
    with pytest.raises(StateError, match="no state yet"):
        _ = trainer.state
    trainer.initial_state()
    with pytest.raises(StateError, match="got iteration 1, but the state is in iteration 0"):
        trainer.sample_rollouts(1, tmp_path / "journal.jsonl")


def test_the_state_is_a_value_that_loads_equal(tiny_text, tmp_path):
    trainer = tiny_text.trainer(tiny_text.parameters())
    first = trainer.initial_state()
    rollouts, _ = trainer.sample_rollouts(0, tmp_path / "journal.jsonl")
    state = trainer.create_fine_tune_jobs(0, rollouts)
    assert state.train_loop_stage == "await_fine_tune_jobs"
    assert state.shared_model_groups["verifier"].fine_tune_job_id is not None
    state.save(tmp_path)
    assert State.load(tmp_path) == state != first
    assert trainer.initial_state() == first

    other = tiny_text.trainer(tiny_text.parameters(agents___default__shared_model_group="both"))
    with pytest.raises(StateError, match=r"\['prover', 'verifier'\], expected \['both'\]"):
        other.state = state
    (tmp_path / "state.json").write_text('{"schema": 1, "train_loop_stage": "lunch"}')
    with pytest.raises(StateError, match="'lunch', expected one of sample_rollouts"):
        State.load(tmp_path)


def test_a_run_goes_on_with_the_parameters_it_began_with(tiny_text, tmp_path):
    place = {"home": str(tmp_path), "run_id": "r"}
    tiny_text.trainer(tiny_text.parameters(rl__num_iterations=1), **place).train()
    with pytest.raises(StateError, match="seed was 6198 and is 7 now"):
        tiny_text.trainer(tiny_text.parameters(rl__num_iterations=1, seed=7), **place).train()


def test_a_state_needs_the_rollouts_before_it(tiny_text, tmp_path):
    trainer = tiny_text.trainer(tiny_text.parameters(), home=str(tmp_path), run_id="r")
    trainer.state = replace(trainer.initial_state(), train_loop_stage="log_stats")
    with pytest.raises(CheckPointNotFoundError, match=r"no rollouts 'train_0' in .*r@files"):
        trainer.train()


def test_without_its_checkpoint_a_run_starts_over(tiny_text, tmp_path):
    place = {"home": str(tmp_path), "run_id": "r"}
    first = tiny_text.parameters(rl__num_iterations=1, text_rl__test_scheme="last")
    tiny_text.trainer(first, **place).train()
    shutil.rmtree(tmp_path / "checkpoints" / "r")
    trainer = tiny_text.trainer(first.replace({"seed": 7, "text_rl.test_scheme": "none"}), **place)
    trainer.train()
    other = tiny_text.trainer(first.replace({"seed": 7, "text_rl.test_scheme": "none"}))
    other.train()
    for mine, theirs in zip(trainer.history, other.history, strict=True):
        np.testing.assert_equal(mine, theirs)


def test_attributes_of_a_custom_trainer_are_restored(tiny_text, tmp_path):
    class Counter:
        def __init__(self):
            self.count = 0

    class Counting(trainer_class(tiny_text.parameters())):
        def __init__(self, *given):
            super().__init__(*given)
            self.counter, self.seen = Counter(), []

        def _get_log_stats(self, rollouts, *, train=True):
            self.counter.count += 1
            self.seen = [*self.seen, len(rollouts)]
            return super()._get_log_stats(rollouts, train=train)

    place = {"home": str(tmp_path), "run_id": "r"}
    hyper_params = tiny_text.parameters(rl__num_iterations=2)
    broken = tiny_text.trainer(hyper_params, found=Counting, **place)
    broken.await_fine_tune_jobs = None
    with pytest.raises(TypeError):
        broken.train()
    again = tiny_text.trainer(hyper_params, found=Counting, **place)
    again.train()
    assert (again.counter.count, again.seen) == (3, [24, 24, 4])


def test_a_lost_job_is_begun_anew_when_the_run_goes_on(tiny_text, tmp_path, monkeypatch):
    hyper_params = tiny_text.parameters(rl__num_iterations=2)
    place = {"home": str(tmp_path), "run_id": "r"}
    failing = tiny_text.trainer(hyper_params, **place)
    lost = FineTuneJob("job-1", "failed", error="too few GPUs")
    monkeypatch.setattr(failing.shared_model_groups["verifier"], "_look", lambda: lost)
    with pytest.raises(FineTuneError, match=r"group 'verifier': failed: job job-1: too few GPUs"):
        failing.train()
    saved = State.load(tmp_path / "checkpoints" / "r" / "state")
    assert saved.train_loop_stage == "create_fine_tune_jobs"
    assert saved.shared_model_groups["verifier"].fine_tune_job_id is None
    again = tiny_text.trainer(hyper_params, **place)
    again.train()
    whole = tiny_text.trainer(hyper_params)
    whole.train()
    assert again.state == whole.state


def test_transcripts_are_written_where_wanted(tiny_text, tmp_path):
    hyper_params = tiny_text.parameters(
        rl__num_iterations=1, text_rl__save_transcripts=True, text_rl__transcript_format="json"
    )
    tiny_text.trainer(hyper_params, home=str(tmp_path), run_id="r").train()
    transcripts = tmp_path / "checkpoints" / "r@files" / "transcripts"
    assert {path.name for path in transcripts.iterdir()} == {"train_0", "test"}
    assert (transcripts / "train_0" / "raw.json").is_file()
    assert (transcripts / "test" / "prompts.json").is_file()


def test_a_tensor_scenarios_instance_is_refused(tiny_text):
    instance = tiny_text.trainer(tiny_text.parameters()).scenario_instance
    bare = replace(instance, shared_model_groups={})
    with pytest.raises(ParameterError, match="has no shared model groups"):
        trainer_class(tiny_text.parameters())(tiny_text.parameters(), bare, instance.settings)


@pytest.mark.parametrize(
    ("scenario", "trainer", "message"),
    [
        ("graph_isomorphism", "pure_text_ei", "local networks, but the trainer trains chat models"),
        ("code_validation", "vanilla_ppo", "chat models behind an API, but the trainer trains loc"),
    ],
)
def test_trainers_and_scenarios_that_do_not_fit_are_refused(tiny_text, scenario, trainer, message):
    hyper_params = tiny_text.HyperParameters(
        scenario=scenario, trainer=trainer, dataset="generated"
    )
    with pytest.raises(ParameterError, match=message):
        trainer_class(hyper_params)


def test_rollouts_can_be_sampled_outside_of_a_stage(tiny_text):
    """Like a custom trainer with its own loop."""
    trainer = tiny_text.trainer(tiny_text.parameters())
    rollouts = trainer._sample_rollouts(trainer.train_environment, 0)
    assert isinstance(rollouts, NestedArrayDict)
    assert rollouts["rollout_id"].tolist() == list(range(24))


def test_a_run_stops_at_its_budget_and_goes_on_with_a_higher_one(tiny_text, tmp_path, monkeypatch):
    """Costs of finished stages count too; cached completions are not billed again."""
    calls, tokens = 0, 0

    def answer(*args, **kwargs):
        nonlocal calls, tokens
        completion = dummy_completion(*args, **kwargs)
        calls, tokens = calls + 1, tokens + completion.prompt_tokens
        return completion

    price = ModelPrice(1e6, 0.0, 0.0)  # one for each token of a prompt
    monkeypatch.setattr(whole_agent, "dummy_completion", answer)
    monkeypatch.setattr(PureTextWholeAgent, "_price", property(lambda agent: price))
    place = {"home": str(tmp_path), "run_id": "r"}
    hyper_params = tiny_text.parameters(rl__num_iterations=2)
    whole = tiny_text.trainer(hyper_params)
    whole.train()
    needed, cost, calls = calls, tokens, 0
    with pytest.raises(BudgetExceededError):
        tiny_text.trainer(hyper_params, budget=0.3 * cost, **place).train()
    early = calls
    with pytest.raises(BudgetExceededError):
        tiny_text.trainer(hyper_params, budget=0.8 * cost, **place).train()
    assert early < calls < needed
    again = tiny_text.trainer(hyper_params, budget=2 * cost, **place)
    again.train()
    assert again.state == whole.state
    assert calls == needed


@pytest.mark.parametrize("name", ["pure_text_ei", "pure_text_malt"])
def test_a_scale_a_penalty_and_a_supervisor_go_all_the_way(tiny_text, tmp_path, name):
    hyper_params = tiny_text.parameters(
        trainer=name,
        protocol_common__verifier_decision_scale="out_of_10",
        protocol_common__invalid_response_penalty=-0.5,
        agents___default__use_supervisor_message="always",
        text_rl__verifier_guess_replacement_proportion=0.5,
    )
    trainer = tiny_text.trainer(hyper_params)
    trainer.initial_state()
    rollouts, _ = trainer.sample_rollouts(0, tmp_path / "journal")
    save_nested_array_dict(rollouts, tmp_path / "rollouts.parquet")
    rollouts = load_nested_array_dict(tmp_path / "rollouts.parquet")
    stats = trainer.compute_stats(0, rollouts)
    assert 0.2 <= stats["mean_confidence"] < 1
    assert 0 < stats["brier_score"] < 1
    made = rollouts["agents", "decision"][:, :, 1] != 2
    fifths = rollouts["agents", "confidence"][:, :, 1][made] * 5
    assert set(fifths.round().astype(int).tolist()) == {1, 2, 3, 4, 5}
    prompts = rollouts["agents", "prompt"][~rollouts["padding"] & made, 1]
    assert all("from 0 to 10, but not 5" in json.loads(p)[-1]["content"] for p in prompts)
    trainer.create_fine_tune_jobs(0, rollouts)
