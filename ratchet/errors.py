"""The errors that Ratchet raises deliberately.

The lowest layer: any module may import this one, which imports none. Each error is also a standard
error, so that callers can catch it without importing Ratchet.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar


class RatchetError(Exception):
    """Base of all errors that Ratchet raises deliberately."""


class ParameterError(RatchetError, ValueError):
    """A parameter is unknown, has the wrong type, or does not fit the others."""


class MissingPackageError(RatchetError, ImportError):
    """A required package is not installed; the message has the command that installs it."""


class OutOfMemoryError(RatchetError, MemoryError):
    """A stage ran out of memory and would again; the message has advice."""


class NameClashError(RatchetError, ImportError):
    """A different package of the same name hides one of Ratchet's packages."""


class UnknownNameError(RatchetError, LookupError):
    """A name (of a trainer, protocol, scenario, section …) is not registered."""


class ProtocolSpecificationError(RatchetError, ValueError):
    """A protocol contradicts itself, e.g. an agent acts in a channel it can't see."""


class DataError(RatchetError, ValueError):
    """A dataset cannot be created or read, or does not match the request."""


class TaskCodeError(DataError):
    """An evaluator or an environment raised an error, and would again."""


class CustomCodeError(RatchetError, RuntimeError):
    """A custom trainer, scenario or evaluator has a bug, and would fail the same way again."""


class KeyPathError(RatchetError, KeyError):
    """A nested dictionary has no value at a key path, or a value of a different kind."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ArrayShapeError(RatchetError, ValueError):
    """An array does not have the shape of its destination."""


class ArrayTypeError(RatchetError, TypeError):
    """An array does not have the value type of its destination."""


class BatchIndexError(RatchetError, IndexError):
    """An index does not fit the batch dimensions of a nested dictionary of arrays."""


class SandboxError(RatchetError, RuntimeError):
    """Programs that must not run in this process cannot be run in a separate one either."""


class StageKeyError(RatchetError, TypeError):
    """The key of a stage cannot be computed, so its result could not be cached."""


class StoreError(RatchetError, OSError):
    """The stage store cannot be read or written; no partial stage remains."""


class DamagedStageError(StoreError):
    """A stored stage does not match its manifest."""


class RunNotFoundError(RatchetError, LookupError):
    """The runs folder has no run of that name."""


class RunStateError(RatchetError, RuntimeError):
    """A run must be running and is not, or must not be running and is."""


class RunPrunedError(RatchetError, RuntimeError):
    """The run was pruned by its sweep."""


class CheckPointNotFoundError(RatchetError, FileNotFoundError):
    """A requested saved state does not exist."""


class IllegalActionError(RatchetError, ValueError):
    """An agent chose an action that is not legal in the state of its game."""


class StateError(RatchetError, ValueError):
    """A saved trainer state does not fit the trainer that loads it."""


class ReportError(RatchetError, RuntimeError):
    """The report of a run could not be written."""


class TrackingError(RatchetError, RuntimeError):
    """The tracking server refused or could not be reached."""


class RankError(RatchetError, RuntimeError):
    """One of the processes that train a model together has failed or ended."""


class LanguageServiceError(RatchetError, RuntimeError):
    """The model service could not be started, or is not the expected one."""


class StageFailedError(RatchetError, RuntimeError):
    """A stage of an experiment failed; the message names the command that resumes."""


class WorkerDiedError(RatchetError, RuntimeError):
    """A worker process of a run or a sweep was killed; a retry may succeed."""


class LanguageModelError(RatchetError, RuntimeError):
    """A service of language models refused, failed, or could not be reached."""


class ContentFilterError(LanguageModelError):
    """A service withheld a completion because of its content."""


class PromptTooLongError(LanguageModelError):
    """A prompt, with the completion that may follow, is longer than a model can read."""


class UnexpectedFinishError(LanguageModelError):
    """A completion ended for a reason that is neither its end nor its limit of tokens."""


class FineTuneError(LanguageModelError):
    """A fine-tune job failed, or cannot be created or found."""


class FineTuneRefusedError(FineTuneError):
    """A service refused to create a fine-tune job; none exists or is billed."""


class StalledJobError(LanguageModelError):
    """A fine-tune job makes no progress because its service is degraded."""


class SuiteFailedError(LanguageModelError):
    """An evaluation suite ended without a result."""


class RolloutError(RatchetError, RuntimeError):
    """Some rollouts failed; completed calls are cached."""


class MissingKeyError(RatchetError, LookupError):
    """The environment variable of an API key or a service's URL is not set."""


class PromptTemplateError(RatchetError, ValueError):
    """A system prompt's template is missing or has the wrong variables."""


class BudgetExceededError(RatchetError, RuntimeError):
    """The experiment has spent, or would spend, more than it may."""


class ChangedCodeError(RatchetError, RuntimeError):
    """Stages that cost money would be recomputed only because code changed."""


class ChangedDefaultError(RatchetError, RuntimeError):
    """Stages that cost money would be recomputed only because a default changed."""


class PricingError(RatchetError, LookupError):
    """A table of prices cannot be read, or has no price for a model."""


def explain_renamed(owner: object, name: str) -> None:
    """Raise AttributeError with Ratchet's name for an attribute, if a class of ``owner`` has one.

    ``renamed_attributes`` of a class: name in nip → advice.
    """
    for cls in type(owner).__mro__:
        hint = vars(cls).get("renamed_attributes", {}).get(name)
        if hint is not None:
            raise AttributeError(
                f"{type(owner).__name__} has no {name!r} here: {hint}. See the guide"
                ' "Coming from nip".',
                name=name,
                obj=owner,
            )


class RenamedAttributes:
    """Errors with Ratchet's name for an attribute, for code that was written for nip."""

    renamed_attributes: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # else type checkers accept every name

        def __getattr__(self, name):  # noqa: ANN001, ANN204
            explain_renamed(self, name)
            inherited = getattr(super(), "__getattr__", None)
            if inherited is not None:
                return inherited(name)
            return object.__getattribute__(self, name)  # raises the original error


USAGE_ERRORS = (
    ChangedCodeError,
    ChangedDefaultError,
    CheckPointNotFoundError,
    DataError,
    MissingKeyError,
    MissingPackageError,
    NameClashError,
    ParameterError,
    PricingError,
    PromptTemplateError,
    ProtocolSpecificationError,
    RunNotFoundError,
    UnknownNameError,
)
"""Errors caused by the user's input: retrying fails again, before or during a run."""


def shorten(text: object, limit: int = 200) -> str:
    """Return a text for a message: its start and its length if it is longer than ``limit``."""
    full_text = str(text)
    if len(full_text) <= limit:
        return full_text
    return f"{full_text[:limit]}… ({len(full_text):,} characters)"


def shown(value: object) -> str:
    """Return the ``repr`` of a value for a message, shortened by :func:`shorten`."""
    try:
        return shorten(repr(value))
    except (ValueError, RecursionError) as error:  # such as an integer of 5,000 digits
        return f"a value of type {type(value).__name__} that cannot be printed ({error})"


def kind_of(value: object) -> str:
    """Return the kind of a YAML value for a message, such as "a list"."""
    kinds = {bool: "a Boolean", int: "an integer", float: "a number", str: "text", list: "a list"}
    if isinstance(value, Mapping):
        return "a mapping"
    return "null" if value is None else kinds.get(type(value), type(value).__name__)


def nearest(name: str, available: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"``, or all sorted names if none is near."""
    names = sorted(available)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(names)}." if names else ""
