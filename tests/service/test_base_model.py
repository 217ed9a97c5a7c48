"""Base model: its corpus matches the templates, it is created once and plays as expected."""

import json
import threading

import numpy as np
import pytest

from ratchet.language_models.engines.interface import GenerationRequest
from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.language_models.types import ChatMessage
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios.code_validation.scenario import TEMPLATES
from ratchet.scenarios.code_validation.tiny_model import build, corpus, players, pretraining
from ratchet.scenarios.pure_text.parsing import parse_completion


def systems_of(protocol, agent):
    """Return an agent's rendered template for each stance."""
    game = players.draw_exercise(np.random.default_rng(0))
    text = (TEMPLATES / "compact" / protocol / f"{agent}.txt").read_text().strip()
    text = text.replace("$question", game.question).replace("$solution", game.solution)
    return game, [text.replace("$agent_stance_string", s) for s in ("reject", "accept")]


@pytest.mark.parametrize(
    ("protocol", "agent", "role"),
    [
        ("adp", "prover", "Expert"),
        ("nip", "prover", "Expert who answers"),
        ("debate", "prover0", "Expert"),
        ("mnip", "prover1", "Expert"),
        ("merlin_arthur", "prover0", "Expert"),
    ],
)
def test_experts_of_the_corpus_read_the_templates_prompts(protocol, agent, role):
    game, texts = systems_of(protocol, agent)
    ours = [corpus.expert_system(game, stance, role).content for stance in ("reject", "accept")]
    assert ours == texts


@pytest.mark.parametrize(
    ("protocol", "role"),
    [
        ("adp", "Verifier"),
        ("solo_verifier", "Verifier"),
        ("merlin_arthur", "Verifier"),
        ("nip", "Verifier who asks"),
        ("debate", "Verifier who asks two"),
        ("mnip", "Verifier who asks two"),
    ],
)
def test_verifiers_of_the_corpus_read_the_templates_prompts(protocol, role):
    game, (text, _) = systems_of(protocol, "verifier")
    assert corpus.verifier_system(game, role).content == text


def test_perfect_players_mark_and_decide_correctly():
    rng = np.random.default_rng(0)
    perfect = players.Skill(mark_errors=(0.0,), follows=1.0)
    for game in (players.draw_exercise(rng) for _ in range(50)):
        argument = players.argue(rng, game, perfect)
        assert (players.DIFFER not in argument) == (game.steps == game.lines)
        word = "accept" if game.steps == game.lines else "reject"
        assert players.decide(rng, [argument], perfect) == f"Decision: {word}"


def test_concurrent_starts_create_the_model_once(tmp_path, monkeypatch):
    made = []

    def make(folder, *_):
        made.append(folder)
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(build, "build_base_model", make)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = []
    starters = [
        threading.Thread(target=lambda: found.append(build.ensure_base_model(tmp_path)))
        for _ in range(4)
    ]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    assert len(made) == 1
    assert len(set(found)) == 1
    assert sorted(p.name for p in found[0].iterdir()) == ["config.json"]
    assert [p.name for p in found[0].parent.iterdir() if "making" in p.name] == []


@pytest.mark.slow
def test_a_machine_builds_the_model_once_for_all_homes(tmp_path, monkeypatch):
    made = []

    def make(folder, *_):
        made.append(folder)
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(build, "build_base_model", make)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, second = (build.ensure_base_model(tmp_path / name) for name in ("one", "two"))
    assert len(made) == 1
    assert first.name == second.name
    assert (second / "config.json").read_text() == "{}"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert (build.ensure_base_model(tmp_path / "three") / "config.json").is_file()
    assert len(made) == 2, "without a cache, it is built"


def test_the_small_model_has_half_the_width(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pretraining, "STEPS", {"good": 1, "mixed": 1})
    monkeypatch.setattr(pretraining, "GAMES", {"good": 20, "mixed": 20})
    folders = build.ensure_base_model(tmp_path), build.ensure_small_model(tmp_path)
    assert [folder.name.rpartition("-")[0] for folder in folders] == [build.NAME, build.SMALL_NAME]
    widths = [json.loads((folder / "config.json").read_text())["hidden_size"] for folder in folders]
    assert widths == [64, 32]
    assert build.ensure_small_model(tmp_path) == folders[1]


def test_different_shapes_have_different_folders():
    assert build.recipe_digest() != build.recipe_digest(build.small_shape)


def test_pretraining_is_repeatable_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(pretraining, "STEPS", {"good": 3, "mixed": 2})
    monkeypatch.setattr(pretraining, "GAMES", {"good": 60, "mixed": 60})
    for name in ("a", "b"):
        build.build_base_model(tmp_path / name)
    first, second = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("a", "b"))
    assert first == second


def test_an_interrupted_build_continues_from_its_checkpoint_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pretraining, "STEPS", {"good": 5, "mixed": 4})
    monkeypatch.setattr(pretraining, "GAMES", {"good": 60, "mixed": 60})
    monkeypatch.setattr(pretraining, "STEPS_PER_CHECKPOINT", 2)
    build.build_base_model(tmp_path / "undisturbed")
    seen = []

    def progress(done, steps):
        seen.append(done)
        assert steps == 9
        if len(seen) in (3, 7):
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            build.ensure_base_model(tmp_path, progress)
    folder = build.ensure_base_model(tmp_path, progress)
    assert seen == [1, 2, 3, 3, 4, 5, 6, 5, 6, 7, 8, 9]
    weights = (tmp_path / "undisturbed" / "model.safetensors").read_bytes()
    assert (folder / "model.safetensors").read_bytes() == weights
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, ".lock"}


@pytest.fixture(scope="module")
def base_engine(tmp_path_factory):
    engine = TorchEngine()
    engine.load("m", build.ensure_base_model(tmp_path_factory.mktemp("home")))
    return engine


def ask(engine, prompts):
    requests = [
        GenerationRequest("m", tuple(prompt), seed, max_tokens=80)
        for seed, prompt in enumerate(prompts)
    ]
    return [
        result
        for start in range(0, len(requests), engine.max_batch_size)
        for result in engine.generate(requests[start : start + engine.max_batch_size])
    ]


@pytest.mark.slow
def test_the_base_model_follows_the_format_and_decides_slightly_better_than_chance(base_engine):
    rng = np.random.default_rng(7)
    games = [players.draw_exercise(rng) for _ in range(1000)]
    argued = ask(base_engine, [[corpus.expert_system(game, "accept")] for game in games])
    parsed = [parse_completion(r.text, {"main": "Argument:"}, may_decide=False) for r in argued]
    assert np.mean([p.valid for p in parsed]) >= 0.98
    kept = [(g, p.messages["main"]) for g, p in zip(games, parsed, strict=True) if p.valid]
    decided = ask(
        base_engine,
        [[corpus.verifier_system(g), ChatMessage("user", m, "Expert")] for g, m in kept],
    )
    decisions = [parse_completion(r.text, {}, may_decide=True) for r in decided]
    assert np.mean([d.valid for d in decisions]) >= 0.98
    right = [
        d.decision == int(game.steps == game.lines)
        for (game, _), d in zip(kept, decisions, strict=True)
    ]
    assert 0.51 <= np.mean(right) <= 0.61


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "agent", "role", "heard"),
    [
        ("nip", "verifier", "Verifier who asks", None),
        ("nip", "prover", "Expert who answers", "Compare."),
        ("debate", "verifier", "Verifier who asks two", None),
        ("debate", "prover0", "Expert", "Compare."),
        ("solo_verifier", "verifier", "Verifier", None),
    ],
)
def test_the_base_model_follows_the_format_of_other_protocols(
    base_engine, protocol, agent, role, heard
):
    experiment = HyperParameters(
        scenario="code_validation",
        trainer="pure_text_ei",
        dataset="generated",
        interaction_protocol=protocol,
    )
    handler = build_protocol_handler(experiment)
    spec = handler.text_agent_spec(agent)
    rng = np.random.default_rng(8)
    prompts = []
    for game in (players.draw_exercise(rng) for _ in range(200)):
        is_expert = agent != "verifier"
        system = (
            corpus.expert_system(game, "accept", role)
            if is_expert
            else corpus.verifier_system(game, role)
        )
        prompts.append([system] + ([ChatMessage("user", heard, "Verifier")] if heard else []))
    replies = ask(base_engine, prompts)
    valid = [parse_completion(r.text, spec.headers, agent == "verifier").valid for r in replies]
    assert np.mean(valid) >= 0.9
