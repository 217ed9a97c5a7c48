"""Registry of protocols: known names, refused ones with their errors, and imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

import ratchet.protocols as protocols
from ratchet.errors import ParameterError, UnknownNameError
from ratchet.parameters import AgentParameters, HyperParameters
from ratchet.parameters.base import AGENT_MODELS
from ratchet.protocols import registry
from ratchet.protocols.checks import USUAL_AGENT_NAMES
from ratchet.protocols.registry import (
    PROTOCOLS,
    check_protocol_parameters,
    protocol_handler_class,
    register_protocol_handler,
)

BUILT_IN = {
    "adp",
    "debate",
    "merlin_arthur",
    "mnip",
    "multi_channel_test",
    "nip",
    "solo_verifier",
}
CUSTOM = """
from ratchet.protocols import DeterministicSingleVerifierProtocolHandler, ProtocolHandler

class Custom(DeterministicSingleVerifierProtocolHandler):
    agent_names = ("verifier", "oracle")
    max_message_rounds = 2

    def is_agent_active(self, agent_name, round, channel_name):
        return True

class Nothing:
    pass
"""


class TextAgentParameters(AgentParameters):
    is_text: ClassVar[bool] = True


@pytest.fixture(autouse=True)
def _a_text_scenario(monkeypatch) -> None:
    monkeypatch.setitem(AGENT_MODELS, "a_text_scenario", TextAgentParameters)


def test_every_built_in_name_builds(make_handler) -> None:
    assert set(PROTOCOLS.names()) >= BUILT_IN
    for name in BUILT_IN:
        handler = make_handler(name)
        assert type(handler).__module__ == f"ratchet.protocols.{name}"
        assert handler.source_classes == (type(handler),)


def test_public_names_are_those_of_their_homes() -> None:
    for name in protocols.__all__:
        assert getattr(protocols, name).__name__ == name
    with pytest.raises(AttributeError, match=r"no attribute 'nope'"):
        _ = protocols.nope


def test_an_unknown_name_gets_the_nearest(make_handler, make_parameters) -> None:
    with pytest.raises(UnknownNameError, match=r"'debat'. Did you mean 'debate'"):
        make_handler("debat")
    with pytest.raises(UnknownNameError, match=r"'debat'. Did you mean 'debate'"):
        check_protocol_parameters(make_parameters("debat"))


def test_modules_that_are_no_protocols_are_no_names(make_handler) -> None:
    with pytest.raises(UnknownNameError):
        make_handler("zero_knowledge")


def test_a_protocol_is_loaded_from_a_file(tmp_path: Path, make_parameters) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "custom.py").write_text(CUSTOM)
    hyper_params = make_parameters("mine/custom.py:Custom")
    handler = protocols.build_protocol_handler(hyper_params, base_dir=tmp_path)
    assert list(handler.agent_names) == ["verifier", "oracle"]
    check_protocol_parameters(hyper_params, base_dir=tmp_path)
    with pytest.raises(ParameterError, match=r"expected a subclass of .*ProtocolHandler"):
        protocol_handler_class("mine/custom.py:Nothing", base_dir=tmp_path)


def test_a_taken_name_is_refused(make_handler, monkeypatch) -> None:
    monkeypatch.setattr(registry.PROTOCOLS, "_classes", dict(registry.PROTOCOLS._classes))

    class Pretender(type(make_handler("nip"))):
        pass

    with pytest.raises(ParameterError, match=r"'debate' is taken by ratchet.protocols.debate"):
        register_protocol_handler("debate")(Pretender)
    register_protocol_handler("registry_test_game")(Pretender)
    register_protocol_handler("registry_test_game")(Pretender)
    assert protocol_handler_class("registry_test_game") is Pretender

    class Other(type(make_handler("nip"))):
        pass

    with pytest.raises(ParameterError, match=r"is taken by .*Pretender; got .*Other"):
        register_protocol_handler("registry_test_game")(Other)


@pytest.mark.parametrize(
    ("scenario", "protocol", "fits"),
    [
        ("a_text_scenario", "nip", True),
        ("a_text_scenario", "adp", True),
        ("a_text_scenario", "debate", False),
        ("a_text_scenario", "solo_verifier", False),
        ("graph_isomorphism", "nip", False),
    ],
)
def test_stances_are_random_for_one_prover_in_text_only(
    scenario, protocol, fits, make_parameters
) -> None:
    hyper_params = make_parameters(protocol).replace(
        {
            "scenario": scenario,
            "agents": {},
            "protocol_common.randomize_prover_stance": True,
        }
    )
    if fits:
        check_protocol_parameters(hyper_params)
        return
    with pytest.raises(ParameterError) as error:
        check_protocol_parameters(hyper_params)
    for part in ("protocol_common.randomize_prover_stance", repr(scenario), repr(protocol)):
        assert part in str(error.value)


def test_zero_knowledge_wants_the_one_verifier_and_tensors(tmp_path, make_parameters) -> None:
    (tmp_path / "judged.py").write_text(CUSTOM.replace('"verifier"', '"chief_verifier"'))
    hyper_params = make_parameters("judged.py:Custom", protocol_common__zero_knowledge=True)
    with pytest.raises(ParameterError, match=r"zero_knowledge.*\['chief_verifier'\]"):
        check_protocol_parameters(hyper_params, base_dir=tmp_path)
    text = make_parameters(
        "nip", protocol_common__zero_knowledge=True, scenario="a_text_scenario", agents={}
    )
    with pytest.raises(ParameterError, match=r"text scenario"):
        check_protocol_parameters(text)


def test_zero_knowledge_names_both_sources(make_handler) -> None:
    handler = make_handler("nip", protocol_common__zero_knowledge=True)
    assert [c.__name__ for c in handler.source_classes] == [
        "ZeroKnowledgeProtocolHandler",
        "NipProtocolHandler",
    ]


@pytest.mark.slow
def test_names_are_checked_without_torch_and_one_protocol_imports_no_other() -> None:
    code = """
import sys
from ratchet import HyperParameters
from ratchet.protocols.registry import build_protocol_handler, check_protocol_parameters
hyper_params = HyperParameters(scenario="graph_isomorphism", trainer="vanilla_ppo", dataset="g")
check_protocol_parameters(hyper_params)
assert "torch" not in sys.modules
build_protocol_handler(hyper_params)
loaded = {name for name in sys.modules if name.startswith("ratchet.protocols.")}
others = {"debate", "adp", "mnip", "zero_knowledge", "two_provers"}
assert not loaded & {f"ratchet.protocols.{name}" for name in others}, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_parameters_of_an_agent_that_nobody_knows_are_refused():
    given = {"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "generated"}
    slip = HyperParameters(**given, agents={"provr": {"d_gnn": 8}})
    with pytest.raises(ParameterError, match=r"agents\.provr.*Did you mean 'prover'"):
        registry.build_protocol_handler(slip)
    another = HyperParameters(
        **given, interaction_protocol="solo_verifier", agents={"prover": {"d_gnn": 8}}
    )
    assert registry.build_protocol_handler(another).agent_names == ("verifier",)


def test_all_wrong_names_are_told_at_once():
    given = {"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "generated"}
    slips = HyperParameters(**given, agents={"provr": {"d_gnn": 8}, "verifer": {"d_gnn": 8}})
    with pytest.raises(ParameterError, match=r"agents\.provr.*\nagents\.verifer"):
        registry.build_protocol_handler(slips)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_agents_of_protocols_that_are_here_are_named_as_usual(name):
    given = {"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "generated"}
    handler = registry.build_protocol_handler(HyperParameters(**given, interaction_protocol=name))
    assert registry.has_usual_agents(name)
    assert set(handler.agent_names) <= set(USUAL_AGENT_NAMES)
    assert not registry.has_usual_agents("environment"), "an environment's are its own"
