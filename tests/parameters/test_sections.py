"""Sections included in an experiment's keys."""

from __future__ import annotations

from ratchet.parameters import SECTIONS, HyperParameters

WHO = {"trainer": "vanilla_ppo", "protocol": "nip", "scenario": "graph_isomorphism"}


def setup_module() -> None:
    HyperParameters(scenario="graph_isomorphism", trainer="vanilla_ppo", dataset="er1000")


def test_a_section_concerns_those_it_names() -> None:
    assert SECTIONS["nip_protocol"].concerns(**WHO)
    assert not SECTIONS["debate_protocol"].concerns(**WHO)
    assert SECTIONS["ppo"].concerns(**WHO)


def test_a_stranger_may_read_everything() -> None:
    """Omitting parameters that a custom trainer reads would cause false cache hits."""
    assert SECTIONS["ppo"].concerns(**{**WHO, "trainer": "MyTrainer"})
    assert SECTIONS["debate_protocol"].concerns(**{**WHO, "protocol": "my_protocol"})
