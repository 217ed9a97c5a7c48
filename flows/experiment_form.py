"""Form of one experiment file in Prefect's UI: the parameters that it reads, with its values.

The UI orders fields by ``position``. It submits ``default``, null for the type "null" and false for
an untouched Boolean: schemas avoid these, so that a run's parameters contain only what was set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flows.forms import Schema, trainers
from ratchet.errors import UnknownNameError
from ratchet.parameters.agents import DEFAULT_AGENT
from ratchet.parameters.base import SECTIONS
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.key_inputs import data_parameters
from ratchet.parameters.purposes import EVERYTHING, Purpose
from ratchet.parameters.reading.discovery import agent_model
from ratchet.parameters.reference import documented_sections, plain_text, value_text
from ratchet.parameters.settings import ExperimentSettings
from ratchet.plugins import paths_from
from ratchet.protocols.registry import build_protocol_handler
from trainers.compatibility import fitting_trainers
from trainers.custom_state import is_custom
from trainers.registry import trainer_class
from trainers.stage_parameters import stage_parameters

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

    from ratchet.experiment_files.loading import ExperimentFile
    from ratchet.parameters.base import Section
    from ratchet.parameters.reference import DocumentedParameter, DocumentedSection

_OTHER_FIELDS = frozenset(
    ("scenario", "trainer", "interaction_protocol", "seed", "callbacks", "phases")
)
"""Top-level parameters that other fields of the form contain, or that need a file."""
_OTHER_SETTINGS = frozenset({"base_dir", "run_id", "parent_run_id", "budget", "progress"})
"""Settings that the flow sets, or that other fields of the form contain."""
_NOTHING = frozenset({Purpose.NOTHING})
_ANY_TRAINER = frozenset((Purpose.DATA, Purpose.HORIZON, Purpose.ORDER, Purpose.CONFIGURATION))
"""Purposes that no stage of a trainer declares, or not all."""
_LEFT_OUT = frozenset({"$defs", "default", "required", "discriminator"})
_LINES = {
    "title": "name=value",
    "type": "array",
    "items": {"type": "string", "pattern": r"^[^=]+=.*$"},
}
_ANY_AGENT = "agents.NAME."
_AGENTS_RANK = 2.5
"""Agents come after the sections of protocols (see :func:`_rank`)."""


@dataclass(frozen=True)
class _Section:
    """A section's documentation and values, the purposes read, and paths read by no trainer."""

    documented: DocumentedSection
    values: Mapping[str, Any]
    prefix: str
    read: frozenset[Purpose] = EVERYTHING
    unread: frozenset[str] = frozenset()

    @property
    def about(self) -> str:
        """First paragraph of its documentation."""
        return plain_text(self.documented.text.partition("\n\n")[0])

    @cached_property
    def parameters(self) -> dict[str, DocumentedParameter]:
        """Path within the section → documentation."""
        return {each.path.removeprefix(self.prefix): each for each in self.documented.parameters}

    @cached_property
    def changed(self) -> dict[str, str]:
        """Path within the section → value, of those that differ from the default."""
        texts = {path: _value_at(self.values, path) for path in self.parameters}
        return {
            path: text
            for path, text in texts.items()
            if text is not None and text != self.parameters[path].default
        }

    def shows(self, path: str) -> bool:
        """Return whether a parameter is read, or set nevertheless."""
        if path in self.changed:
            return True
        purposes = {purpose.value for purpose in self.read | _NOTHING}
        declared = self.parameters[path].read_for if path in self.parameters else ()
        is_read = not declared or bool(purposes.intersection(declared))
        return is_read and f"{self.prefix}{path}" not in self.unread

    def describe(self, path: str) -> str:
        """Return a parameter's description with its value and its default."""
        if path not in self.parameters:
            return ""
        parameter = self.parameters[path]
        value = f" Value: `{self.changed[path]}`." if path in self.changed else ""
        has_none = parameter.default in ("", "required")
        default = "" if has_none else f" Default: {parameter.default}."
        return f"{parameter.description}{value}{default}"


def experiment_form(experiment: ExperimentFile, file: str, general: Schema) -> Schema:
    """Return the schema of an experiment file's form, given that of any file.

    Its parameters are those that the experiment or one of its arms reads.
    """
    hyper_params = experiment.hyper_params
    fields = {name: dict(field) for name, field in general["properties"].items()}
    fields["trainer"] |= trainers(fitting_trainers(hyper_params, experiment.path.parent))
    values = {
        "seed": hyper_params.seed,
        "protocol": hyper_params.interaction_protocol,
        "trainer": hyper_params.trainer_name,
        "iterations": hyper_params.rl.num_iterations,
    }
    for name, value in values.items():
        fields[name]["description"] += f" Value: `{value}`."
    fields["file"].pop("anyOf", None)
    fields["file"] |= {"type": "string", "enum": [file]}
    fields["sections"] = {
        "type": "object",
        "title": "parameters",
        "description": f"What this experiment of `{hyper_params.scenario}` reads. Empty fields"
        " keep the shown values, or the defaults.",
        "position": fields["overrides"]["position"] - 1,
        "properties": _ordered(_parameters(experiment)),
    }
    return {**general, "properties": fields}


def _parameters(experiment: ExperimentFile) -> Iterable[tuple[str, Schema]]:
    """Yield top-level parameters, sections and agents with their schemas, in order."""
    base_dir = experiment.path.parent
    several = [experiment.hyper_params, *experiment.arms.values()]
    readers = [(each, _purposes(each, base_dir)) for each in several]
    read = frozenset[Purpose]().union(*(purposes for _, purposes in readers))
    unread = _unread(several, base_dir)
    values = experiment.hyper_params.to_dict()
    top = _Section(_documented("top", ""), values, "", read, unread)
    yield from _fields(HyperParameters, top, _OTHER_FIELDS).items()
    ranked_schemas = []
    if "agents" not in unread:
        ranked_schemas.append((_AGENTS_RANK, "agents", _agents(experiment, read, unread)))
    for section in SECTIONS.values():
        name, section_values = section.name, values.get(section.name)
        is_read = name not in unread and any(_reads(section, *reader) for reader in readers)
        if section_values is not None and (is_read or section_values != section.model().to_dict()):
            form_section = _Section(
                _documented("section", name), section_values, f"{name}.", read, unread
            )
            ranked_schemas.append(
                (_rank(section), name, _folded(name, section.model, form_section))
            )
    for _, name, schema in sorted(ranked_schemas, key=lambda each: each[0]):
        yield name, schema
    values = experiment.settings.model_dump(mode="json", exclude=set(_OTHER_SETTINGS))
    settings = _Section(_documented("settings", "settings"), values, "settings.")
    yield "settings", _folded("settings", ExperimentSettings, settings, _OTHER_SETTINGS)


def _agents(experiment: ExperimentFile, read: frozenset[Purpose], unread: frozenset[str]) -> Schema:
    """Return the schema of the agents of all arms, and of their common values."""
    hyper_params, base_dir = experiment.hyper_params, experiment.path.parent
    several = [hyper_params, *experiment.arms.values()]
    protocols = [build_protocol_handler(each, base_dir=base_dir) for each in several]
    agents = [name for protocol in protocols for name in protocol.agent_names]
    names = dict.fromkeys((DEFAULT_AGENT, *agents))
    documented = _documented("agents", hyper_params.scenario)
    model = agent_model(hyper_params.scenario)
    schemas = {}
    for name in names:
        values = hyper_params.agents[name].to_dict()
        section = _Section(documented, values, _ANY_AGENT, read, unread)
        schemas[name] = _folded(name, model, section)
    description = f"Parameters of each agent; `{DEFAULT_AGENT}`: of all that do not set them."
    return {"type": "object", "title": "agents", "description": description, "properties": schemas}


def _purposes(hyper_params: HyperParameters, base_dir: Path) -> frozenset[Purpose]:
    """Return the purposes for which an experiment reads parameters; all for a custom trainer."""
    trainer = _declaring_trainer(hyper_params, base_dir)
    if trainer is None:
        return EVERYTHING
    purposes = trainer.stage_purposes(hyper_params)
    stages = _key_parameters(trainer, hyper_params, base_dir)
    return _ANY_TRAINER.union(*(purposes[stage] for stage in stages))


def _declaring_trainer(hyper_params: HyperParameters, base_dir: Path) -> type[Any] | None:
    """Return the class of the trainer; None if it is custom or declares no purposes."""
    trainer: type[Any] = trainer_class(hyper_params, base_dir)
    return None if is_custom(trainer) or not hasattr(trainer, "stage_purposes") else trainer


def _key_parameters(
    trainer: type[Any], hyper_params: HyperParameters, base_dir: Path
) -> dict[str, dict[str, Any]]:
    """Return the parameters in the keys of each stage that the trainer has."""
    parameters_by_stage = {}
    for stage in trainer.stage_purposes(hyper_params):
        with suppress(UnknownNameError), paths_from(base_dir):
            parameters_by_stage[stage] = trainer.stage_key_parameters(hyper_params, stage)
    return parameters_by_stage


def _unread(several: Iterable[HyperParameters], base_dir: Path) -> frozenset[str]:
    """Return the paths that stages would read for their purposes, but that no key includes."""
    declared, read = set[str](), set[str]()
    for each in several:
        trainer = _declaring_trainer(each, base_dir)
        if trainer is None:
            return frozenset()
        read |= _paths(data_parameters(each))
        purposes = trainer.stage_purposes(each)
        for stage, parameters in _key_parameters(trainer, each, base_dir).items():
            declared |= _paths(stage_parameters(each, trainer, purposes, stage))
            read |= _paths(parameters)
    return frozenset(declared - read)


def _paths(values: Mapping[str, Any], prefix: str = "") -> set[str]:
    """Return the paths of values and of their sections, with one name for all agents."""
    paths = set()
    for name, value in values.items():
        path = _ANY_AGENT.rstrip(".") if prefix == "agents." else f"{prefix}{name}"
        paths |= {path, *(_paths(value, f"{path}.") if isinstance(value, Mapping) else ())}
    return paths


def _reads(section: Section, hyper_params: HyperParameters, purposes: frozenset[Purpose]) -> bool:
    """Return whether an experiment reads a section; protocols read only those that name them."""
    protocol, scenario = hyper_params.interaction_protocol, hyper_params.scenario
    return (
        section.concerns(trainer=hyper_params.trainer_name, protocol=protocol, scenario=scenario)
        and protocol in (section.protocols or (protocol,))
        and bool(_all_purposes(section) & purposes or _all_purposes(section) == _NOTHING)
    )


def _all_purposes(section: Section) -> frozenset[Purpose]:
    return frozenset[Purpose]().union(*section.purposes.values())


def _rank(section: Section) -> int:
    """Return the position of a section's kind: data, protocol, trainer, all others."""
    purposes = _all_purposes(section)
    kinds = (
        bool(section.scenarios),
        Purpose.DATA in purposes,
        purposes <= {Purpose.GAME, Purpose.NETWORKS},
        bool(section.trainers) or Purpose.HORIZON in purposes,
        purposes != _NOTHING,
        True,
    )
    return kinds.index(True)


def _documented(kind: str, name: str) -> DocumentedSection:
    return next(each for each in documented_sections() if (each.kind, each.name) == (kind, name))


def _folded(
    name: str, model: type[BaseModel], section: _Section, hidden: Collection[str] = ()
) -> Schema:
    """Return the schema of a section, given as lines or, once opened, as fields."""
    fields = {
        "type": "object",
        "title": "all fields",
        "properties": _ordered(_fields(model, section, hidden).items()),
        "additionalProperties": False,
    }
    changed = ", ".join(f"`{path}: {value}`" for path, value in section.changed.items())
    description = section.about + (f" Values: {changed}." if changed else "")
    return {"title": name, "description": description, "anyOf": [_LINES, fields]}


def _fields(model: type[BaseModel], section: _Section, hidden: Collection[str] = ()) -> Schema:
    schema = model.model_json_schema()
    fields = _plain(schema["properties"], schema.get("$defs", {}))
    return _described({k: v for k, v in fields.items() if k not in hidden}, section, "")


def _described(fields: Schema, section: _Section, prefix: str) -> Schema:
    """Return the fields that are read, those of nested sections too, with titles and descriptions.

    Alternatives with a constant are left out: the UI would submit the first one.
    """
    described = {}
    for name, field in fields.items():
        path = f"{prefix}{name}"
        if not section.shows(path) or "oneOf" in field:
            continue
        described[name] = {**field, "title": name, "description": section.describe(path)}
        if "properties" in field:
            described[name]["properties"] = _described(field["properties"], section, f"{path}.")
    return described


def _ordered(fields: Iterable[tuple[str, Schema]]) -> Schema:
    return {name: {**field, "position": i} for i, (name, field) in enumerate(fields)}


def _plain(node: Any, definitions: Mapping[str, Any]) -> Any:  # noqa: ANN401 -- any JSON
    """Return a schema without references, defaults and null, which an empty field replaces."""
    if isinstance(node, list):
        return [_plain(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = definitions[node["$ref"].rpartition("/")[2]]
        return _plain({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions)
    if "anyOf" in node:
        kinds = [each for each in node["anyOf"] if each.get("type") != "null"]
        if len(kinds) == 1:
            rest = {name: value for name, value in node.items() if name != "anyOf"}
            return _plain({**kinds[0], **rest}, definitions)
    if node.get("type") == "boolean":  # an untouched switch would submit false
        return {"title": "bool", "enum": [True, False]}
    plain = {name: _plain(v, definitions) for name, v in node.items() if name not in _LEFT_OUT}
    if "properties" in plain and "required" in node:
        plain["required"] = node["required"]
    return plain


def _value_at(values: Mapping[str, Any], path: str) -> str | None:
    """Return the text of the value at a path; None for a section, or without a value."""
    node: Any = values
    for name in path.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return None
        node = node[name]
    return None if isinstance(node, Mapping) and node else value_text(node)
