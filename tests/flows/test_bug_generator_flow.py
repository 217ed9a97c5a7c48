"""The data stage with bugs from a chat model: kills, cache hits, plans and single payment."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from flows.planning.plan import plan_experiment, remaining
from flows.runs.language_services import LanguageServices
from flows.runs.verify import verify_run
from ratchet.errors import ParameterError
from ratchet.parameters import ExperimentSettings, HyperParameters

sys.path.insert(0, str(Path(__file__).parents[1] / "language_models"))
from bug_service import BugService

WORKERS = 2


@pytest.fixture
def service():
    found = BugService(delay=0.05)
    yield found
    found.close()


def parameters(url, **generator):
    return {
        "scenario": "code_validation",
        "trainer": "pure_text_ei",
        "dataset": "generated",
        "interaction_protocol": "nip",
        "rl": {"num_iterations": 1, "rollouts_per_iteration": 4},
        "code_validation": {"num_train": 16, "num_test": 4, "prompt_templates": "compact"},
        "agents": {"_default": {"use_dummy_api": True}},
        "bug_generator": {"model_name": "writer", "base_url": url, "num_attempts": 4, **generator},
    }


def data_of(result):
    """Return the key, metrics and usage of the data stage."""
    folder = Path(result["folder"])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (values,) = [line["values"] for line in lines if line["stage"] == "build_scenario"]
    usage = json.loads((folder / "usage.json").read_text())["by_stage"]["build_scenario"]
    (key,) = {
        stage["key"]
        for stage in json.loads((folder / "manifest.json").read_text())["stages"]
        if stage["stage"] == "build_scenario"
    }
    return key, values, usage


@pytest.mark.in_turn(4, of="kills")
@pytest.mark.slow
def test_no_response_is_paid_twice_after_a_kill_during_bug_generation(lab, service):
    chosen = parameters(service.url)
    whole = lab.settings(home=str(lab.folder / "whole"), num_rollout_workers=WORKERS)
    expected = lab.run(chosen, whole)
    assert max(service.bodies.values()) == 1
    asked = set(service.bodies)

    service.bodies.clear()
    settings = lab.settings(runs=str(lab.folder / "other"), num_rollout_workers=WORKERS)
    process, _ = lab.start(chosen, settings)
    deadline = time.monotonic() + 300
    while len(service.bodies) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    assert process.wait(240) == -signal.SIGKILL
    before = len(service.bodies)
    assert 5 <= before < len(asked)
    result = lab.run(chosen, settings)
    assert set(service.bodies) == asked
    assert sum(service.bodies.values()) <= len(asked) + WORKERS, (
        "only requests in flight are repeated"
    )
    key, values, usage = data_of(result)
    assert (key, values, usage) == data_of(expected)
    assert usage["calls"] == values["calls"] == len(asked)
    assert values["wanted/train"] == 8
    assert 0 < values["written/train"] <= 8
    stages = [Path(home) / "store" / "stages" / key for home in (lab.folder / "whole",)]
    stages.append(lab.folder / "home" / "store" / "stages" / key)
    one, other = ((stage / "datasets.json").read_text() for stage in stages)
    assert one == other
    assert list((lab.folder / "home" / "journals").iterdir()) == []

    verified = verify_run(result["run_id"], ExperimentSettings.from_dict(settings))
    assert not any(stage.problems for stage in verified.stages)
    assert verified.remade is None, "verification sends no requests"
    longer = {**chosen, "rl": {"num_iterations": 2, "rollouts_per_iteration": 8}}
    planned = plan_experiment(longer, ExperimentSettings.from_dict(settings))
    assert planned[0].hit, "different training uses the same data"


def test_a_plan_estimates_calls_and_costs_of_data(tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("models:\n  writer: {input: 1.0, output: 2.0}\n")
    settings = ExperimentSettings(home=str(tmp_path), prices=str(prices))
    chosen = parameters("http://127.0.0.1:1/v1", max_tokens=500)
    stages = {stage.stage: stage for stage in plan_experiment(chosen, settings)}
    estimate = stages["build_scenario"].estimate
    cost = 10 * (600 * 1.0 + 500 * 2.0) / 1e6
    assert (estimate.calls, estimate.most_calls) == (10, 40)
    assert (estimate.prompt_tokens, estimate.completion_tokens) == (6000, 5000)
    assert estimate.cost == pytest.approx(cost)
    assert estimate.most_cost == pytest.approx(4 * cost)
    assert remaining(stages.values()).calls > 10
    plain = plan_experiment({**chosen, "bug_generator": {}}, settings)
    assert plain[0].stage == "build_scenario"
    assert plain[0].estimate is None
    unpriced = parameters("http://127.0.0.1:1/v1", model_name="mystery")
    assert plan_experiment(unpriced, settings)[0].estimate.unpriced_models == ("mystery",)


def test_the_service_and_price_of_the_generator_model_are_checked(tmp_path):
    def services(url, **settings):
        hyper_params = HyperParameters(**parameters(url))
        return LanguageServices(
            ExperimentSettings(home=str(tmp_path), **settings), {"main": hyper_params}
        )

    assert services("embedded").needs_embedded
    assert not services("http://127.0.0.1:1/v1").needs_embedded
    with pytest.raises(ParameterError, match="no price for writer"):
        services("http://127.0.0.1:1/v1", budget=1.0).check_prices()
    services("embedded", budget=1.0).check_prices()
