"""A custom scenario: by file with a section, by name, and installed; resumed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError, UnknownNameError
from ratchet.experiment_files.loading import load_experiment
from ratchet.parameters.base import AGENT_MODELS, SCENARIO_NAMES, SECTIONS
from ratchet.plugins import load_module
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.registry import SCENARIOS
from tasks.tensordict.keys import ArmKeys
from trainers.registry import build_trainer
from trainers.tensordict.states.state import State

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPERIMENT = """
scenario: plugins/custom_scenario.py:Cards
trainer: vanilla_ppo
dataset: generated
interaction_protocol: adp
cards: {num_deals: 60}
agents: {_default: {d_body: 4}, prover: {d_body: 8}}
rl: {frames_per_batch: 32, minibatch_size: 8, num_iterations: 3, num_test_iterations: 2}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An experiment file, with the scenario's file in a folder next to it."""
    (tmp_path / "plugins").mkdir()
    shutil.copy(EXAMPLES / "custom_scenario.py", tmp_path / "plugins")
    (tmp_path / "cards.yaml").write_text(EXPERIMENT)
    return tmp_path / "cards.yaml"


def trainer_of(file: Path, *overrides: str):
    read = load_experiment(file, overrides)
    hyper_params, base_dir = read.hyper_params, Path(read.settings.base_dir)
    instance = build_scenario_instance(hyper_params, ExperimentSettings(), base_dir=base_dir)
    return build_trainer(hyper_params, instance, ExperimentSettings(), base_dir)


@pytest.mark.slow
def test_the_verifier_learns_from_the_prover():
    before, after = load_module(EXAMPLES / "custom_scenario.py").train(num_iterations=15)
    assert before < 0.7
    assert after > 0.85


def test_the_file_brings_its_section_and_its_agents_parameters(file):
    read = load_experiment(file, ["cards.num_deals=80"])
    assert read.hyper_params.cards.num_deals == 80
    agents = read.hyper_params.agents
    assert (agents["prover"].d_body, agents["verifier"].d_body) == (8, 4)
    with pytest.raises(ParameterError, match=r"cards\.num_deal: unknown.*Did you mean 'num_deals'"):
        load_experiment(file, ["cards.num_deal=80"])
    with pytest.raises(ParameterError, match=r"agents.prover.d_bdy.*Did you mean 'd_body'"):
        load_experiment(file, ["agents.prover.d_bdy=80"])
    with pytest.raises(UnknownNameError, match=r"no class 'Card'. Did you mean 'Cards'"):
        load_experiment(file, ["scenario=plugins/custom_scenario.py:Card"])
    with pytest.raises(ParameterError, match=r"expected a subclass of .*Scenario"):
        load_experiment(file, ["scenario=plugins/custom_scenario.py:CardsBody"])


def test_an_arm_may_be_of_another_file(file):
    with file.open("a") as content:
        content.write("arms: {deal_anew: {scenario: 'copy/custom_scenario.py:Cards'}}\n")
    shutil.copytree(file.parent / "plugins", file.parent / "copy")
    assert load_experiment(file).arms["deal_anew"].scenario == "copy/custom_scenario.py:Cards"


def test_training_in_pieces_ends_in_the_same_bits(file, tmp_path):
    whole = trainer_of(file)
    whole.train()
    state = trainer_of(file).initial_state()
    for iteration in range(3):
        state.save(tmp_path / str(iteration))
        staged = trainer_of(file)
        staged.state = State.load(tmp_path / str(iteration))
        staged.run_iterations(iteration, iteration + 1)
        state = staged.state
    assert state == whole.state
    assert staged.run_test() == whole.test_results["test"]


@pytest.mark.slow
def test_a_process_that_is_given_plain_data_finds_the_file_from_the_folder(file):
    data = load_experiment(file).hyper_params.to_dict()
    code = (
        "from ratchet import HyperParameters\n"
        f"read = HyperParameters.from_dict({data!r}, {str(file.parent)!r})\n"
        "assert read.cards.num_deals == 60 and read.agents['prover'].d_body == 8\n"
        "assert read.replace({'seed': 3}).agents['prover'].d_body == 8\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_its_code_is_part_of_every_key_and_its_path_is_not(file):
    def keys(scenario="plugins/custom_scenario.py:Cards", **changes):
        hyper_params = HyperParameters.from_dict(
            {**load_experiment(file).hyper_params.to_dict(), "scenario": scenario, **changes},
            file.parent,
        )
        return ArmKeys("main", hyper_params, base_dir=str(file.parent))

    before = keys()
    shutil.copytree(file.parent / "plugins", file.parent / "moved")
    moved = keys("moved/custom_scenario.py:Cards")
    assert moved.build_scenario().key == before.build_scenario().key
    assert moved.train(0, 1).key == before.train(0, 1).key
    more = keys(cards={"num_deals": 70})
    assert more.build_scenario().key != before.build_scenario().key
    source = file.parent / "moved" / "custom_scenario.py"
    source.write_text(source.read_text().replace("torch.cat([cards", "torch.cat([2 * cards"))
    edited = keys("moved/custom_scenario.py:Cards")
    assert edited.train(0, 1).key != before.train(0, 1).key


def test_its_data_depend_on_its_own_section_only(file):
    parameters = ArmKeys(
        "main", load_experiment(file).hyper_params, base_dir=str(file.parent)
    ).build_scenario()
    assert "cards" in parameters.parameters
    assert "graph_isomorphism" not in parameters.parameters


def test_an_installed_scenario_is_known_by_its_name(install, monkeypatch):
    source = (EXAMPLES / "custom_scenario.py").read_text()
    source = source.replace('@register_scenario("cards")', "").replace('"cards"', '"deck"')
    source = source.replace("hyper_params.cards.", "hyper_params.deck.")
    install("deck_of_cards", "scenarios", "deck", "Cards", source)
    monkeypatch.setattr(SCENARIOS, "_classes", dict(SCENARIOS._classes))
    for known in (AGENT_MODELS, SCENARIO_NAMES, SECTIONS):
        monkeypatch.setitem(known, "deck", None)
        del known["deck"]
    hyper_params = HyperParameters(
        scenario="deck",
        trainer="vanilla_ppo",
        dataset="generated",
        agents={"prover": {"d_body": 8}},
    )
    assert type(hyper_params.agents["prover"]).__module__ == "deck_of_cards"
    instance = build_scenario_instance(hyper_params, ExperimentSettings())
    assert len(instance.train_dataset) == 1600
