"""What an analyser is: which messages it judges, what it asks, how it reads the answer."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from ratchet.analysis.messages import SpokenMessage, Utterance
from ratchet.errors import PromptTemplateError
from ratchet.language_models.types import ChatMessage

_VERDICT_LINE = re.compile(r"^[\s>*_#`-]*verdict[\s*_`]*[:=]\s*(?P<label>.+?)\s*$", re.I | re.M)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an analyser says about a message.

    ``label`` is one of the analyser's labels; None where the answer could not be read.
    ``answer`` is the model's, in full.
    """

    label: str | None
    answer: str


class Analyser(ABC):
    """Judges messages one by one.

    The author writes :meth:`labels`, :attr:`template_file`, :meth:`judges` and
    :meth:`variables`, or :meth:`prompt` and :meth:`read` for anything else.
    """

    @property
    @abstractmethod
    def labels(self) -> Sequence[str]:
        """The verdicts there are."""

    @property
    @abstractmethod
    def template_file(self) -> Path:
        """The prompt: text with ``$variables``."""

    @abstractmethod
    def judges(self, message: SpokenMessage) -> bool:
        """Return whether this message is to be judged."""

    @abstractmethod
    def variables(self, message: SpokenMessage) -> Mapping[str, str]:
        """Return the values of the template's variables."""

    def prompt(self, message: SpokenMessage) -> tuple[ChatMessage, ...]:
        """Return the chat that asks for a verdict.

        Raises
        ------
        PromptTemplateError
            If the template is missing, or asks for a variable that there isn't.
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
        """Read the label off the answer's last line that says ``Verdict: LABEL``."""
        known = {_plain(label): label for label in self.labels}
        said = [match["label"] for match in _VERDICT_LINE.finditer(answer)]
        return Verdict(known.get(_plain(said[-1])) if said else None, answer)

    def reminder(self) -> ChatMessage:
        """Return the message that follows an answer without a verdict."""
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
    """Write down what was said, for prompts."""
    lines = [f"[round {u.round}, {u.agent} in {u.channel}]\n{u.text}" for u in utterances]
    return "\n\n".join(lines) or "(nothing)"


def _plain(label: str) -> str:
    """Make case, spaces, underscores, Markdown and full stops not matter."""
    return re.sub(r"[\W_]+", " ", label).strip().lower()
