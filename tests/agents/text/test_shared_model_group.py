"""Agents that share a model: one job on what all of them did, made once, then the next model."""

from __future__ import annotations

import asyncio
import json
import logging

import numpy as np
import pytest

from ratchet.errors import (
    BudgetExceededError,
    DataError,
    FineTuneError,
    ParameterError,
    StateError,
    UnknownNameError,
)
from ratchet.language_models.budget_reservations import BudgetReservation
from ratchet.language_models.ledger import Charge, Ledger
from ratchet.language_models.pricing import Budget, ModelPrice, PriceTable
from ratchet.language_models.usage import UsageMeter
from ratchet.parameters import ExperimentSettings
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.scenarios.pure_text.agents.examples import PreferencePair
from ratchet.scenarios.pure_text.agents.group_state import PureTextSharedModelGroupState
from ratchet.scenarios.pure_text.agents.shared_model_group import PureTextSharedModelGroup


def timesteps(count, agent_index, word):
    """The steps of such rollouts in which the agent speaks, batch [n]."""
    whole = rollouts(count, agent_index, word)
    flat = {name: whole["agents", name][:, 0] for name in ("raw_message", "prompt")}
    return NestedArrayDict({"agents": flat}, count)


def rollouts(count, agent_index, word="said"):
    """Rollouts of one step in which one of two agents speaks."""
    acts = np.zeros((count, 1, 2), dtype=bool)
    acts[..., agent_index] = True
    texts = [[[None, None]] for _ in range(count)]
    prompts = [[[None, None]] for _ in range(count)]
    for row in range(count):
        texts[row][0][agent_index] = f"{word} {row}"
        prompts[row][0][agent_index] = json.dumps([{"role": "user", "content": f"q{row}"}])
    return NestedArrayDict(
        {
            "y": np.arange(count) % 2,
            "padding": np.zeros((count, 1), dtype=bool),
            "agents": {"active": acts, "valid": acts, "raw_message": texts, "prompt": prompts},
        },
        count,
    )


@pytest.fixture
def build(fine_tune_service, game, tmp_path):
    """Makes the group of both agents of nip."""

    def make(url=fine_tune_service.url, **changes):
        shared = {"base_url": url, "model_name": "tiny", "shared_model_group": "both", **changes}
        parameters = game.parameters(_default=shared)
        settings = ExperimentSettings(home=str(tmp_path), poll_seconds=0.01, poll_seconds_max=0.02)
        agents = game.agents(parameters, settings)
        return PureTextSharedModelGroup(parameters, settings, "both", list(agents.values()))

    return make


def succeed(service, model):
    service.jobs[-1].update(status="succeeded", fine_tuned_model=model, trained_tokens=500)


def uploaded(service):
    (request,) = [r for r in service.requests if r.path.endswith("/files") and r.body]
    return [json.loads(line) for line in request.body.split(b"\n") if line.startswith(b'{"')]


def test_one_job_trains_on_all_agents_data_in_order(fine_tune_service, build):
    group = build()
    group.create_supervised_fine_tune_job(
        {"verifier": rollouts(6, 1, "v"), "prover": rollouts(6, 0, "p")},
        {"verifier": rollouts(2, 1)},
    )
    last = [example["messages"][-1]["content"] for example in uploaded(fine_tune_service)]
    decisions = ["Decision: reject", "Decision: accept"]
    assert last == [f"p {n}" for n in range(6)] + [f"v {n}" for n in range(6)] + decisions
    (job,) = fine_tune_service.jobs
    assert (job["model"], job["method"]["type"]) == ("tiny", "supervised")
    assert group.get_fine_tune_job_status() == "pending"


def test_after_success_all_agents_play_with_the_new_model(fine_tune_service, build):
    group = build()
    group.create_supervised_fine_tune_job({"prover": rollouts(10, 0)})
    with pytest.raises(FineTuneError, match=r"is pending.*await_job"):
        group.switch_to_next_model()
    succeed(fine_tune_service, "ft:tiny:both:1")
    job = asyncio.run(group.await_job())
    assert job is not None
    assert job.status == group.get_fine_tune_job_status() == "succeeded"
    usage = UsageMeter("await_fine_tune_jobs")
    group.record_usage(usage)
    assert [(row.agent, row.training_tokens) for row in usage.rows()] == [("both", 500)]
    group.switch_to_next_model()
    assert group.state == PureTextSharedModelGroupState(
        "ft:tiny:both:1", ("tiny", "ft:tiny:both:1")
    )
    assert [agent.model_name for agent in group.agents.values()] == ["ft:tiny:both:1"] * 2


@pytest.mark.parametrize(("scratch", "base"), [(True, "tiny"), (False, "ft:tiny:both:1")])
def test_the_next_job_starts_from_the_first_or_the_current_model(
    fine_tune_service, build, scratch, base
):
    group = build(fine_tune_from_scratch=scratch)
    group.create_supervised_fine_tune_job({"prover": rollouts(10, 0)})
    succeed(fine_tune_service, "ft:tiny:both:1")
    group.switch_to_next_model()
    group.create_supervised_fine_tune_job({"prover": rollouts(11, 0)})
    assert fine_tune_service.jobs[-1]["model"] == base


def test_made_again_from_the_same_state_the_job_is_the_same(fine_tune_service, build):
    first, second = build(), build()
    first.create_supervised_fine_tune_job({"prover": rollouts(10, 0)})
    second.create_supervised_fine_tune_job({"prover": rollouts(10, 0)})
    assert first.state == second.state
    assert len(fine_tune_service.jobs) == 1
    second.state = PureTextSharedModelGroupState.from_dict(
        json.loads(json.dumps(first.state.to_dict()))
    )
    assert second.state == first.state
    with pytest.raises(StateError, match="the job ftjob-0 already exists"):
        second.create_supervised_fine_tune_job({"prover": rollouts(10, 0)})


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_lost_job_has_its_reason_and_is_made_anew_when_asked_again(fine_tune_service, build, end):
    group = build()
    before = group.state
    group.create_supervised_fine_tune_job({"prover": rollouts(10, 0)})
    fine_tune_service.jobs[0].update(status=end, error={"code": "x", "message": "bad line 3"})
    asyncio.run(group.await_job())
    assert group.get_fine_tune_job_status() == end
    assert "bad line 3" in group.get_fine_tune_job_error_repr()
    with pytest.raises(FineTuneError, match="bad line 3"):
        group.switch_to_next_model()
    group.state = before
    group.create_supervised_fine_tune_job({"prover": rollouts(10, 0)})
    assert group.state.fine_tune_job_id == "ftjob-1"


def test_too_few_examples_make_no_job_and_a_warning(fine_tune_service, build, caplog):
    group = build()
    with caplog.at_level(logging.WARNING):
        group.create_supervised_fine_tune_job({"prover": rollouts(9, 0)})
    assert "got 9 examples, expected at least 10" in caplog.text
    assert group.get_fine_tune_job_status() == "insufficient_data"
    assert asyncio.run(group.await_job()) is None
    group.switch_to_next_model()
    assert group.current_model_name == "tiny"
    assert fine_tune_service.requests == []


def test_a_frozen_group_makes_no_job(fine_tune_service, build):
    group = build(freeze_agent=True)
    group.create_supervised_fine_tune_job({"prover": rollouts(50, 0)})
    assert group.get_fine_tune_job_status() == "frozen"
    assert fine_tune_service.requests == []


def test_a_job_that_costs_too_much_is_not_made(fine_tune_service, build):
    group = build()
    prices = PriceTable({"tiny": ModelPrice(0.0, 0.0, training=1e6)}, {})
    group.allowance = BudgetReservation(Ledger(Budget(10.0)), prices)
    with pytest.raises(BudgetExceededError, match="would come next"):
        group.create_supervised_fine_tune_job({"prover": rollouts(10, 0)})
    assert fine_tune_service.jobs == []
    ledger = Ledger(Budget(1e6))
    group.allowance = BudgetReservation(ledger, prices)
    group.create_supervised_fine_tune_job({"prover": rollouts(10, 0)})
    assert len(fine_tune_service.jobs) == 1
    assert ledger.billed == Charge(0.0, 645.0), "a token for four letters, three epochs"
    succeed(fine_tune_service, "ft:tiny:both:1")
    asyncio.run(group.await_job())
    assert ledger.billed == Charge(500.0, 500.0), "the trained tokens that the service reports"


@pytest.mark.parametrize(
    ("end", "trained", "lost"),
    [
        ("cancelled", None, Charge(0.0, 645.0)),
        ("cancelled", 0, Charge(0.0, 645.0)),
        ("cancelled", 200, Charge(200.0, 200.0)),
        ("failed", None, Charge(0.0, 0.0)),
        ("failed", 200, Charge(200.0, 200.0)),
    ],
)
def test_a_job_that_ended_while_nobody_looked_is_billed_beside_its_next_attempt(
    fine_tune_service, build, end, trained, lost
):
    """Killed after it was created, before this was stored; then cancelled at the service."""
    prices = PriceTable({"tiny": ModelPrice(0.0, 0.0, training=1e6)}, {})
    ledger = Ledger(Budget(1300.0))
    for _ in range(2):
        group = build()
        group.allowance = BudgetReservation(ledger, prices)
        group.create_supervised_fine_tune_job({"prover": rollouts(10, 0)})
        assert ledger.billed == Charge(0.0, 645.0), "the same job, held once"
    fine_tune_service.jobs[0].update(status=end, trained_tokens=trained)
    ledger.budget = Budget(lost.at_most + 644.0)
    if lost.at_most:
        group = build()
        group.allowance = BudgetReservation(ledger, prices)
        with pytest.raises(BudgetExceededError):
            group.create_supervised_fine_tune_job({"prover": rollouts(10, 0)})
        assert len(fine_tune_service.jobs) == 1
        assert ledger.billed == lost
    ledger.budget = Budget(1300.0)
    group = build()
    group.allowance = BudgetReservation(ledger, prices)
    group.create_supervised_fine_tune_job({"prover": rollouts(10, 0)})
    assert len(fine_tune_service.jobs) == 2
    assert ledger.billed == Charge(lost.at_least, lost.at_most + 645.0)


def test_preferences_make_a_dpo_job_with_its_hyper_parameters(fine_tune_service, build):
    group = build(fine_tuning={"n_epochs": 2, "beta": 0.3, "seed": 9})
    prompt = json.dumps([{"role": "user", "content": "q"}])
    pairs = [PreferencePair(prompt, f"good {n}", "bad") for n in range(5)]
    group.create_dpo_fine_tune_job({"verifier": pairs, "prover": pairs})
    (job,) = fine_tune_service.jobs
    assert job["method"] == {
        "type": "dpo",
        "dpo": {"hyperparameters": {"n_epochs": 2, "beta": 0.3}},
    }
    assert job["seed"] == 9


@pytest.mark.parametrize("method", ["supervised", "dpo"])
def test_a_job_may_be_given_a_name(fine_tune_service, build, method):
    group = build()
    name = "run 7_iteration_2"
    if method == "supervised":
        group.create_supervised_fine_tune_job({"verifier": rollouts(12, 1)}, job_name=name)
    else:
        prompt = json.dumps([{"role": "user", "content": "q"}])
        pairs = [PreferencePair(prompt, f"good {n}", "bad") for n in range(12)]
        group.create_dpo_fine_tune_job({"verifier": pairs}, job_name=name)
    (job,) = fine_tune_service.jobs
    assert job["suffix"] == "run-7-iteration-2"


def test_preferences_come_from_sampled_timesteps_too(fine_tune_service, build):
    """Pairs in the earlier system's form: the agent's better and worse answers."""
    group = build()
    good, bad = timesteps(10, 1, "good"), timesteps(10, 1, "bad")
    group.create_dpo_fine_tune_job({"verifier": good}, {"verifier": good}, {"verifier": bad})
    examples = uploaded(fine_tune_service)
    assert len(examples) == 10
    assert examples[3]["input"]["messages"][-1]["content"] == "q3"
    assert examples[3]["preferred_output"][0]["content"] == "good 3"
    assert examples[3]["non_preferred_output"][0]["content"] == "bad 3"
    other = build()
    with pytest.raises(DataError, match="without positive and negative examples"):
        other.create_dpo_fine_tune_job({"verifier": good})
    with pytest.raises(DataError, match="got 10 positive and 9 negative examples"):
        other.create_dpo_fine_tune_job(
            {"verifier": good}, {"verifier": good}, {"verifier": bad[1:]}
        )


def test_supervised_jobs_are_sent_no_beta(fine_tune_service, build):
    group = build(fine_tuning={"beta": 0.3})
    group.create_supervised_fine_tune_job({"prover": rollouts(10, 0)})
    assert fine_tune_service.jobs[0]["method"] == {"type": "supervised"}


def test_dummy_models_are_trained_without_a_service(fine_tune_service, build):
    group = build(use_dummy_api=True, fine_tune_from_scratch=False)
    for count in (10, 11):
        group.create_supervised_fine_tune_job({"prover": rollouts(count, 0)})
        saved = group.state
        group.state = saved
        asyncio.run(group.await_job())
        group.switch_to_next_model()
    names = group.state.model_names
    assert len(set(names)) == 3
    assert all(name.startswith("ft:tiny:both:") for name in names[1:])
    assert fine_tune_service.requests == []


def test_methods_work_where_an_event_loop_runs(fine_tune_service, build):
    group = build()

    async def inside():
        group.create_supervised_fine_tune_job({"prover": rollouts(10, 0)})
        return group.get_fine_tune_job_status()

    assert asyncio.run(inside()) == "pending"


def test_agents_that_disagree_cannot_share_a_model(game):
    parameters = game.parameters(
        _default={"shared_model_group": "both"}, prover={"model_name": "other"}
    )
    agents = game.agents(parameters)
    with pytest.raises(ParameterError, match=r"model_name: got .* shared_model_group 'both'"):
        PureTextSharedModelGroup(parameters, ExperimentSettings(), "both", list(agents.values()))


def test_an_agent_of_another_group_is_an_error(build):
    with pytest.raises(UnknownNameError, match=r"'provver'.*Did you mean 'prover'"):
        build().create_supervised_fine_tune_job({"provver": rollouts(10, 0)})
