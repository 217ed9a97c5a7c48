"""Parameters of earlier systems that have none here: what asks for nothing, and what to do else."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.parameters.class_names import advice_about_class


@dataclass(frozen=True)
class WithoutCounterpart:
    """The values of a parameter that ask for nothing, and what to do about any other."""

    neutral: tuple[object, ...]
    advice: str


_ONLY_TEST = "Tests are played on the test set: leave it out, or put those data there."

WITHOUT_COUNTERPART = {
    "test_dataset_split": WithoutCounterpart(("test",), _ONLY_TEST),
    "protocol_common.prover_invalid_response_penalty": WithoutCounterpart(
        (None,),
        "Write protocol_common.invalid_response_penalty, which is added to every agent's reward.",
    ),
    "protocol_common.verifier_neither_accept_nor_reject_reward": WithoutCounterpart(
        (None,),
        "An undecided verifier makes no decision, which is paid by"
        " protocol_common.verifier_no_guess_reward, in the last turn by"
        " protocol_common.verifier_terminated_penalty.",
    ),
    "dataset_options.max_test_size": WithoutCounterpart(
        (None,), "Leave it out, and choose the size of the test set by test_size."
    ),
    "code_validation.system_prompt_version": WithoutCounterpart(
        ("v2",), "The templates of prompts are chosen by code_validation.prompt_templates."
    ),
    "agents.*.normalize_message_history": WithoutCounterpart(
        (False,), "What agents observe is normalised by rl.normalize_observations: leave it out."
    ),
    "agents.*.model_provider": WithoutCounterpart(
        (), "Give the service's URL as base_url, and name the variable of its key in api_key_name."
    ),
}
"""By dotted path, ``*`` for an agent's name."""


def advice_about(path: str) -> str:
    """Return what to do about a parameter that has no counterpart; nothing about any other."""
    first, *rest = path.split(".")
    if first == "agents" and rest:
        path = ".".join((first, "*", *rest[1:]))
    place, _, name = path.rpartition(".")
    if name == "_type":
        return advice_about_class(place)
    found = WITHOUT_COUNTERPART.get(path)
    return "" if found is None else f" {found.advice}"
