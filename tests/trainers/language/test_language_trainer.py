"""The loop's results do not depend on stage boundaries, saving and loading."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError, StateError
from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.engines.rollouts import SampleRequest
from ratchet.language_models.local.loading import load_language_model
from ratchet.parameters.purposes import Purpose
from ratchet.rollouts.trajectory import load_trajectories, save_trajectories
from ratchet.scenarios.registry import build_scenario_instance
from trainers.callbacks.base import CallbackState
from trainers.compatibility import check_combination
from trainers.language import rollout_worker_main
from trainers.language.grpo import GrpoTrainer
from trainers.language.rollout_worker import RolloutWorker
from trainers.language.trainer import Rollouts, loop_around
from trainers.progress import progress_reporter
from trainers.registry import trainer_class
from trainers.subprocess_worker import SubprocessWorker

SMALL = {"layers": 1, "d_model": 16, "heads": 2, "d_mlp": 32, "context_length": 32}


def parameters(trainer="grpo", **more) -> HyperParameters:
    content = {
        "scenario": "language_task",
        "dataset": "reverse",
        "trainer": trainer,
        "rl": {"num_iterations": 4},
        "language_task": {
            "num_train": 64,
            "num_test": 8,
            "reverse": {"length": 3, "num_symbols": 6},
        },
        "agents": {
            "_default": {
                "max_tokens": 5,
                "small_model": SMALL,
                "warm_up": {"num_steps": 10, "batch_size": 8},
            }
        },
        "language": {"tasks_per_step": 3, "group_size": 4, "optimizer": {"lr": 0.01}},
    }
    for name, value in more.items():
        given = content.get(name)
        content[name] = {**given, **value} if isinstance(given, dict) else value
    return HyperParameters(**content)


def build(hyper_params: HyperParameters, **settings):
    settings = ExperimentSettings(progress="none", **settings)
    found = trainer_class(hyper_params)
    instance = build_scenario_instance(hyper_params, settings, trainer_type=found.trainer_type)
    return found(hyper_params, instance, settings)


def keep(trainer, folder, key):
    trainer.save_state(folder / key, key)


def load(trainer, folder, key):
    trainer.load_state(folder / key, key, lambda name: folder / name)


@pytest.mark.parametrize("mode", ["synchronous", "one_step_behind"])
@pytest.mark.parametrize(
    ("trainer", "section"),
    [
        ("grpo", {"variant": "dapo", "kl": {"coef": 0.01}}),
        ("language_ppo", {}),
        ("cross_entropy", {"min_reward": 0.0}),
    ],
)
def test_a_cut_changes_nothing(mode, trainer, section, tmp_path):
    language = {"mode": mode, "num_epochs": 2, "minibatch_size": 6}
    given = parameters(trainer, language=language, **{trainer: section})
    through = build(given)
    through.initial_state()
    whole = through.run_iterations(0, 4)

    first = build(given)
    first.initial_state()
    keep(first, tmp_path, "initial")
    parts = first.run_iterations(0, 1)
    keep(first, tmp_path, "one")
    second = build(given)  # as in another process
    load(second, tmp_path, "one")
    parts += second.run_iterations(1, 3)
    keep(second, tmp_path, "three")
    third = build(given)
    load(third, tmp_path, "three")
    parts += third.run_iterations(3, 4)
    assert parts == whole
    third_state, through_state = third.state, through.state
    third_state.initial = through_state.initial
    assert third_state == through_state
    assert third.run_test().metrics == through.run_test().metrics


def test_rollouts_of_a_stage_of_their_own_are_those_that_training_plays(tmp_path):
    given = parameters()
    through, cut = build(given), build(given)
    through.initial_state()
    cut.initial_state()
    whole = through.run_iterations(0, 2)
    parts = []
    for iteration in range(2):
        before = cut.state
        played = cut.play_rollouts(iteration)
        assert cut.state == before, "playing changes nothing"
        save_trajectories(played.trajectories, tmp_path / "played.jsonl")
        read = load_trajectories(tmp_path / "played.jsonl")
        cut.give_rollouts(iteration, Rollouts(read, played.metrics, played.cursor))
        parts += cut.run_iterations(iteration, iteration + 1)
    assert parts == whole
    assert cut.state == through.state


def test_one_step_behind_learns_from_the_weights_before():
    given = {"language": {"mode": "one_step_behind"}, "language_task": {"evaluator": "partial"}}
    trainer = build(parameters(**given))
    trainer.initial_state()
    metrics = trainer.run_iterations(0, 4)
    assert [one["rollout/staleness"] for one in metrics] == [0, 1, 1, 1]
    assert trainer.state.pending is not None, "a longer run continues from the same state"
    uncorrected = build(parameters(grpo={"sampler_correction": "none"}, **given))
    uncorrected.initial_state()
    without = uncorrected.run_iterations(0, 4)
    assert without[0]["actor/grad_norm"] == pytest.approx(metrics[0]["actor/grad_norm"], rel=1e-4)
    assert without[3]["actor/grad_norm"] != pytest.approx(metrics[3]["actor/grad_norm"], rel=1e-4)


def test_a_process_that_plays_makes_nothing_to_learn_with(tmp_path, monkeypatch):
    language = {"train_service": {"world_size": 2}, "mode": "one_step_behind"}
    given = parameters(language=language, grpo={"kl": {"coef": 0.1}})
    learns = build(given)
    learns.initial_state()
    keep(learns, tmp_path, "0")
    for name, dataset in learns.scenario_instance.datasets.items():
        dataset.save(tmp_path / "datasets" / name)
    for name in ("played", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    player, made, asked = RolloutWorker(given, learns.settings, tmp_path / "datasets"), {}, {}
    monkeypatch.setattr(player._worker, "ask", asked.update)
    player.play(tmp_path / "0", 0, tmp_path / "played", beginning=tmp_path / "0")
    rollout_worker_main._play(made, asked)
    assert Rollouts.load(tmp_path / "played") == learns.play_rollouts(0)
    assert not list((tmp_path / "temporary").iterdir()), "which would never be removed"
    assert made["trainer"].learner._reference is None


STOPS = """
from trainers.callbacks.base import Callback

class Stops(Callback):
    steers = True

    def begin_iteration(self, now):
        if now.iteration == 1:
            self.stop("enough")
"""


def test_what_plays_beside_plays_on_while_a_run_stops(tmp_path, monkeypatch):
    (tmp_path / "stops.py").write_text(STOPS)
    stops = [f"{tmp_path / 'stops.py'}:Stops"]
    made = {}
    monkeypatch.setattr(
        SubprocessWorker, "ask", lambda _, asked: rollout_worker_main._play(made, asked)
    )
    monkeypatch.setattr(SubprocessWorker, "wait", lambda _: {})
    alone, together = (
        build(parameters(callbacks=stops, language={"mode": "one_step_behind"})) for _ in range(2)
    )
    together.plays_beside_after = 0.0
    for trainer in (alone, together):
        trainer.initial_state()
        trainer.run_iterations(0, 3)
        trainer.close()
    assert alone.has_stopped
    assert together.state == alone.state


def test_the_best_weights_are_not_known_from_rollouts_of_those_before():
    mode = {"language": {"mode": "one_step_behind"}}
    watched = {"name": "keep_best", "metric": "rollout/reward_mean"}
    with pytest.raises(ParameterError, match=r"callbacks\.0\.dataset: got none with language.mode"):
        check_combination(parameters(callbacks=[watched], **mode))
    tested = [{**watched, "dataset": "test"}]
    for given in ({"callbacks": tested, **mode}, {"callbacks": [watched]}):
        check_combination(parameters(**given))


def test_dynamic_sampling_goes_on_to_tasks_that_differ():
    grpo = {"variant": "dapo", "max_resamples": 6}
    trainer = build(parameters(grpo=grpo))
    trainer.initial_state()
    played = trainer.play_rollouts(0)
    groups = {}
    for trajectory in played.trajectories:
        groups.setdefault(trajectory.group_id, set()).add(trajectory.reward)
    assert all(len(rewards) > 1 for rewards in groups.values())
    assert played.cursor >= 3 * 1
    plain = build(parameters())
    plain.initial_state()
    assert plain.play_rollouts(0).cursor == 3


def test_a_state_of_other_tasks_is_refused(tmp_path):
    trainer = build(parameters())
    trainer.initial_state()
    keep(trainer, tmp_path, "initial")
    other = build(parameters(seed=7))
    with pytest.raises(StateError, match="training set"):
        load(other, tmp_path, "initial")


def test_the_horizon_is_read_where_the_learning_rate_falls():
    found = trainer_class(parameters())
    falling = parameters(language={"optimizer": {"schedule": "linear"}})
    assert Purpose.HORIZON not in found.stage_purposes(parameters())["train"]
    assert Purpose.HORIZON in found.stage_purposes(falling)["train"]


def test_distillation_asks_for_its_teacher():
    with pytest.raises(ParameterError, match="teacher"):
        trainer_class(parameters("on_policy_distillation"))


def test_the_temperature_of_the_answers_is_that_of_their_log_probabilities():
    warm = parameters()
    hot = warm.replace({"agents._default.temperature": 1.7})
    for given in (warm, hot):
        trainer = build(given)
        trainer.initial_state()
        (metrics,) = trainer.run_iterations(0, 1)
        assert metrics["actor/sampler_difference"] < 1e-5
    with pytest.raises(ParameterError, match="temperature: got 0"):
        trainer_class(warm.replace({"agents._default.temperature": 0}))


@pytest.fixture
def model_in_files(tmp_path):
    """A model of the tasks' characters, as if created elsewhere."""
    trainer = build(parameters())
    trainer.initial_state()
    trainer.learner.save_model(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.slow
@pytest.mark.filterwarnings("error::FutureWarning")
def test_an_adapter_learns_is_cut_and_loaded_and_its_base_stays(model_in_files, tmp_path):
    before = (model_in_files / "model.safetensors").read_bytes()
    agents = {"_default": {"max_tokens": 5, "model": str(model_in_files), "lora": {"rank": 2}}}
    given = HyperParameters(**{**parameters().to_dict(), "agents": agents})
    through = build(given)
    through.initial_state()
    keep(through, tmp_path, "initial")
    whole = through.run_iterations(0, 2)
    cut = build(given)
    load(cut, tmp_path, "initial")
    parts = cut.run_iterations(0, 1)
    keep(cut, tmp_path, "one")
    other = build(given)
    load(other, tmp_path, "one")
    assert parts + other.run_iterations(1, 2) == whole
    assert set(other.state.learners["agent"]["model"]) == set(through.learner.model.state_dict())
    assert all("lora" in name for name in through.learner.model.state_dict())
    assert (model_in_files / "model.safetensors").read_bytes() == before
    learner = through.learner
    learner.put_weights(
        CallbackState(tensors={k: v + 0.1 for k, v in learner.model.state_dict().items()})
    )
    learner.save_whole_model(tmp_path / "whole")
    assert not (tmp_path / "whole" / "adapter_config.json").exists()
    alone = load_language_model(tmp_path / "whole", base_dir=Path())
    prompt = tuple(alone.tokenizer.encode("abc="))
    asked = [SampleRequest(prompt, 5, seed) for seed in range(8)]
    said = [InProcessEngine(model).generate(asked) for model in (learner.model, alone)]
    for one, same in zip(*said, strict=True):
        assert one.tokens == same.tokens
        assert one.log_probs == pytest.approx(same.log_probs, abs=1e-5)
    with pytest.raises(ParameterError, match="built here"):
        trainer_class(parameters(agents={"_default": {"lora": {"rank": 2}}}))


def test_what_lies_in_a_models_files_is_in_the_keys_and_not_where(model_in_files, tmp_path):
    from tasks.language.keys import LanguageArmKeys

    def key(folder):
        agents = {"_default": {"model": str(folder)}}
        given = HyperParameters(**{**parameters().to_dict(), "agents": agents})
        return LanguageArmKeys("main", given).state_key(2)

    first = key(model_in_files)
    moved = model_in_files.rename(tmp_path / "moved")
    assert key(moved) == first
    config = moved / "generation_config.json"
    config.write_text(config.read_text().replace("{", '{"max_length": 7,', 1))
    assert key(moved) != first


def test_validation_plays_its_own_tasks_and_changes_nothing():
    given = parameters(language={"validate_every": 2}, language_task={"num_validation": 5})
    trainer, plain = build(given), build(parameters())
    for each in (trainer, plain):
        each.initial_state()
    metrics = trainer.run_iterations(0, 2)
    assert trainer.evaluate("validation").metrics["num_datapoints"] == 5
    assert [*metrics, *trainer.run_iterations(2, 4)] == plain.run_iterations(0, 4)


class Cutting:
    """A stage layout of given boundaries, with sampled stages every given number of iterations."""

    def __init__(self, period):
        self.period = period

    def tested(self, keys):
        return ["test"]

    def stops(self, keys):
        return iter((2, 4))

    def samples_at(self, iteration, last):
        return iteration % self.period == 0 and iteration < last


@pytest.mark.parametrize("mode", ["synchronous", "one_step_behind"])
def test_sampled_iterations_play_in_stages_of_their_own(mode):
    from tasks.language.keys import LanguageArmKeys

    keys = LanguageArmKeys("main", parameters(language={"mode": mode}))
    names = [(step.stage, step.iteration) for step in keys.stages(Cutting(4))]
    assert names[2:-1] == [("rollouts", 0), ("train", 2), ("train", 4)]
    names = [(step.stage, step.iteration) for step in keys.stages(Cutting(2))]
    assert names[2:-1] == [("rollouts", 0), ("train", 2), ("rollouts", 2), ("train", 4)]


def test_what_is_sampled_is_what_is_learned_from(tmp_path):
    through = build(parameters(language={"mode": "one_step_behind"}))
    through.initial_state()
    through.run_iterations(0, 2)
    ahead = through.rollouts_of(2)
    assert {t.model_version for t in ahead.trajectories} == {1}, "played one step before"
    keep(through, tmp_path, "two")
    given = build(parameters(language={"mode": "one_step_behind"}))
    load(given, tmp_path, "two")
    given.give_rollouts(2, ahead)
    assert given.run_iterations(2, 4) == through.run_iterations(2, 4)


def test_a_custom_learner_may_read_what_is_networks():
    class Mine(GrpoTrainer):
        """A trainer of a user's."""

    own, ours = (
        loop_around(kind).stage_key_parameters(parameters(), "train")
        for kind in (Mine, GrpoTrainer)
    )
    assert "algorithm" in own["language"].keys() - ours["language"].keys()
    assert own["language"]["train_service"].keys() > ours["language"]["train_service"].keys()
    assert {"rl", "protocol_common"} <= own.keys() - ours.keys()


def test_the_number_of_processes_is_in_the_keys_of_training_and_of_their_samples():
    def changed(language=None, **service):
        language = language or {}
        given, other = (
            parameters(language={**language, "train_service": each}) for each in (service, {})
        )
        return {
            stage
            for stage in ("initial_state", "rollouts", "train", "test")
            if loop_around(GrpoTrainer).stage_key_parameters(given, stage)
            != loop_around(GrpoTrainer).stage_key_parameters(other, stage)
        }

    assert changed(world_size=2) == {"rollouts", "train", "test"}
    for language in ({"engine": "vllm"}, {"mode": "one_step_behind"}):
        assert changed(language, world_size=2) == {"train"}, "the main process samples"
    assert changed(config={"learning_rate": 1.0}) == set()


def test_every_step_of_a_warm_up_is_reported():
    said = []

    class Reporter:
        def describe(self, description):
            said.append(description)

        def show(self, metrics):
            assert metrics["loss"] > 0

        def start(self, total):
            raise AssertionError("steps of a warm-up are no iterations")

    with progress_reporter(Reporter()):
        build(parameters()).initial_state()
    steps = [text for text in said if text.startswith("Warm-up")]
    assert steps == [f"Warm-up of agent, step {n} of at most 10" for n in range(1, 11)]


def test_more_tasks_than_there_are_is_refused_before_anything_is_drawn():
    many = {"num_train": 1000, "num_test": 8, "reverse": {"length": 3, "num_symbols": 6}}
    with pytest.raises(ParameterError, match=r"num_train: got 1000, .* at most 216 different"):
        check_combination(parameters(language_task=many))
