"""Unsupported parameters and type tags of nip's files: neutral values, and advice on others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class UnsupportedParameter:
    """The neutral values of an unsupported parameter, and advice on any other value."""

    neutral: tuple[object, ...]
    advice: str


UNSUPPORTED_PARAMETERS = {
    "test_dataset_split": UnsupportedParameter(
        ("test",),
        "To test on held-out training data, set validation.size and validation.replaces_test.",
    ),
    "protocol_common.prover_invalid_response_penalty": UnsupportedParameter(
        (None,),
        "Write protocol_common.invalid_response_penalty, which is added to every agent's reward.",
    ),
    "protocol_common.verifier_neither_accept_nor_reject_reward": UnsupportedParameter(
        (None,),
        "An undecided verifier makes no decision, which is rewarded by"
        " protocol_common.verifier_no_guess_reward, in the last turn by"
        " protocol_common.verifier_terminated_penalty.",
    ),
    "dataset_options.max_test_size": UnsupportedParameter(
        (None,), "Leave it out, and choose the size of the test set by test_size."
    ),
    "code_validation.system_prompt_version": UnsupportedParameter(
        ("v2",), "The templates of prompts are chosen by code_validation.prompt_templates."
    ),
    "agents.*.normalize_message_history": UnsupportedParameter(
        (False,), "rl.normalize_observations normalises agents' observations: leave it out."
    ),
    "agents.*.model_provider": UnsupportedParameter(
        (), "Give the service's URL as base_url, and name the variable of its key in api_key_name."
    ),
}
"""By dotted path, ``*`` for an agent's name."""


def advice_about(path: str) -> str:
    """Return the advice on an unsupported parameter; empty for any other."""
    first, *rest = path.split(".")
    if first == "agents" and rest:
        path = ".".join((first, "*", *rest[1:]))
    section, _, name = path.rpartition(".")
    if name == "_type":
        return advice_about_class(section)
    parameter = UNSUPPORTED_PARAMETERS.get(path)
    return "" if parameter is None else f" {parameter.advice}"


ENDINGS = ("Parameters", "Params")
"""Endings of the names of sections' classes."""
RANDOM_AGENT = "RandomAgent"
AGENTS = {
    "graph_isomorphism": ("GraphIsomorphismAgent",),
    "image_classification": ("ImageClassificationAgent",),
    "code_validation": ("CodeValidationAgent", "PureTextAgent"),
}
"""Scenario → agents' classes except random agents; without their endings."""
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
"""Section → classes without their endings: the current one first, then those of older versions."""
FACTORS = "LrFactors"
SCHEDULES = {
    "ConstantUpdateSchedule": (),
    "ContiguousPeriodicUpdateSchedule": ("period", "start", "stop"),
    "AlternatingPeriodicUpdateSchedule": ("period", "first_agent_num_rounds", "first_agent"),
}
"""Class of a schedule → the arguments below its name."""


def may_be_class_of(name: object, path: str, scenario: object) -> bool:
    """Return whether a ``_type`` may be the name of this section's class.

    ``path`` is a dotted path, ``*`` for an agent's name. Any class may be that of a section or
    scenario that nip doesn't have.
    """
    if not isinstance(name, str):
        return False
    if name == FACTORS or path.endswith("_lr_factor"):
        return name == FACTORS and path.endswith("_lr_factor")
    if not name.endswith(ENDINGS) or path == "agents.*.update_schedule":
        return False
    if path == "agents.*":
        known = AGENTS.get(str(scenario), ()) if scenario else sum(AGENTS.values(), ())
        return not known or stem(name) in (RANDOM_AGENT, *known)
    return path not in CLASSES or stem(name) in CLASSES[path]


def stem(name: str) -> str:
    """Return the name of a section's class without its ending."""
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return name


def advice_about_class(path: str) -> str:
    """Return the advice on a ``_type`` that isn't one of its section's classes."""
    if path == "agents.*.update_schedule":
        forms = [f"{{_type: {name}, {name}: {{{', '.join(a)}}}}}" for name, a in SCHEDULES.items()]
        return f" nip writes one of {'; '.join(forms)}: correct it, or give a `kind`."
    if path.endswith("_lr_factor"):
        return _expected([FACTORS])
    known = [RANDOM_AGENT, *sum(AGENTS.values(), ())] if path == "agents.*" else CLASSES.get(path)
    return _expected([f"{name}{ENDINGS[0]}" for name in known]) if known else " Leave it out."


def _expected(names: Iterable[str]) -> str:
    return f" Expected the class that nip writes here, {' or '.join(names)}: or leave it out."
