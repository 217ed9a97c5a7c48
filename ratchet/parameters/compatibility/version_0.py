"""Convert parameters of version 0, with nip's names, to version 1.

nip writes its parameters as JSON, with every section, every default and the name of each class;
Weights & Biases stores them as YAML, each value with its description.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ratchet.parameters.base import SECTIONS
from ratchet.parameters.compatibility.converters import (
    Nested,
    Rewrite,
    register_converter,
    remove,
    rename,
    rewrite,
    sections_at,
)
from ratchet.parameters.compatibility.unsupported import (
    RANDOM_AGENT,
    SCHEDULES,
    UNSUPPORTED_PARAMETERS,
    may_be_class_of,
    stem,
)

_RENAMED_VALUES = {
    "interaction_protocol": {"pvg": "nip", "abstract_decision_problem": "adp"},
}
_RENAMED = {
    "pvg_protocol": "nip_protocol",
    "protocol_common.verifier_decision_spectrum": "protocol_common.verifier_decision_scale",
    "spg.sos_a_param": "spg.sos_scaling_factor",
    "spg.sos_b_param": "spg.sos_threshold_factor",
    "agents.*.dpo_beta": "agents.*.fine_tuning.beta",
    "message_regression.regression_method": "message_regression.method",
    "message_regression.mlp_num_layers": "message_regression.num_layers",
    "message_regression.mlp_hidden_size": "message_regression.hidden_size",
    "message_regression.mlp_activation": "message_regression.activation",
    "message_regression.mlp_num_epochs": "message_regression.num_epochs",
    "message_regression.mlp_batch_size": "message_regression.batch_size",
    "message_regression.mlp_learning_rate": "message_regression.learning_rate",
    "code_validation.apps_exclude_flagged": "code_validation.exclude_flagged",
}
_NOT_NEEDED = (
    "_package_name",
    "_package_version",
    "functionalize_modules",
    "vanilla_ppo",
    "base_run.wandb_entity",
    "base_run.wandb_project",
    "base_run.rerun_tests_force_test_during_training_state",
    "agents.agents_update_repr",
    "agents.*.checkpoint_entity",
    "agents.*.checkpoint_project",
    "agents.*.supervisor_name",
)
"""Removed with any value: Ratchet has no such parameters."""
_SCALES = {"likert_scale": "likert_scale_5", "likert_scale_no_undecided": "likert_scale_4"}
_SUPERVISED = {"all": "always"}
_PROVIDERS = {"OpenAI", "OpenRouter", "SelfHosted", "vLLM-OpenAI"}
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


_FACTORS: dict[str, float] = {"actor": 1.0, "critic": 1.0}
_IGNORED_BY_CHAT_AGENTS: dict[str, tuple[object, ...]] = {
    "is_random": (False,),
    "agent_lr_factor": (1.0, _FACTORS),
    "body_lr_factor": (1.0, _FACTORS),
    "use_manual_architecture": (False,),
    "ortho_init": (None, False),
    "use_orthogonal_initialisation": (True,),
    "orthogonal_initialisation_gain": (1.0,),
}
"""Parameters of tensor agents only, with their neutral values."""


@register_converter(from_version=0)
def convert_version_0(data: Nested) -> list[str]:
    """Rename, remove and rewrite parameters that version 1 doesn't have."""
    changes = [*_take_from_tracker(data), *_rename_values(data)]
    for old, new in _RENAMED.items():
        changes += rename(data, old, new)
    changes += _drop_empty_sections(data)
    changes += _code_validation(data)
    changes += _without_tensor_parameters(data)
    changes += _random_agents(data)
    removed = ["_type"] if _remove_types(data, data.get("scenario")) else []
    removed += [path for path in _NOT_NEEDED if remove(data, path)]
    if removed:
        changes.append(f"removed, no longer read: {', '.join(removed)}")
    unused = [p for p, old in UNSUPPORTED_PARAMETERS.items() if remove(data, p, old.neutral)]
    if unused:
        changes.append(f"removed, no longer supported and without effect: {', '.join(unused)}")
    rewrites: dict[str, Rewrite] = {
        "agents.*.update_schedule": _schedule,
        "agents.*.ortho_init": _orthogonal,
        "agents.*.agent_lr_factor": _both("agent_lr_factor"),
        "agents.*.body_lr_factor": _both("body_lr_factor"),
        "agents.*.gnn_lr_factor": _both("gnn_lr_factor"),
        "agents.*.use_supervisor_message": _called("use_supervisor_message", _SUPERVISED),
        "rl.body_lr_factor": _both("body_lr_factor"),
        "rl.clip_value": _unless_null("clip_value", False),
        "protocol_common.verifier_decision_scale": _called("verifier_decision_scale", _SCALES),
        "text_rl.test_every_iteration": lambda every: {"test_scheme": "all" if every else "none"},
        "message_regression.agents": _unless_null("agents", "all"),
    }
    for path, new_of in rewrites.items():
        changes += rewrite(data, path, new_of)
    for agent in sections_at(data, "agents.*"):
        changes += _service(agent)
    return list(dict.fromkeys(changes))


def _take_from_tracker(data: Nested) -> list[str]:
    """Take values out of ``{desc: …, value: …}``, as Weights & Biases stores a run's parameters."""
    if "wandb_version" not in data and "_wandb" not in data:
        return []
    for name in ("wandb_version", "_wandb"):
        data.pop(name, None)
    for name, entry in data.items():
        if isinstance(entry, dict) and "value" in entry and entry.keys() <= {"value", "desc"}:
            data[name] = entry["value"]
    return ["the values are taken out of a tracker's {desc: …, value: …}"]


def _without_tensor_parameters(data: Nested) -> list[str]:
    """Remove tensor agents' parameters from chat agents: nip ignored them."""
    if data.get("scenario") != "code_validation":
        return []
    ignored: set[str] = set()
    for agent in sections_at(data, "agents.*"):
        if stem(str(agent.get("_type"))) == RANDOM_AGENT:  # not a chat model: refused
            continue
        for name in _IGNORED_BY_CHAT_AGENTS.keys() & agent.keys():
            value = agent.pop(name)
            if isinstance(value, dict):
                value = {key: each for key, each in value.items() if key != "_type"}
            if value not in _IGNORED_BY_CHAT_AGENTS[name]:
                ignored.add(name)
    if not ignored:
        return []
    return [f"agents.*: ignored, chat models do not read it: {', '.join(sorted(ignored))}"]


def _random_agents(data: Nested) -> list[str]:
    """Set ``is_random`` for agents that are random by their class alone."""
    random = [
        agent
        for agent in sections_at(data, "agents.*")
        if stem(str(agent.get("_type"))) == RANDOM_AGENT and "is_random" not in agent
    ]
    for agent in random:
        agent["is_random"] = True
    return ["agents.*._type: a random agent is written is_random=True now"] if random else []


def _remove_types(data: Nested, scenario: object, path: str = "") -> bool:
    """Remove the names of sections' classes at any depth; return whether there were any.

    A class that does not match its section stays, and is refused as an unknown parameter.
    """
    is_typed = "_type" in data and may_be_class_of(data["_type"], path, scenario)
    if is_typed:
        del data["_type"]
    inner = []
    for name, value in data.items():
        if isinstance(value, dict) and not (path == "" and name == "arms"):  # converted separately
            below = "*" if path == "agents" else name
            inner.append(_remove_types(value, scenario, f"{path}.{below}" if path else below))
    return is_typed or any(inner)


def _drop_empty_sections(data: Nested) -> list[str]:
    """Remove sections that are null, so that they have their defaults."""
    optional = [name for name in (*SECTIONS, "agents") if data.get(name, {}) is None]
    for name in optional:
        del data[name]
    return [f"{name}: null left out, it has its defaults" for name in optional]


def _rename_values(data: Nested) -> list[str]:
    changes = []
    for name, values in _RENAMED_VALUES.items():
        old = data.get(name)
        if isinstance(old, str) and old in values:
            data[name] = values[old]
            changes.append(f"{name}: {old!r} is called {values[old]!r} now")
    return changes


def _code_validation(data: Nested) -> list[str]:
    """Convert the dataset of code validation; for other scenarios only the section."""
    changes = rewrite(
        data,
        "code_validation.apps_difficulty",
        lambda level: {"difficulties": [] if level is None else [level]},
    )
    if data.get("scenario") != "code_validation":
        return changes
    dataset, options = data.get("dataset"), data.get("dataset_options")
    if isinstance(dataset, str) and _HUB_NAME.fullmatch(dataset):
        data["dataset"] = f"hub:{dataset}"
        changes.append(f"dataset: {dataset!r} is written {data['dataset']!r} now")
    if isinstance(options, dict) and options.get("max_test_size") is not None:
        changes += rename(data, "dataset_options.max_test_size", "code_validation.max_test_size")
    return changes


def _called(name: str, names: Mapping[str, str]) -> Rewrite:
    """Write the current name of a value."""
    return lambda value: {name: names[value]} if value in tuple(names) else {}


def _both(name: str) -> Rewrite:
    """Write a number as the factors of actor and critic, and null as factors of 1."""

    def new_of(value: Any) -> Nested:  # noqa: ANN401
        value = 1.0 if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            return {}
        return {name: {"actor": value, "critic": value}}

    return new_of


def _unless_null(name: str, meant: object) -> Rewrite:
    """Write the meaning of null explicitly."""
    return lambda value: {name: meant} if value is None else {}


def _orthogonal(value: Any) -> Nested:  # noqa: ANN401
    if isinstance(value, bool) or value is None:
        return {"use_orthogonal_initialisation": bool(value)}
    return {"use_orthogonal_initialisation": True, "orthogonal_initialisation_gain": value}


def _schedule(value: Any) -> Nested:  # noqa: ANN401
    """Write a schedule's class as its kind; an agent's half of an alternating schedule as its part.

    A schedule that is not one of these classes with its arguments stays, and is refused.
    """
    if not isinstance(value, dict) or not isinstance(kind := value.get("_type"), str):
        return {}
    arguments = value.get(kind, {})
    if value.keys() - {"_type", kind} or kind not in SCHEDULES or not isinstance(arguments, dict):
        return {}
    if "first_agent" in SCHEDULES[kind]:
        arguments = {"first_agent": True, **arguments}
    if arguments.keys() != set(SCHEDULES[kind]):
        return {}
    if kind == "ConstantUpdateSchedule":
        return {"update_schedule": {"kind": "constant"}}
    if kind == "AlternatingPeriodicUpdateSchedule":
        period, first = arguments["period"], arguments["first_agent_num_rounds"]
        if not isinstance(arguments["first_agent"], bool):
            return {}
        start, stop = (0, first) if arguments["first_agent"] else (first, period)
        arguments = {"period": period, "start": start, "stop": stop}
    return {"update_schedule": {"kind": "contiguous_periodic", **arguments}}


def _service(agent: Nested) -> list[str]:
    """Write the provider of an agent's model as its URL."""
    provider, base_url = agent.get("model_provider"), agent.get("vllm_openai_base_url")
    if provider is not None and provider not in _PROVIDERS:
        return []
    host = agent.pop("language_model_server_scheme_host", "http://localhost")
    port = agent.pop("vllm_server_port", 8000)
    for name in ("model_provider", "vllm_openai_base_url", "language_model_server_port"):
        agent.pop(name, None)
    if provider is None and base_url is None:
        return []
    urls: dict[object, str | None] = {
        "OpenAI": None,
        "OpenRouter": "https://openrouter.ai/api/v1",
        "SelfHosted": f"{host}:{port}/v1",
    }
    agent["base_url"] = urls.get(provider, base_url)
    agent.setdefault("api_key_name", "OPENROUTER_API_KEY" if provider == "OpenRouter" else None)
    change = f"agents.*.model_provider: {provider!r} is written base_url={agent['base_url']!r} now"
    if provider == "SelfHosted":
        change += "; to fine-tune there too, `ratchet llm serve` is the service that does both"
    return [change]
