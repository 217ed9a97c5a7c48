"""From version 0, the names of the system that Ratchet's parameters come from, to version 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ratchet.errors import ParameterError
from ratchet.parameters.base import SECTIONS
from ratchet.parameters.converters import register_converter

_Data = dict[str, Any]
_Rewrite = Callable[[Any], _Data]

_RENAMED_VALUES = {
    "interaction_protocol": {"pvg": "nip", "abstract_decision_problem": "adp"},
}
_RENAMED = {
    "pvg_protocol": "nip_protocol",
    "spg.sos_a_param": "spg.sos_scaling_factor",
    "spg.sos_b_param": "spg.sos_threshold_factor",
    "agents.*.dpo_beta": "agents.*.fine_tuning.beta",
}
_NOT_NEEDED = (
    "_package_name",
    "_package_version",
    "functionalize_modules",
    "vanilla_ppo",
    "base_run.wandb_entity",
    "base_run.wandb_project",
    "base_run.rerun_tests_force_test_during_training_state",
    "agents.*.checkpoint_entity",
    "agents.*.checkpoint_project",
    "agents.*.normalize_message_history",
    "agents.*.supervisor_name",
)
"""Removed whatever their value: nothing here depends on the like."""
_ONLY_NEUTRAL: dict[str, tuple[object, ...]] = {
    "test_dataset_split": ("test",),
    "protocol_common.prover_invalid_response_penalty": (None,),
    "protocol_common.verifier_decision_spectrum": ("accept_reject",),
    "protocol_common.verifier_neither_accept_nor_reject_reward": (None,),
    "agents.*.repetition_penalty": (None,),
    "agents.*.system_prompt_template_path": (None,),
    "agents.*.use_supervisor_message": ("none",),
}
"""Removed if they ask for nothing; any other value stays, and is refused as unknown."""
_UNSET = (
    "rl.body_lr_factor",
    "agents.*.agent_lr_factor",
    "agents.*.body_lr_factor",
    "agents.*.gnn_lr_factor",
    "agents.*.dpo_beta",
)
"""Removed where they are null, which now is written by leaving them out."""


@register_converter(from_version=0)
def convert_version_0(data: _Data) -> list[str]:
    """Rename, remove and rewrite what version 1 doesn't know."""
    changes = _rename_values(data)
    for path in _UNSET:
        changes += _remove(data, path, (None,), "null is written by leaving it out")
    for old, new in _RENAMED.items():
        changes += _rename(data, old, new)
    changes += _drop_empty_sections(data)
    for path in _NOT_NEEDED:
        changes += _remove(data, path, None, "nothing reads it any more")
    for path, neutral in _ONLY_NEUTRAL.items():
        changes += _remove(data, path, neutral, "it is not there any more, and asked for nothing")
    rewrites: dict[str, _Rewrite] = {
        "agents.*.update_schedule": _schedule,
        "agents.*.ortho_init": _orthogonal,
        "agents.*.agent_lr_factor": _both("agent_lr_factor"),
        "agents.*.body_lr_factor": _both("body_lr_factor"),
        "agents.*.gnn_lr_factor": _both("gnn_lr_factor"),
        "rl.body_lr_factor": _both("body_lr_factor"),
        "text_rl.test_every_iteration": _test_scheme,
    }
    for path, rewrite in rewrites.items():
        changes += _rewrite(data, path, rewrite)
    for agent in _sections(data, "agents.*"):
        changes += _service(agent)
    return changes


def _drop_empty_sections(data: _Data) -> list[str]:
    """Leave out sections that are null: they have their defaults."""
    optional = [name for name in (*SECTIONS, "agents") if data.get(name, {}) is None]
    for name in optional:
        del data[name]
    return [f"{name}: null left out, it has its defaults" for name in optional]


def _rename_values(data: _Data) -> list[str]:
    changes = []
    for name, values in _RENAMED_VALUES.items():
        old = data.get(name)
        if isinstance(old, str) and old in values:
            data[name] = values[old]
            changes.append(f"{name}: {old!r} is called {values[old]!r} now")
    return changes


def _sections(data: _Data, path: str) -> Iterator[_Data]:
    """Go through the sections that a path means; ``*`` stands for every agent."""
    if not path:
        yield data
        return
    name, _, rest = path.partition(".")
    for key in list(data) if name == "*" else [name]:
        if isinstance(data.get(key), dict):
            yield from _sections(data[key], rest)


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition(".")
    return parent, name


def _remove(data: _Data, path: str, values: tuple[object, ...] | None, why: str) -> list[str]:
    """Remove a key; with ``values`` only where it has one of them."""
    parent, name = _split(path)
    found = [
        section
        for section in _sections(data, parent)
        if name in section and (values is None or section[name] in values)
    ]
    for section in found:
        del section[name]
    return [f"{path}: removed, {why}"] if found else []


def _rename(data: _Data, old: str, new: str) -> list[str]:
    """Move a value to another name, deeper in the same section perhaps."""
    parent, name = _split(old)
    prefix = f"{parent}." if parent else ""
    found = [section for section in _sections(data, parent) if name in section]
    for section in found:
        *inner, last = new.removeprefix(prefix).split(".")
        value, place = section.pop(name), section
        for key in inner:
            place = place.setdefault(key, {})
        if last in place:
            raise ParameterError(
                f"{old}: is called {new} now, and both are given: {value!r} and {place[last]!r}."
                " Leave the old one out."
            )
        place[last] = value
    return [f"{old}: is called {new} now"] if found else []


def _rewrite(data: _Data, path: str, rewrite: _Rewrite) -> list[str]:
    """Put what ``rewrite`` makes of an old value in its place; nothing for one that is new."""
    parent, name = _split(path)
    changes = []
    for section in _sections(data, parent):
        if name not in section:
            continue
        new = rewrite(section[name])
        if new and new != {name: section[name]}:
            changes.append(f"{path}: {section[name]!r} is written {new} now")
            del section[name]
            section.update(new)
    return list(dict.fromkeys(changes))


def _both(name: str) -> _Rewrite:
    """Write a number as the factors of actor and critic."""

    def rewrite(value: Any) -> _Data:  # noqa: ANN401 -- whatever the file has
        if isinstance(value, bool) or not isinstance(value, int | float):
            return {}
        return {name: {"actor": value, "critic": value}}

    return rewrite


def _orthogonal(value: Any) -> _Data:  # noqa: ANN401
    if isinstance(value, bool) or value is None:
        return {"use_orthogonal_initialisation": bool(value)}
    return {"use_orthogonal_initialisation": True, "orthogonal_initialisation_gain": value}


def _test_scheme(value: Any) -> _Data:  # noqa: ANN401
    return {"test_scheme": "all" if value else "none"}


def _schedule(value: Any) -> _Data:  # noqa: ANN401
    """Write a schedule that names its class by its kind; an agent's own half of two as its part."""
    if not isinstance(value, dict) or "_type" not in value:
        return {}
    kind = value["_type"]
    arguments = dict(value.get(kind, {}))
    if kind == "ConstantUpdateSchedule":
        return {"update_schedule": {"kind": "constant"}}
    if kind == "AlternatingPeriodicUpdateSchedule":
        period, first = arguments["period"], arguments.pop("first_agent_num_rounds")
        part = (0, first) if arguments.pop("first_agent", True) else (first, period)
        arguments = {"period": period, "start": part[0], "stop": part[1]}
    return {"update_schedule": {"kind": "contiguous_periodic", **arguments}}


def _service(agent: _Data) -> list[str]:
    """Write which service an agent's model is asked at as its URL."""
    provider = agent.pop("model_provider", None)
    host = agent.pop("language_model_server_scheme_host", "http://localhost")
    agent.pop("language_model_server_port", None)
    port = agent.pop("vllm_server_port", 8000)
    given = agent.pop("vllm_openai_base_url", None)
    if provider is None and given is None:
        return []
    urls = {
        "OpenAI": None,
        "OpenRouter": "https://openrouter.ai/api/v1",
        "SelfHosted": f"{host}:{port}/v1",
    }
    agent["base_url"] = given if provider in (None, "vLLM-OpenAI") else urls.get(provider, given)
    return [f"agents.*.model_provider: {provider!r} is written base_url={agent['base_url']!r} now"]
