"""``Analyser``: selects messages, builds prompts and parses verdicts; and its registry."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TypeVar

from ratchet.analysis.messages import TranscriptMessage, Utterance
from ratchet.errors import ParameterError, PromptTemplateError
from ratchet.language_models.types import ChatMessage
from ratchet.plugins import is_class_spec
from ratchet.registry import Registry

_VERDICT_LINE = re.compile(r"^[\s>*_#`-]*verdict[\s*_`]*[:=]\s*(?P<label>.+?)\s*$", re.I | re.M)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict of an analyser on a message.

    ``label`` is one of the analyser's labels, or None if the answer could not be parsed.
    ``answer`` is the model's complete answer.
    """

    label: str | None
    answer: str


class Analyser(ABC):
    """Judges messages individually.

    Subclasses define :meth:`labels`, :attr:`template_file`, :meth:`judges` and :meth:`variables`;
    they may override :meth:`prompt` and :meth:`read`.
    """

    @property
    @abstractmethod
    def labels(self) -> Sequence[str]:
        """The possible verdicts."""

    @property
    @abstractmethod
    def template_file(self) -> Path:
        """The prompt template: text with ``$variables``."""

    @abstractmethod
    def judges(self, message: TranscriptMessage) -> bool:
        """Return whether to judge this message."""

    @abstractmethod
    def variables(self, message: TranscriptMessage) -> Mapping[str, str]:
        """Return the values of the template's variables."""

    def prompt(self, message: TranscriptMessage) -> tuple[ChatMessage, ...]:
        """Build the chat that requests a verdict.

        Raises
        ------
        PromptTemplateError
            If the template is missing or uses an unknown variable.
        """
        template = self._template()
        values = dict(self.variables(message))
        unknown = sorted(set(template.get_identifiers()) - values.keys())
        if unknown or not template.is_valid():
            raise PromptTemplateError(
                f"{self.template_file}: got ${', $'.join(unknown) or ' without a name'}, expected"
                f" variables out of ${', $'.join(sorted(values))}. Write $$ for a dollar sign."
            )
        return (ChatMessage("user", template.substitute(values)),)

    def read(self, answer: str) -> Verdict:
        """Parse the label from the answer's last line ``Verdict: LABEL``."""
        labels = {_plain(label): label for label in self.labels}
        matches = [match["label"] for match in _VERDICT_LINE.finditer(answer)]
        return Verdict(labels.get(_plain(matches[-1])) if matches else None, answer)

    def reminder(self) -> ChatMessage:
        """Return the follow-up message to an answer without a verdict."""
        return ChatMessage(
            "user", f"Answer with one line only: Verdict: {' or Verdict: '.join(self.labels)}"
        )

    def _template(self) -> Template:
        try:
            return Template(self.template_file.read_text(encoding="utf-8"))
        except OSError as error:
            raise PromptTemplateError(
                f"{type(self).__name__}: cannot read its template {self.template_file}: {error}."
            ) from error


def as_dialogue(utterances: Sequence[Utterance]) -> str:
    """Format utterances for prompts."""
    lines = [f"[round {u.round}, {u.agent} in {u.channel}]\n{u.text}" for u in utterances]
    return "\n\n".join(lines) or "(nothing)"


def _plain(label: str) -> str:
    """Normalise case, spaces, underscores, Markdown and full stops."""
    return re.sub(r"[\W_]+", " ", label).strip().lower()


_AnalyserClass = TypeVar("_AnalyserClass", bound="type[Analyser]")

ANALYSERS: Registry[Analyser] = Registry(
    "analyser", "ratchet.analysis.base:Analyser", "ratchet.analysis"
)


def register_analyser(name: str) -> Callable[[_AnalyserClass], _AnalyserClass]:
    """Register an analyser under the name of its command-line option and results folder.

    Raises
    ------
    ParameterError
        If the name is taken by another class or is no identifier.
    """
    if not name.isidentifier():
        raise ParameterError(f"analyser: got the name {name!r}, expected letters, digits and _.")
    return ANALYSERS.register(name)


def analyser_names() -> list[str]:
    """List all registered analysers."""
    return ANALYSERS.names()


def build_analyser(name: str) -> tuple[str, Analyser]:
    """Build an analyser.

    Parameters
    ----------
    name
        A registered name, or ``path/to/file.py:Class``.

    Returns
    -------
    tuple
        The name of its results folder, and the analyser.
    """
    analyser_cls = ANALYSERS.find(name)
    return (analyser_cls.__name__ if is_class_spec(name) else name), analyser_cls()
