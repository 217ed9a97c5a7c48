"""Remote trainers at a service that speaks ``tinker``, through that service's own client."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import LanguageModelError, MissingKeyError, ParameterError
from ratchet.language_models.endpoints import EMBEDDED_URL_VARIABLE
from ratchet.language_models.engines.rollouts import SampleRequest
from ratchet.language_models.training_service.tinker_client import connect_tinker
from ratchet.scenarios.language_task.parameters import LanguageAgentParameters
from ratchet.service.api.errors import ApiError
from ratchet.service.service import Retention
from ratchet.service.settings import RetentionRules
from tasks.language.keys import LanguageArmKeys
from tests.service.conftest import FakeEngine, RunningService
from trainers.language.base import InitialModel, TrainingPosition
from trainers.language.remote_grpo import RemoteGrpoTrainer
from trainers.registry import TRAINERS, trainer_class

pytest.importorskip("tinker")


@pytest.fixture(scope="module")
def served(tmp_path_factory, model_folder):
    home = tmp_path_factory.mktemp("home")
    with RunningService(home, FakeEngine(0.0), model=model_folder).serving() as service:
        yield service


@pytest.fixture
def begin(served, model_folder):
    """Make a remote trainer of the service's model, by one wire or the other."""
    begun = []

    def begin(backend="tinker", **config):
        tokenizer = {"tokenizer": str(model_folder)} if backend == "tinker" else {}
        url = served.url.removesuffix("/v1")
        service = {"backend": backend, "url": url, "config": tokenizer}
        trainer = RemoteGrpoTrainer(
            {"max_tokens": 6, "train_service": service, "optimizer": {"lr": 1e-2}, **config}
        )
        agent = LanguageAgentParameters(model="ratchet-tiny", lora={"rank": 4})
        trainer.begin(InitialModel(lambda: None, agent, ExperimentSettings(), "data"))
        begun.append(trainer)
        return trainer

    yield begin
    for trainer in begun:
        trainer.close()


def learn(trainer, play, iterations):
    for iteration in iterations:
        trainer.moment = TrainingPosition(seed=5, iteration=iteration, num_iterations=8)
        yield trainer.train(play(seed=iteration))


def answers(trainer):
    prompt = tuple(trainer.tokenizer.encode("abc="))
    return trainer.engine.generate([SampleRequest(prompt, 6, seed) for seed in range(4)])


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_epochs": 2, "minibatch_size": 6, "micro_batch_size": 4},
        {"grpo": {"policy_loss": "cispo", "sampler_correction": "token"}},
    ],
    ids=["plain", "minibatches", "cispo"],
)
def test_it_learns_what_it_would_over_our_own_wire(config, begin, play):
    theirs, ours = begin(**config), begin("ratchet", **config)
    found = [list(learn(trainer, play, range(2))) for trainer in (theirs, ours)]
    for one, other in zip(*found, strict=True):
        untold = {name for name in other if name not in one}
        assert untold <= {"actor/entropy", "actor/clip_fraction_low", "actor/clip_fraction_high"}
        told = {name: other[name] for name in one}
        assert one == pytest.approx(told, rel=1e-4, abs=1e-5)
    assert theirs.take_state()["model"].startswith("tinker://")


def test_it_goes_on_from_its_state_in_another_process(begin, play):
    one, first = begin(), begin()
    whole = list(learn(one, play, range(4)))
    begun = list(learn(first, play, range(2)))
    first.close()
    second = begin()
    second.put_state(first.take_state())
    assert [*begun, *learn(second, play, range(2, 4))] == whole
    assert answers(second) == answers(one)
    assert second.take_state()["model"] != one.take_state()["model"], "the service names them"


def test_the_base_model_answers_first_and_then_what_was_saved(begin, play):
    trainer = begin()
    before = answers(trainer)
    assert before == answers(begin()), "seeds decide"
    list(learn(trainer, play, range(2)))
    assert answers(trainer) != before


def test_a_service_keeps_what_a_run_has_stored(begin, served, play):
    trainer, service = begin(), served.service
    list(learn(trainer, play, range(1)))
    others = connect_tinker(served.url.removesuffix("/v1"), model="ratchet-tiny")
    drawn = others.save_weights(sequence=0, name="drawn").removeprefix("tinker://")
    others.close()
    rules = RetentionRules(checkpoints=0, days=1e-9)
    parts = (service.database, service.files, service.models, service.training)
    Retention(rules, *parts, forget=lambda _: None).sweep()
    state = trainer.take_state()
    trainer.close()
    with pytest.raises(ApiError, match="deleted on"):
        service.training.checkpoints.model_of(drawn)
    later = begin()
    later.put_state(state)
    assert answers(later)
    list(learn(later, play, range(1, 2)))


CHOSEN = {
    "scenario": "language_task",
    "dataset": "reverse",
    "trainer": "remote_grpo",
    "agents": {"_default": {"model": "owner/name", "lora": {"rank": 8}}},
    "language": {"train_service": {"backend": "tinker"}},
}


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("agents._default.warm_up.num_steps", 5, "model: expected the name of one of the serv"),
        ("agents._default.lora.rank", None, "lora.rank: expected a rank"),
        ("agents._default.lora.alpha", 4, "lora.alpha: expected none"),
        ("grpo.variant", "gspo", "grpo.policy_loss: got 'gspo', expected one of clip, cispo"),
        ("evaluation.suites", {"a": {"task": "p/t"}}, "evaluation.suites: expected none"),
    ],
)
def test_what_it_has_not_is_refused(path, value, says):
    chosen = HyperParameters(**CHOSEN)
    assert TRAINERS.find(chosen.trainer).required_packages(chosen) == ("tinker",)
    with pytest.raises(ParameterError, match=says):
        trainer_class(chosen.replace({path: value}))


def test_only_the_agents_of_the_protocol_are_checked():
    named = HyperParameters(**CHOSEN | {"agents": {"agent": CHOSEN["agents"]["_default"]}})
    assert trainer_class(named).__name__ == "RemoteGrpoTrainer"


def test_a_tokenizer_is_named_where_the_service_gives_none():
    ours = HyperParameters(**CHOSEN).replace(
        {"language.train_service": {"backend": "ratchet", "config": {"tokenizer": "folder"}}}
    )
    with pytest.raises(ParameterError, match=r"config.tokenizer: got 'folder' with the backend"):
        trainer_class(ours)


def test_what_a_tokenizer_holds_decides_what_is_played(model_folder, tmp_path, monkeypatch):
    hub = tmp_path / "hub" / "models--me--tokenizer"
    (hub / "refs").mkdir(parents=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub.parent))
    config = {"tokenizer": "me/tokenizer"}
    given = HyperParameters(**CHOSEN).replace(
        {"language.train_service": {"backend": "tinker", "config": config}}
    )

    def key(commit, tokenizer):
        (hub / "refs" / "main").write_text(commit)
        folder = Path(shutil.copytree(model_folder, hub / "snapshots" / commit))
        (folder / "tokenizer.json").write_text(tokenizer)
        return LanguageArmKeys("main", given).rollouts(0).key

    one, same, other = key("a" * 40, "{}"), key("b" * 40, "{}"), key("c" * 40, "{ }")
    assert one == same != other


def test_without_a_url_it_is_the_clients_own_service_and_needs_its_key(begin, monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    trainer = begin()
    trainer._client._url = None
    with pytest.raises(MissingKeyError, match="TINKER_API_KEY is not set"):
        trainer._client.sample("", "model", [])


def test_what_the_service_refuses_is_an_error_of_ours(begin):
    trainer = begin()
    with pytest.raises(LanguageModelError, match=r"tinker: .*the model's context has 32"):
        trainer.engine.generate([SampleRequest((1,) * 40, 6, 0)])
    with pytest.raises(LanguageModelError, match=r"tinker: .*'none'"):
        trainer._client.sample("", "none", [])


def test_embedded_is_the_service_that_the_run_starts(begin, served, monkeypatch):
    monkeypatch.setenv(EMBEDDED_URL_VARIABLE, served.url)
    trainer = begin()
    trainer._client._url = "embedded"
    assert len(answers(trainer)) == 4
