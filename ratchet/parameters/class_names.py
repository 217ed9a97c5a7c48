"""The classes that the system our parameters come from names beside its values, as ``_type``."""

from __future__ import annotations

from collections.abc import Iterable

ENDINGS = ("Parameters", "Params")
"""How the names of sections' classes end; one that ends otherwise is no section's."""
RANDOM_AGENT = "RandomAgent"
AGENTS = {
    "graph_isomorphism": ("GraphIsomorphismAgent",),
    "image_classification": ("ImageClassificationAgent",),
    "code_validation": ("CodeValidationAgent", "PureTextAgent"),
}
"""Of each of its scenarios, beside random agents; without their endings."""
CLASSES = {
    "": ("Hyper", ""),
    "agents": ("Agents",),
    "rl": ("RlTrainer",),
    "ppo": ("CommonPpo",),
    "spg": ("Spg",),
    "reinforce": ("Reinforce",),
    "solo_agent": ("SoloAgent",),
    "text_rl": ("TextRl",),
    "pure_text_ei": ("PureTextEi",),
    "pure_text_malt": ("PureTextMalt",),
    "image_classification": ("ImageClassification",),
    "code_validation": ("CodeValidation",),
    "dataset_options": ("Dataset",),
    "protocol_common": ("CommonProtocol",),
    "nip_protocol": ("NipProtocol", "PvgProtocol"),
    "debate_protocol": ("DebateProtocol",),
    "mnip_protocol": ("MnipProtocol",),
    "zk_protocol": ("ZkProtocol",),
    "message_regression": ("MessageRegression",),
    "base_run": ("BaseRun",),
}
"""Without their endings; the first is what it writes, others are of its earlier versions."""
FACTORS = "LrFactors"
SCHEDULES = {
    "ConstantUpdateSchedule": (),
    "ContiguousPeriodicUpdateSchedule": ("period", "start", "stop"),
    "AlternatingPeriodicUpdateSchedule": ("period", "first_agent_num_rounds", "first_agent"),
}
"""Each with its arguments, which stand below its name."""


def may_be_class_of(name: object, place: str, scenario: object) -> bool:
    """Return whether a ``_type`` is the name of a section's class, and not that of another place.

    ``place`` is a dotted path, ``*`` for an agent's name. Of sections and of scenarios that it
    doesn't have nobody knows the classes.
    """
    if not isinstance(name, str):
        return False
    if name == FACTORS or place.endswith("_lr_factor"):
        return name == FACTORS and place.endswith("_lr_factor")
    if not name.endswith(ENDINGS) or place == "agents.*.update_schedule":
        return False
    if place == "agents.*":
        known = AGENTS.get(str(scenario), ()) if scenario else sum(AGENTS.values(), ())
        return not known or stem(name) in (RANDOM_AGENT, *known)
    return place not in CLASSES or stem(name) in CLASSES[place]


def stem(name: str) -> str:
    """Return the name of a section's class without its ending."""
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return name


def advice_about_class(place: str) -> str:
    """Return what to do about a ``_type`` that isn't one of its place's classes."""
    if place == "agents.*.update_schedule":
        forms = [f"{{_type: {name}, {name}: {{{', '.join(a)}}}}}" for name, a in SCHEDULES.items()]
        return f" nip writes one of {'; '.join(forms)}: correct it, or give a kind of ours."
    if place.endswith("_lr_factor"):
        return _expected([FACTORS])
    known = [RANDOM_AGENT, *sum(AGENTS.values(), ())] if place == "agents.*" else CLASSES.get(place)
    return _expected([f"{name}{ENDINGS[0]}" for name in known]) if known else " Leave it out."


def _expected(names: Iterable[str]) -> str:
    return f" Expected the class that nip writes here, {' or '.join(names)}: or leave it out."
