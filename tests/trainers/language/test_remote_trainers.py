"""Trainers with a remote model, over real HTTP, equal local ones."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from flows.runs.resolve import resolve_file
from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import DataError, ParameterError
from ratchet.language_models.connection import StatusError
from ratchet.language_models.endpoints import EMBEDDED_URL_VARIABLE
from ratchet.language_models.engines.rollouts import SampleRequest
from ratchet.language_models.retrying import RetryPolicy
from ratchet.language_models.training_service import client
from ratchet.language_models.training_service.client import RatchetClient
from ratchet.scenarios.language_task.parameters import LanguageAgentParameters
from ratchet.scenarios.registry import build_scenario_instance
from tasks.language.keys import LanguageArmKeys
from tests.language_models.losing_proxy import LosingProxy
from tests.service.conftest import FakeEngine, RunningService
from tests.trainers.language.conftest import differ, weights_of
from trainers.language.base import InitialModel, TrainingPosition
from trainers.language.grpo import GrpoTrainer
from trainers.language.remote_api import RemoteApiTrainer
from trainers.language.remote_grpo import RemoteGrpoTrainer
from trainers.registry import trainer_class

ROOT = Path(__file__).parents[3]
LR = {"optimizer": {"lr": 1e-2}}
WARM = {"num_steps": 2}


class Plain(RemoteApiTrainer):
    """Rewards are advantages."""

    def _prepare_trajectories(self, trajectories, metrics):
        for one in trajectories:
            one.advantage = one.reward
        metrics["mine/count"] = len(trajectories)
        return trajectories


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with RunningService(home, FakeEngine(0.0)).serving() as service:
        yield service


@pytest.fixture
def begin(served, new_model):
    """Make a remote trainer with the small model."""
    begun = []

    def begin(trainer_class=RemoteGrpoTrainer, url=None, agent=None, **config):
        service = {"backend": "ratchet", "url": url or served.url, **config.pop("service", {})}
        trainer = trainer_class({"max_tokens": 6, "train_service": service, **config})
        agent = LanguageAgentParameters(**(agent or {}))
        trainer.begin(InitialModel(new_model, agent, ExperimentSettings(), "data"))
        begun.append(trainer)
        return trainer

    yield begin
    for trainer in begun:
        trainer.close()


PLAYED = {}


def learn(trainer, play, steps=3, first=0):
    """Learn from the same rollouts as any other trainer."""
    metrics = []
    for iteration in range(first, first + steps):
        if iteration not in PLAYED:
            PLAYED[iteration] = play(seed=iteration)
        trainer.moment = TrainingPosition(seed=5, iteration=iteration, num_iterations=8)
        metrics.append(trainer.train(PLAYED[iteration]))
    return metrics


def weights(served, trainer):
    folder = served.service.models.get(trainer.take_state()["model"]).folder
    return load_file(folder / "model.safetensors")


def test_a_reward_that_is_no_finite_number_is_refused_before_the_service_is_called(begin, play):
    played = play()
    played[6].reward = float("nan")  # e.g. by a callback
    trainer = begin()
    trainer.moment = TrainingPosition(seed=5, iteration=0, num_iterations=1)
    with pytest.raises(DataError, match=r"reward: row 6 \(task 'task 1'\) has nan"):
        trainer.train(played)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_epochs": 2, "minibatch_size": 6, "micro_batch_size": 4},
        {"grpo": {"variant": "dapo", "sampler_correction": "token", "sampler_cap": 1.01}},
        {"grpo": {"variant": "dr_grpo", "clip_low": 0.001, "clip_high": 0.002}, "num_epochs": 3},
        {"grpo": {"variant": "gspo"}, "num_epochs": 2},
        {"grpo": {"policy_loss": "cispo", "clip_high": 0.01}, "num_epochs": 2},
        {"grpo": {"variant": "rloo"}, "num_epochs": 2},
        {"grpo": {"variant": "reinforce_plus_plus", "policy_loss": "reinforce"}},
        {"mode": "one_step_behind"},
    ],
    ids=["plain", "minibatches", "dapo", "clip", "gspo", "cispo", "rloo", "reinforce", "behind"],
)
def test_remote_grpo_is_self_hosted_grpo(config, served, begin, connected, play):
    given = {**LR, **config}
    here, there = connected(GrpoTrainer, **given), begin(**given)
    told = [learn(trainer, play) for trainer in (here, there)]
    moved = differ(weights_of(here), weights_of(connected(GrpoTrainer)))
    assert differ(weights_of(here), weights(served, there)) < 2e-4 * moved + 1e-5
    for one, other in zip(*told, strict=True):
        shared = one.keys() & other.keys()
        assert len(shared) > 30
        for name in shared:
            assert one[name] == pytest.approx(other[name], rel=2e-3, abs=2e-4), name
        missing = {name for name in one if name.startswith("actor")} - shared
        assert all("clip_fraction" in name for name in missing)


OPTIMIZERS = {
    "lr": 2e-2,
    "beta1": 0.5,
    "beta2": 0.9,
    "eps": 1e-3,
    "weight_decay": 1.0,
    "max_grad_norm": 1e-4,
    "schedule": "cosine",
    "warmup_steps": 2,
}


def test_each_setting_of_the_optimizer_reaches_the_weights(served, begin, connected, play):
    usual = begin(**LR)
    learn(usual, play, steps=2)
    seen = [weights(served, usual)]
    for name, value in OPTIMIZERS.items():
        optimizer = {"lr": 1e-2, "eps": 1e-5, name: value}
        there, here = begin(optimizer=optimizer), connected(GrpoTrainer, optimizer=optimizer)
        told = [learn(trainer, play, steps=2) for trainer in (there, here)]
        found = weights(served, there)
        assert differ(found, weights_of(here)) < 1e-5, name
        assert all(differ(found, other) > 1e-6 for other in seen), name
        assert told[0][1]["actor/lr"] == pytest.approx(told[1][1]["actor/lr"])
        seen.append(found)
    rate = {"service": {"config": {"learning_rate": 2e-2}}, "optimizer": {"eps": 1e-5}}
    by_service = begin(**rate)
    learn(by_service, play, steps=2)
    assert differ(weights(served, by_service), seen[1]) == 0


@pytest.mark.slow
def test_lost_and_doubled_answers_change_nothing(served, begin, play, monkeypatch):
    config = {**LR, "num_epochs": 2, "minibatch_size": 4, "micro_batch_size": 2}
    config["grpo"] = {"variant": "dapo"}
    through = begin(**config)
    told = learn(through, play)
    quick = RetryPolicy(max_attempts=30, first_delay_seconds=0.001, max_delay_seconds=0.01)
    monkeypatch.setattr(client, "RetryPolicy", lambda: quick)
    proxy = LosingProxy(served.url, share=0.4, seed=1)
    try:
        lossy = begin(url=proxy.url, **config)
        assert learn(lossy, play) == told
        assert lossy.take_state() == through.take_state(), "the very same models"
        assert lossy.tokenizer.encode("ab=") == through.tokenizer.encode("ab=")
        request = SampleRequest(tuple(through.tokenizer.encode("ab=")), 4, 7)
        assert lossy.engine.generate([request]) == through.engine.generate([request])
    finally:
        proxy.close()
    assert all(proxy.seen.values()), proxy.seen


@pytest.mark.slow
def test_an_update_that_was_cut_off_goes_on_where_it_was(served, begin, play, monkeypatch):
    config = {**LR, "num_epochs": 2, "minibatch_size": 8, "micro_batch_size": 4}
    through = begin(**config)
    told = learn(through, play, steps=2)
    before = len(served.service.training.records.all())
    sent = []
    real = client.HttpTrainingService._verb

    def counted(self, verb, *given, **fields):
        sent.append(verb)
        return real(self, verb, *given, **fields)

    monkeypatch.setattr(client.HttpTrainingService, "_verb", counted)
    learn(begin(**config), play, steps=1)
    verbs = len(sent)
    assert verbs == 4 + 4 * (2 + 1) + 1, "scores, four steps, and the model"
    state = None
    for cut in range(0, verbs, 3):  # as if the process had ended there

        def failing(self, *given, left=[cut], **fields):  # noqa: B006 -- it is counted down
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return real(self, *given, **fields)

        monkeypatch.setattr(client.HttpTrainingService, "_verb", failing)
        trainer = begin(**config)
        with pytest.raises(KeyboardInterrupt):
            learn(trainer, play, steps=1)
        assert trainer.take_state()["model"] == "", "no step has been taken"
        monkeypatch.setattr(client.HttpTrainingService, "_verb", real)
        again = begin(**config)
        assert learn(again, play, steps=1) == told[:1]
        state = again.take_state()
    resumed = begin(**config)
    resumed.put_state(state)
    assert learn(resumed, play, steps=1, first=1) == told[1:]
    assert resumed.take_state() == through.take_state()
    assert len(served.service.training.records.all()) == before, "each update was taken once"


def test_a_fork_leaves_the_continuation_of_its_parent_as_it_is(served, begin, play):
    parent = begin(**LR)
    learn(parent, play, steps=1)
    state = parent.take_state()
    whole = learn(parent, play, steps=2, first=1)
    final = weights(served, parent)
    fork = begin(**LR, num_epochs=2, grpo={"clip_high": 1e-4})
    fork.put_state(state)
    learn(fork, play, steps=2, first=1)
    assert differ(weights(served, fork), final) > 0
    other_step = begin(optimizer={"lr": 5e-3})  # the same gradient, followed otherwise
    other_step.put_state(state)
    learn(other_step, play, steps=2, first=1)
    again = begin(**LR)
    again.put_state(state)
    assert learn(again, play, steps=2, first=1) == whole
    assert again.take_state() == parent.take_state()
    assert differ(weights(served, again), final) == 0


def test_what_is_not_read_names_no_other_session(begin, play):
    def model(**grpo):
        trainer = begin(RemoteGrpoTrainer, grpo=grpo, **LR)
        learn(trainer, play, steps=1)
        return trainer.take_state()["model"]

    usual = model()
    assert model(baseline_decay=0.5, aggregation_constant=3, max_resamples=2) == usual
    assert model(aggregation="token_mean") != usual
    corrected = {"sampler_correction": "token"}
    assert model(**corrected) != model(sampler_cap=1.5, **corrected)
    whole = {"aggregation": "constant"}
    assert model(**whole) != model(aggregation_constant=3, **whole)


def test_an_adapter_is_trained_at_the_service(served, begin, play, model_folder):
    agent = {"model": str(model_folder), "lora": {"rank": 2, "alpha": 8}}
    trainer = begin(agent=agent, **LR)
    (first,) = learn(trainer, play, steps=1)
    assert first["actor/grad_norm"] > 0
    folder = served.service.models.get(trainer.take_state()["model"]).folder
    assert (folder / "adapter_config.json").is_file()
    learn(trainer, play, steps=1, first=1)
    assert trainer.tokenizer.encode("ab=")


def test_it_says_where_its_model_is_asked(served, begin, play):
    trainer = begin()
    first = trainer.address()
    learn(trainer, play, steps=1)
    now = trainer.address()
    assert (first.url, now.url) == (f"{served.url}/v1",) * 2
    assert served.service.models.get(first.model).id != served.service.models.get(now.model).id
    assert now.model == trainer.take_state()["model"]


def test_a_custom_trainer_follows_the_services_loss(begin, play):
    config = {"loss_fn": "importance_sampling", "learning_rate": 1e-2}
    trainer = begin(Plain, service={"config": config})
    (metrics,) = learn(trainer, play, steps=1)
    assert metrics["mine/count"] == 16
    assert metrics["actor/ratio"] == pytest.approx(1, abs=1e-4)
    assert trainer.train([]) == {"training/num_trajectories": 0.0}

    class Forgetful(Plain):
        def _prepare_trajectories(self, trajectories, metrics):
            for one in trajectories:
                one.advantage = None
            return trajectories

    with pytest.raises(DataError, match="neither advantage nor"):
        learn(begin(Forgetful), play, steps=1)
    with pytest.raises(ParameterError, match="loss_fm"):
        begin(Plain, service={"config": {"loss_fm": "ppo"}})
    with pytest.raises(ParameterError, match="loss_config requires a loss_fn"):
        begin(Plain, service={"config": {"loss_config": {"beta": 0.1}}})
    with pytest.raises(ParameterError, match=r"sampler_correction: got 'token' with .*loss_fn"):
        begin(Plain, service={"config": config}, algorithm={"sampler_correction": "token"})


def chosen(**more):
    content = {
        "scenario": "language_task",
        "dataset": "reverse",
        "trainer": "remote_grpo",
        "language": {"train_service": {"backend": "ratchet"}},
    }
    return HyperParameters(**{**content, **more})


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"language": {}}, "train_service.backend: got 'self-hosted'"),
        ({"grpo": {"kl": {"coef": 0.1}}}, "grpo.kl.coef"),
        ({"grpo": {"entropy_coef": 0.1}}, "grpo.entropy_coef"),
        ({"grpo": {"dual_clip": 3.0}}, "grpo.dual_clip"),
        ({"agents": {"_default": {"temperature": 0.7}}}, "temperature: expected 1"),
        (
            {"agents": {"_default": {"model": "m", "lora": {"rank": 4}, "warm_up": WARM}}},
            "lora.rank: expected none",
        ),
        (
            {"language": {"train_service": {"backend": "ratchet", "config": {"loss_fn": "ppo"}}}},
            "config.loss_fn",
        ),
    ],
)
def test_what_the_service_cannot_is_refused(more, named):
    trainer_class(chosen())
    with pytest.raises(ParameterError, match=named):
        trainer_class(chosen(**more))


def test_models_that_are_brought_outlive_a_restart(tmp_path, model_folder):
    with (
        RunningService(tmp_path, FakeEngine(0.0)).serving() as service,
        contextlib.closing(RatchetClient(service.url)) as one,
    ):
        model = one.upload(model_folder, "mine")
        assert model == one.upload(model_folder, "mine")
        assert len(service.service.models.list().data) == 2
        with pytest.raises(StatusError, match="name: got"):
            one.upload(model_folder, "../mine")
        with pytest.raises(DataError, match=r"config\.json, tokenizer\.json"):
            one.upload(tmp_path, "mine")
        broken = shutil.copytree(model_folder, tmp_path / "broken")
        (broken / "tokenizer.json").write_text("{")
        with pytest.raises(StatusError, match="400"):
            one.upload(broken, "mine")
    with (
        RunningService(tmp_path, FakeEngine(0.0)).serving() as service,
        contextlib.closing(RatchetClient(service.url)) as one,
    ):
        assert service.service.models.get(model).folder.is_dir()
        assert one.upload(model_folder, "mine") == model


def test_a_name_that_is_no_folder_is_the_services(model_folder):
    def inputs(model):
        keys = LanguageArmKeys("main", chosen(agents={"_default": {"model": model}}))
        return keys.initial_state(), keys.stage_parameters("initial_state", 0, "")

    call, parameters = inputs("a/name-at-the-service")
    assert not any(name.startswith("model") for name in call.inputs)
    assert "a/name-at-the-service" in str(parameters)
    call, parameters = inputs(str(model_folder))
    assert "model.agent" in call.inputs or "model._default" in call.inputs
    assert str(model_folder) not in str(parameters)


def test_weights_that_a_callback_keeps_are_the_services(begin, play):
    trainer = begin(**LR)
    learn(trainer, play, steps=1)
    kept, best = trainer.take_weights(), trainer.take_state()["model"]
    learn(trainer, play, steps=1, first=1)
    assert trainer.take_state()["model"] != best
    trainer.put_weights(kept)
    assert trainer.take_state()["model"] == best
    request = SampleRequest(tuple(trainer.tokenizer.encode("ab=")), 3, seed=1)
    assert trainer.sample([request])


def test_the_example_learns_and_is_tested(served, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(EMBEDDED_URL_VARIABLE, served.url)
    short = ["rl.num_iterations=2", "language.tasks_per_step=2", "language.group_size=3"]
    short += ["language_task.num_train=16", "language_task.num_test=4"]
    short += ["agents._default.warm_up.num_steps=2"]
    resolved = resolve_file(str(ROOT / "examples/language/my_remote_task.yaml"), short)
    given, settings = resolved.arms["main"], resolved.settings
    found = trainer_class(given, settings.base_dir)
    instance = build_scenario_instance(
        given, settings, trainer_type=found.trainer_type, base_dir=settings.base_dir
    )
    trainer = found(given, instance, settings)
    trainer.initial_state()
    before = trainer.state
    trainer.play_rollouts(0)
    assert trainer.state == before, "playing changes nothing"
    metrics = trainer.run_iterations(0, 2)
    assert all(abs(one["custom/advantage_mean"]) < 1e-6 for one in metrics)
    assert all(one["actor/lr"] == 2e-3 for one in metrics)
    assert trainer.run_test().metrics["num_datapoints"] == 4
    trainer.close()
