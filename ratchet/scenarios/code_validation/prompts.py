"""System prompts of the code-validation game: template files, checked before any call is made.

A template is ``templates/<kind>/<protocol>/<agent>.txt`` here or, for a protocol in a file of the
user's, beside that file, with the name of the protocol's class. ``$name`` is a variable, ``$$`` a
dollar sign.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from ratchet.errors import PromptTemplateError, nearest
from ratchet.plugins import class_name, is_class_spec

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.scenarios.pure_text.views import AgentView

TEMPLATES = Path(__file__).parent / "templates"
VARIABLES = (
    "question",
    "solution",
    "max_response_words",
    "max_questions",
    "agent_stance_string",
)
_NEEDED: tuple[str, ...] = ("question", "solution")
_STANCE = "agent_stance_string"
_STANCES = {0: "reject", 1: "accept"}


@dataclass(frozen=True)
class SystemPrompts:
    """The system prompts of all agents of a protocol. Made by :meth:`of`.

    ``templates`` and ``max_response_words`` are by agent; ``max_questions`` is the number of the
    verifier's turns.
    """

    templates: Mapping[str, Template]
    max_response_words: Mapping[str, int]
    max_questions: int

    @classmethod
    def of(cls, hyper_params: HyperParameters, handler: ProtocolHandler) -> SystemPrompts:
        """Load and check the templates of all agents.

        Raises
        ------
        PromptTemplateError
            If a template is missing, or lacks a variable or has one too many.
        """
        loaded = _load_all(hyper_params, handler)
        return cls(
            {name: template for name, (template, _) in loaded.items()},
            {name: hyper_params.agents[name].max_response_words for name in handler.agent_names},
            handler.max_verifier_questions,
        )

    def render(self, view: AgentView) -> str:
        """Write the system prompt of the agent that sees ``view``."""
        values = {
            "question": view.question,
            "solution": view.solution,
            "max_response_words": self.max_response_words[view.agent_name],
            "max_questions": self.max_questions,
        }
        if view.stance is not None:
            values[_STANCE] = _STANCES[view.stance]
        return self.templates[view.agent_name].substitute(values).strip()


def template_digests(hyper_params: HyperParameters, handler: ProtocolHandler) -> dict[str, str]:
    """Return the SHA-256 of each agent's template, by ``"<kind>/<protocol>/<agent>.txt"``.

    Raises
    ------
    PromptTemplateError
        As :meth:`SystemPrompts.of`.
    """
    kind = hyper_params.code_validation.prompt_templates
    digests = {}
    for name, (template, file) in _load_all(hyper_params, handler).items():
        text = template.template.encode()
        digests[f"{kind}/{file.parent.name}/{name}.txt"] = hashlib.sha256(text).hexdigest()
    return digests


def template_folders(protocol: str, kind: str, handler: ProtocolHandler) -> tuple[Path, ...]:
    """Return the folders that the templates of a protocol may lie in, in order.

    Parameters
    ----------
    protocol
        Its registered name, or ``path/to/file.py:ClassName``.
    kind
        ``"full"`` or ``"compact"``.
    handler
        The protocol: templates may lie beside the file it is written in.
    """
    name = class_name(protocol)
    beside = Path(inspect.getfile(type(handler))).parent / "templates" / kind / name
    return (beside,) if is_class_spec(protocol) else (TEMPLATES / kind / name, beside)


def _load_all(
    hyper_params: HyperParameters, handler: ProtocolHandler
) -> dict[str, tuple[Template, Path]]:
    """Return the checked template of each agent, and where it lies."""
    kind = hyper_params.code_validation.prompt_templates
    folders = template_folders(hyper_params.interaction_protocol, kind, handler)
    loaded = {name: _load(folders, name) for name in handler.agent_names}
    for name, (template, file) in loaded.items():
        _check(template, file, name, handler)
    return loaded


def _load(folders: Sequence[Path], agent: str) -> tuple[Template, Path]:
    files = [folder / f"{agent}.txt" for folder in folders]
    for file in files:
        if file.is_file():
            return Template(file.read_text(encoding="utf-8")), file
    raise PromptTemplateError(
        f"there is no system prompt template for agent {agent!r}: expected {files[0]}"
        + "".join(f" or {file}" for file in files[1:])
        + f", a text with ${' $'.join(_NEEDED)}. Write it, or choose another protocol or another"
        " code_validation.prompt_templates."
    )


def _check(template: Template, file: Path, agent: str, handler: ProtocolHandler) -> None:
    """Check the variables, so that rendering can't fail and a drawn stance is told."""
    if not template.is_valid():
        raise PromptTemplateError(
            f"{file}: has a '$' that begins no variable; expected ${', $'.join(VARIABLES)}, or"
            " '$$' for the sign itself."
        )
    found = template.get_identifiers()
    is_prover = agent in handler.prover_names
    known = VARIABLES if is_prover else VARIABLES[:-1]
    for name in found:
        if name not in known:
            raise PromptTemplateError(
                f"{file}: unknown variable ${name} for agent {agent!r}.{nearest(name, known)}"
                " Write '$$' for the sign itself."
            )
    needed = _NEEDED
    if is_prover and handler.common.randomize_prover_stance:
        needed = (*_NEEDED, _STANCE)
    missing = [name for name in needed if name not in found]
    if missing:
        raise PromptTemplateError(
            f"{file}: has no ${', $'.join(missing)}, so that agent {agent!r} would not be told;"
            f" got ${', $'.join(found) or 'nothing'}. Add it."
        )
