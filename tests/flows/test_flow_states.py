"""Later use of a run's saved states: retests, verification, rollouts, warm starts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from flows import plan_experiment, run_experiment
from flows.process.environment import prepare_environment
from flows.runs.derived_runs import retest_experiment
from flows.runs.verify import verify_run
from ratchet.errors import CheckPointNotFoundError, ParameterError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.rollouts.files import load_rollouts, read_about
from ratchet.rollouts.transcripts import read_report_transcripts
from ratchet.store.fingerprint import Fingerprint
from ratchet.tracking.run_folder import RunFolder
from tasks.stages import keys as keys_module
from trainers.tensordict.states.state import State

pytestmark = pytest.mark.slow
TINY = Path(__file__).parents[1] / "trainers" / "tiny_experiment.py"


@pytest.fixture(autouse=True)
def _quiet(lab, monkeypatch):
    monkeypatch.setenv("TINY_LOG", str(lab.log))
    prepare_environment(lab.folder / "home")


@pytest.fixture(scope="module")
def small():
    """Return the parameters of a small experiment with real agents."""
    spec = importlib.util.spec_from_file_location("tiny_experiment", TINY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.parameters(graph_isomorphism__num_pairs=40, rl__num_iterations=4)


def run(lab, hyper_params=None, name="tiny", **settings):
    chosen = ExperimentSettings.from_dict(lab.settings(**settings))
    return run_experiment(hyper_params or lab.hyper_params(), chosen, name=name)


def stage_folder(lab, record):
    return lab.folder / "home" / "store" / "stages" / record.key


def test_a_retest_tests_the_states_in_order_without_training(lab):
    first = run(lab)
    before = len(lab.done())
    settings = ExperimentSettings.from_dict(lab.settings())
    again = retest_experiment(first.run_id, {"rl.num_test_iterations": 3}, settings)
    assert lab.done()[before:] == ["test test"] * 4
    points = [e for e in lab.metrics(again.to_dict()) if e[1] == "test"]
    assert [iteration for _, _, iteration, _ in points] == [0, 3, 6, 7]
    assert all(("test_rounds", 3.0) in values for *_, values in points)
    accuracies = [dict(values)["test_accuracy"] for *_, values in points]
    last = first.metrics["main"]["test"]["test_accuracy"]
    assert accuracies[-1] == last, "the final state gives the same decisions"
    assert again.states == first.states
    assert RunFolder(again.folder).manifest.settings["tags"] == {"retest_of": first.run_id}
    before = len(lab.done())
    assert retest_experiment(first.run_id, {"rl.num_test_iterations": 3}, settings).computed == 0
    assert lab.done()[before:] == []


def test_a_retest_tests_the_stored_states_after_code_changes(lab, monkeypatch):
    first = run(lab)
    compute = keys_module.code_fingerprint

    def changed(*work, **options):
        fingerprint = compute(*work, **options)
        return Fingerprint.from_modules({**fingerprint.modules, "trainers.changed": "0" * 64})

    monkeypatch.setattr(keys_module, "code_fingerprint", changed)
    settings = ExperimentSettings.from_dict(lab.settings())
    again = retest_experiment(first.run_id, settings=settings)
    assert again.states == first.states
    stages = RunFolder(again.folder).manifest.stages
    tested = [record for record in stages if record.stage == "test"]
    assert [record.iteration for record in tested] == [0, 3, 6, 7]


def test_rerunning_tests_from_a_file_computes_the_planned_stages(lab):
    first = run(lab)
    origin = {"base_run_type": "rerun_tests", "run_id": first.run_id}
    data = {"base_run": origin, "rl": {"num_test_iterations": 2}}
    settings = ExperimentSettings.from_dict(lab.settings(run_id="again"))
    hyper_params = {**lab.hyper_params(), **data}
    with_rates = {**hyper_params, "rl": {**lab.hyper_params()["rl"], "num_test_iterations": 2}}
    result = run_experiment(with_rates, settings)
    assert [p.hit for p in plan_experiment(with_rates, settings)] == [True] * (1 + 4)
    assert (result.computed, result.cached) == (4, 1)
    lost = {**with_rates, "base_run": {"base_run_type": "rerun_tests", "run_id": None}}
    with pytest.raises(ParameterError, match=r"base_run\.run_id: got None"):
        run_experiment(lost, settings)


def test_parameters_of_the_file_override_those_of_the_base_run(lab):
    first = run(lab, lab.hyper_params(rl__lr=0.25))
    settings = ExperimentSettings.from_dict(lab.settings(run_id="based"))
    based = {
        "base_run": {"base_run_type": "parameters", "run_id": first.run_id},
        "rl": {"num_test_iterations": 2},
    }
    result = run_experiment(based, settings)
    arms = RunFolder(result.folder).manifest.arms
    assert (arms["main"]["rl"]["lr"], arms["main"]["rl"]["num_test_iterations"]) == (0.25, 2)
    assert result.states == first.states, "it trains like the base run"


def test_an_intact_run_is_verified_bit_for_bit(lab):
    result = run(lab)
    settings = ExperimentSettings.from_dict(lab.settings())
    before = sorted((lab.folder / "home" / "store" / "stages").iterdir())
    found = verify_run(result.run_id, settings)
    assert found.is_sound
    assert len(found.stages) == result.computed
    assert (found.remade.record.stage, found.remade.record.iteration) == ("train", 7)
    for stage in ("train:3", "pretrain-prover", "pretrained_state", "test", "build_scenario"):
        remade = verify_run(result.run_id, settings, stage=stage).remade
        assert remade.differences == (), stage
        assert remade.record.stage == stage.partition(":")[0]
    assert sorted((lab.folder / "home" / "store" / "stages").iterdir()) == before
    with pytest.raises(ParameterError, match="no stage 'train:5' that can be recomputed"):
        verify_run(result.run_id, settings, stage="train:5")


def test_a_damaged_file_and_a_different_result_are_detected(lab, monkeypatch):
    result = run(lab)
    settings = ExperimentSettings.from_dict(lab.settings())
    from tasks.tensordict.stages import train

    work = train.work

    def other(call, folder, session):
        points = work(call, folder, session)
        (folder / "state" / "state.json").write_text("{}")
        return points[:-1]

    monkeypatch.setattr(train, "work", other)
    found = verify_run(result.run_id, settings)
    assert not found.is_sound
    assert [text.partition(":")[0] for text in found.remade.differences] == [
        "state/state.json",
        "metrics of iteration 6",
    ]
    monkeypatch.undo()
    record = next(r for r in RunFolder(result.folder).manifest.stages if r.stage == "train")
    weights = stage_folder(lab, record) / "state" / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(content)
    found = verify_run(result.run_id, settings)
    assert not found.is_sound
    assert found.remade is None
    assert [s.record.key for s in found.stages if s.problems] == [record.key]


def test_a_run_without_stages_is_verified_as_one_stage(lab):
    trainer = {"module_path": "tiny_trainer.py", "class_name": "TinyWholeTrainer"}
    result = run(lab, lab.hyper_params(trainer=trainer))
    found = verify_run(result.run_id, ExperimentSettings.from_dict(lab.settings()))
    assert found.remade.record.stage == "run_trainer"
    assert found.is_sound


def test_stored_rollouts_are_those_of_training(lab, small):
    """Settings change stage boundaries and stored files, but no result."""
    plain = run(lab, small, run_id="plain", iterations_per_task=4)
    kept = run(
        lab,
        small,
        run_id="kept",
        iterations_per_task=3,
        checkpoint_period=2,
        rollout_sample_period=2,
        profiler=True,
        store=str(lab.folder / "other"),
    )
    assert kept.states == plain.states
    assert lab.metrics(kept.to_dict())[1:5] == lab.metrics(plain.to_dict())[1:5]
    folder = RunFolder(kept.folder)
    records = folder.manifest.stages
    assert [r.iteration for r in records if r.stage == "train"] == [2, 3, 4]
    names = sorted(path.name for path in (folder.rollouts_path / "main").iterdir())
    assert names == ["0.safetensors", "2.safetensors"]
    points = {(stage, i): dict(v) for _, stage, i, v in lab.metrics(kept.to_dict())}
    for iteration in (0, 2):
        path = folder.rollouts_path / "main" / f"{iteration}.safetensors"
        rollouts = load_rollouts(path)
        reward = rollouts["next", "agents", "reward"].mean((0, 1))
        agents = json.loads(read_about(path, "agent_names"))
        for place, agent in enumerate(agents):
            logged = points["train", iteration][f"{agent}.mean_step_reward"]
            assert float(reward[place]) == pytest.approx(logged, rel=1e-6)
        assert rollouts["agents", "advantage"].isfinite().all()
    transcripts = sorted((folder.transcripts_path / "main").iterdir())
    assert [path.name for path in transcripts] == ["0.jsonl", "2.jsonl"]
    shown = list(read_report_transcripts(transcripts[0]))
    assert all(len(one["graphs"]) == 2 and one["rounds"] for one in shown)
    assert 'data-title="Iteration 2"' in folder.report_path.read_text()
    profiles = {path.name for path in (folder.profiles_path / "main").iterdir()}
    assert {"train-0-2.txt", "train-2-3.txt", "rollouts-2.txt", "test-4.txt"} <= profiles
    assert "cumulative" in (folder.profiles_path / "main" / "train-0-2.txt").read_text()
    again = run(
        lab,
        small,
        run_id="kept",
        iterations_per_task=3,
        checkpoint_period=2,
        rollout_sample_period=2,
        store=str(lab.folder / "other"),
    )
    assert again.computed == 0
    settings = ExperimentSettings.from_dict(
        lab.settings(run_id="kept", store=str(lab.folder / "other"))
    )
    for stage in ("train:4", "rollouts:2", "test"):
        assert verify_run("kept", settings, stage=stage).is_sound, stage


def test_an_agent_of_a_run_initialises_a_different_run(lab, small):
    first = run(lab, small, run_id="first", iterations_per_task=2)
    changes = {
        "agents.verifier.load_checkpoint_and_parameters": True,
        "agents.verifier.checkpoint_run_id": "first",
        "seed": 5,
    }
    second = run(lab, small.replace(changes), run_id="second")
    manifest = RunFolder(second.folder).manifest
    assert manifest.arms["main"]["agents"]["verifier"]["checkpoint_version"] == "4"
    begun = next(r for r in manifest.stages if r.stage == "initial_state")
    state = State.load(stage_folder(lab, begun) / "state")
    source = State.load(lab.folder / "home/store/stages" / first.states["main"] / "state")
    for name, tensor in source.agents["verifier"].items():
        assert torch.equal(state.agents["verifier"][name], tensor)
    copied = run(lab, small, run_id="copied")
    assert copied.states == first.states
    same = {**changes, "agents.verifier.checkpoint_run_id": "copied"}
    third = run(lab, small.replace(same), run_id="third")
    assert third.computed == 0, "keys depend on the content, not on the run"
    earlier = {**changes, "agents.verifier.checkpoint_version": "2"}
    assert run(lab, small.replace(earlier), run_id="fourth").computed > 0
    none = {**changes, "agents.verifier.checkpoint_version": "3"}
    with pytest.raises(CheckPointNotFoundError, match="those after 0, 2, 4 iterations"):
        run(lab, small.replace(none), run_id="fifth")


def test_the_verify_command_reports_its_findings(lab):
    from typer.testing import CliRunner

    from flows.cli.main import app

    result = run(lab)
    runs = ["--runs-dir", str(lab.folder / "runs")]
    found = CliRunner().invoke(app, ["verify", result.run_id, *runs])
    assert found.exit_code == 0, found.output
    assert f"{result.computed} of {result.computed} stages are unchanged." in found.output
    assert "bit for bit identical: train of arm main, iterations 6 → 7" in found.output
    page, published = lab.folder / "page.md", lab.folder / "page.json"
    compared = CliRunner().invoke(
        app, ["compare", result.run_id, "--update-page", str(page), *runs]
    )
    assert compared.exit_code == 0, compared.output
    check = ["verify", result.run_id, "--files-only", "--published", str(published), *runs]
    found = CliRunner().invoke(app, check)
    assert found.exit_code == 0, found.output
    assert "All decisions as published: test of arm main" in found.output
    assert "As published: data set, 2 of 2 values of arm main." in found.output
    (other,) = json.loads(published.read_text())["runs"]
    digest = other["tests"]["test"]["sha256"]
    published.write_text(published.read_text().replace(digest, "0" * 64))
    found = CliRunner().invoke(app, check)
    assert found.exit_code == 1
    assert "Different from published" in found.output
    content = json.loads(published.read_text().replace("0" * 64, digest))
    content["versions"] |= {"torch CPU capability": "none"}
    for name in ("processor model", "instruction sets", "numpy BLAS"):
        content["versions"].pop(name, None)
    content["runs"][0]["scores"] = {"test": 0.123}
    published.write_text(json.dumps(content))
    found = CliRunner().invoke(app, check)
    assert found.exit_code == 1
    output = " ".join(found.output.split())
    assert "main score test 0.123" in output
    assert "Published with torch CPU capability none, here " in output
    assert "Not recorded in the published file: " in output
    assert "numpy BLAS" in output
    found = CliRunner().invoke(app, [*check[:-3], "none.json", *runs])
    assert (found.exit_code, "none.json: cannot be read" in found.output) == (2, True)
    assert "stages are unchanged" not in found.output, (
        "expected the error before verification starts"
    )
    record = RunFolder(result.folder).manifest.stages[-1]
    table = stage_folder(lab, record) / "table.json"
    table.write_text(table.read_text().replace("1", "0", 1))
    found = CliRunner().invoke(app, ["verify", result.run_id, "--files-only", *runs])
    assert found.exit_code == 1
    assert "table.json" in found.output
    assert f"ratchet resume {result.run_id}" in found.output
    retest = CliRunner().invoke(app, ["retest", result.run_id, "rl.num_test_iterations=4", *runs])
    assert retest.exit_code == 0, retest.output
    assert "tiny-retest" in retest.output
