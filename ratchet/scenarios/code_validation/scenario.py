"""Code validation: chat models debate whether a program is correct; system prompts and scenario.

A prompt's template is ``templates/<kind>/<protocol>/<agent>.txt`` in this package or, for a
protocol in a user's file, next to that file, with the name of the protocol's class; or
``<agent>.txt`` in a user's folder, or the file in an agent's parameters. ``$name`` is a variable,
``$$`` a dollar sign. Templates are checked before any model is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from ratchet.errors import PromptTemplateError, nearest
from ratchet.language_models.auxiliary_calls import AuxiliaryModel
from ratchet.plugins import class_name, is_class_spec
from ratchet.protocols.decision_scales import DECISION_SCALES, DecisionScale
from ratchet.scenarios.code_validation.bug_writer import FILES
from ratchet.scenarios.code_validation.dataset import (
    HUB,
    build_code_validation_datasets,
    hash_data_files,
    most_bugs,
)
from ratchet.scenarios.pure_text.base import TextScenario
from ratchet.scenarios.registry import register_scenario

if TYPE_CHECKING:
    from ratchet.language_models.auxiliary_calls import ModelCalls
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.rollouts.dataset import NestedArrayDictDataset
    from ratchet.scenarios.pure_text.views import AgentView

TEMPLATES = Path(__file__).parent / "templates"
_NO_GAME = "bug_generator"
"""The folder of templates that are not for agents of a game."""
VARIABLES = (
    "question",
    "solution",
    "max_response_words",
    "max_questions",
    "agent_stance_string",
    "decision_instructions",
)
_NEEDED: tuple[str, ...] = ("question", "solution")
_STANCE = "agent_stance_string"
_HOW_TO_DECIDE = "decision_instructions"
OWN = "own"
_TEMPLATE_PATH = "system_prompt_template_path"
_HINT = " Variables are written $name here, not {{ name }}."
_STANCES = {0: "reject", 1: "accept"}


@dataclass(frozen=True)
class SystemPrompts:
    """The system prompts of all agents of a protocol; use :meth:`of`.

    ``templates`` and ``max_response_words`` are by agent; ``max_questions`` is the number of the
    verifier's turns, and ``scale`` its decision scale.
    """

    templates: Mapping[str, Template]
    max_response_words: Mapping[str, int]
    max_questions: int
    scale: DecisionScale

    @classmethod
    def of(
        cls,
        hyper_params: HyperParameters,
        handler: ProtocolHandler,
        base_dir: Path | None = None,
    ) -> SystemPrompts:
        """Load and check the templates of all agents; paths start from ``base_dir``."""
        files = _template_files(hyper_params, handler, base_dir)
        return cls(
            {name: _load(file, name, handler) for name, (_, file) in files.items()},
            {name: hyper_params.agents[name].max_response_words for name in handler.agent_names},
            handler.max_verifier_questions,
            DECISION_SCALES[handler.common.verifier_decision_scale],
        )

    def render(self, view: AgentView) -> str:
        """Write the system prompt of the agent that sees ``view``."""
        values = {
            "question": view.question,
            "solution": view.solution,
            "max_response_words": self.max_response_words[view.agent_name],
            "max_questions": self.max_questions,
            _HOW_TO_DECIDE: self.scale.instructions,
        }
        if view.stance is not None:
            values[_STANCE] = _STANCES[view.stance]
        return self.templates[view.agent_name].substitute(values).strip()


def template_files(
    hyper_params: HyperParameters, handler: ProtocolHandler, base_dir: Path | None = None
) -> dict[str, Path]:
    """Return the file of each agent's template, by a name without its path."""
    files = _template_files(hyper_params, handler, base_dir)
    for agent, (_, file) in files.items():
        _load(file, agent, handler)
    return {f"{label}/{agent}.txt": file for agent, (label, file) in files.items()}


def without_template_paths(parameters: dict[str, Any]) -> dict[str, Any]:
    """Remove the paths of custom templates from a stage's parameters, plain data."""
    section = parameters.get("code_validation", {})
    if section.get("prompt_templates", "full") not in built_in_kinds():
        section = {**section, "prompt_templates": OWN}
        parameters = {**parameters, "code_validation": section}
    if "agents" not in parameters:
        return parameters
    agents = {
        name: {field: value for field, value in agent.items() if field != _TEMPLATE_PATH}
        for name, agent in parameters["agents"].items()
    }
    return {**parameters, "agents": agents}


def built_in_kinds() -> tuple[str, ...]:
    """Return the kinds of templates that are here."""
    kinds = {folder.name for folder in TEMPLATES.iterdir()} - {_NO_GAME}
    return tuple(sorted(kinds, reverse=True))


def template_folders(protocol: str, kind: str, handler: ProtocolHandler) -> tuple[Path, ...]:
    """Return the folders that may contain the templates of a protocol, in order.

    Parameters
    ----------
    protocol
        Its registered name, or ``path/to/file.py:ClassName``.
    kind
        ``"full"`` or ``"compact"``.
    handler
        The protocol: templates may be next to its file.
    """
    name = class_name(protocol)
    handler_folder = Path(inspect.getfile(type(handler))).parent / "templates" / kind / name
    return (
        (handler_folder,) if is_class_spec(protocol) else (TEMPLATES / kind / name, handler_folder)
    )


def _template_files(
    hyper_params: HyperParameters, handler: ProtocolHandler, base_dir: Path | None
) -> dict[str, tuple[str, Path]]:
    """Return by agent what kind of template it has, for names, and the file."""
    kind = hyper_params.code_validation.prompt_templates
    base = base_dir or Path()
    if kind in built_in_kinds():
        folders = template_folders(hyper_params.interaction_protocol, kind, handler)
    else:
        folders = (_own_folder(kind, base),)
    templates = {}
    for name in handler.agent_names:
        path = getattr(hyper_params.agents[name], _TEMPLATE_PATH)
        if path is not None:
            templates[name] = (OWN, _find((base / Path(path).expanduser(),), name))
            continue
        file = _find([folder / f"{name}.txt" for folder in folders], name)
        templates[name] = (f"{kind}/{file.parent.name}" if kind in built_in_kinds() else OWN, file)
    return templates


def _own_folder(path: str, base: Path) -> Path:
    folder = base / Path(path).expanduser()
    if folder.is_dir():
        return folder
    kinds = built_in_kinds()
    raise PromptTemplateError(
        f"code_validation.prompt_templates: got {path!r}, expected {', '.join(kinds)} or a folder"
        f" with a template AGENT.txt for each agent.{nearest(path, kinds)} There is no folder"
        f" {folder}."
    )


def _find(files: Sequence[Path], agent: str) -> Path:
    for file in files:
        if file.is_file():
            return file
    raise PromptTemplateError(
        f"there is no system prompt template for agent {agent!r}: expected {files[0]}"
        + "".join(f" or {file}" for file in files[1:])
        + f", a text with ${' $'.join(_NEEDED)}. Write it, or choose another protocol, another"
        f" code_validation.prompt_templates or agents.{agent}.{_TEMPLATE_PATH}."
    )


def _load(file: Path, agent: str, handler: ProtocolHandler) -> Template:
    try:
        template = Template(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise PromptTemplateError(f"{file}: {error}. Expected a text in UTF-8.") from error
    _check(template, file, agent, handler)
    return template


def _check(template: Template, file: Path, agent: str, handler: ProtocolHandler) -> None:
    """Check the variables, so that rendering can't fail and a sampled stance is included."""
    if not template.is_valid():
        raise PromptTemplateError(
            f"{file}: '$' without a variable; expected ${', $'.join(VARIABLES)}, or"
            " '$$' for the sign itself."
        )
    variables = template.get_identifiers()
    is_prover = agent in handler.prover_names
    not_its_own = _HOW_TO_DECIDE if is_prover else _STANCE
    known = [name for name in VARIABLES if name != not_its_own]
    for name in variables:
        if name not in known:
            raise PromptTemplateError(
                f"{file}: unknown variable ${name} for agent {agent!r}.{nearest(name, known)}"
                " Write '$$' for the sign itself."
            )
    needed = _NEEDED
    if is_prover and handler.common.randomize_prover_stance:
        needed = (*_NEEDED, _STANCE)
    if not is_prover and handler.common.verifier_decision_scale != "accept_reject":
        needed = (*needed, _HOW_TO_DECIDE)
    missing = [name for name in needed if name not in variables]
    if missing:
        raise PromptTemplateError(
            f"{file}: has no ${', $'.join(missing)}, so agent {agent!r} would not see it;"
            f" got ${', $'.join(variables) or 'none'}. Add it, or use the built-in templates"
            " `full`, which include it." + _HINT * ("{{" in template.template)
        )


@register_scenario("code_validation")
class CodeValidationScenario(TextScenario):
    """Agents find out whether a program solves the problem that it was written for."""

    label_texts = ("the solution is buggy", "the solution is right")
    group_field = "question"

    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, NestedArrayDictDataset]:
        """Create ``train`` and ``test``."""
        return build_code_validation_datasets(hyper_params)

    def needed_packages(self, hyper_params: HyperParameters) -> list[str]:
        """Return ``datasets`` for the hub, and the packages of chat models."""
        needed = list(super().needed_packages(hyper_params))
        return needed + ["datasets"] * hyper_params.dataset.startswith(HUB)

    def make_datasets(
        self, hyper_params: HyperParameters, calls: ModelCalls | None = None
    ) -> dict[str, NestedArrayDictDataset]:
        """Build ``train`` and ``test``, with buggy programs of a chat model if set."""
        return build_code_validation_datasets(hyper_params, calls)

    def asked_for_data(self, hyper_params: HyperParameters) -> tuple[AuxiliaryModel, ...]:
        """Return the model that writes buggy programs, if set."""
        parameters = hyper_params.bug_generator
        if not parameters.is_on:
            return ()
        calls = most_bugs(hyper_params)
        most_calls = None if calls is None else calls * parameters.num_attempts
        return (AuxiliaryModel(parameters, calls, most_calls, parameters.max_tokens),)

    def data_prompts(self, hyper_params: HyperParameters) -> Mapping[str, Path]:
        """Return the templates of that model's prompt."""
        return FILES if hyper_params.bug_generator.is_on else {}

    def data_code(self) -> tuple[Callable[..., object], ...]:
        """Return the code that makes data only; that of the sandboxed process is part of it."""
        from ratchet.scenarios.sandbox.sandboxed.worker import main

        return (build_code_validation_datasets, main)

    def data_files(self, hyper_params: HyperParameters) -> dict[str, str]:
        """Return the hashes of the files that are read."""
        return hash_data_files(hyper_params.dataset)

    def played_files(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler
    ) -> Mapping[str, Path]:
        """Return the templates of system prompts."""
        return template_files(hyper_params, protocol_handler, self.base_dir)

    def without_places(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Remove templates' paths: their content enters the key."""
        return without_template_paths(super().without_places(parameters))

    def build_system_prompts(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler
    ) -> SystemPrompts:
        """Read and check the templates of the protocol."""
        return SystemPrompts.of(hyper_params, protocol_handler, self.base_dir)
