"""Every error that Ratchet raises on purpose.

The bottom of the house: everything may import this module, it imports nothing.
Each error is also a standard one, so that callers who know nothing of Ratchet catch it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar


class RatchetError(Exception):
    """Base of all errors that Ratchet raises on purpose."""


class ParameterError(RatchetError, ValueError):
    """A parameter is unknown, has the wrong type, or does not fit the others."""


class MissingPackageError(RatchetError, ImportError):
    """A package that an experiment needs is not installed; the message says how to install it."""


class OutOfMemoryError(RatchetError, MemoryError):
    """A stage asked for more memory than there is, and would again; the message says what to do."""


class NameClashError(RatchetError, ImportError):
    """Another package of the same name hides one of Ratchet's."""


class UnknownNameError(RatchetError, LookupError):
    """A name (of a trainer, protocol, scenario, section …) is not registered."""


class ProtocolSpecificationError(RatchetError, ValueError):
    """A protocol contradicts itself, e.g. an agent acts in a channel it can't see."""


class DataError(RatchetError, ValueError):
    """A dataset cannot be made, read or matched with what is asked of it."""


class TaskCodeError(DataError):
    """An evaluator or an environment raised an error of its own, and would again."""


class CustomCodeError(RatchetError, RuntimeError):
    """A user's trainer, scenario or evaluator has a mistake, and would fail the same way again."""


class KeyPathError(RatchetError, KeyError):
    """A nested dictionary has nothing at a key path, or something else than what is asked for."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ArrayShapeError(RatchetError, ValueError):
    """An array has another shape than the place where it is put."""


class ArrayTypeError(RatchetError, TypeError):
    """An array holds another type of values than the place where it is put."""


class BatchIndexError(RatchetError, IndexError):
    """An index does not fit the batch dimensions of a nested dictionary of arrays."""


class SandboxError(RatchetError, RuntimeError):
    """Programs that must not run in this process can't be run in another one either."""


class StageKeyError(RatchetError, TypeError):
    """The key of a stage cannot be computed, so its result could never be found again."""


class StoreError(RatchetError, OSError):
    """The stage store cannot be read or written; nothing half-written is left behind."""


class DamagedStageError(StoreError):
    """A stored stage does not match its manifest."""


class RunNotFoundError(RatchetError, LookupError):
    """No run of that name lies in the runs folder."""


class RunStateError(RatchetError, RuntimeError):
    """A run that would have to be running is not, or the reverse."""


class RunPrunedError(RatchetError, RuntimeError):
    """The sweep that a run belongs to has decided that it trains no further."""


class CheckPointNotFoundError(RatchetError, FileNotFoundError):
    """A saved state that was asked for is not there."""


class StateError(RatchetError, ValueError):
    """A saved trainer state does not fit the trainer that loads it."""


class TrackingError(RatchetError, RuntimeError):
    """The tracking server refused or could not be reached."""


class RankError(RatchetError, RuntimeError):
    """One of the processes that train a model together has failed or ended."""


class LanguageServiceError(RatchetError, RuntimeError):
    """The model service could not be started, or is not the one that was meant."""


class StageFailedError(RatchetError, RuntimeError):
    """A stage of an experiment failed; the message names the command that resumes."""


class WorkerDiedError(RatchetError, RuntimeError):
    """A process that worked for a run or a sweep was ended from outside; another one may do it."""


class LanguageModelError(RatchetError, RuntimeError):
    """A service of language models refused, failed, or could not be reached."""


class ContentFilterError(LanguageModelError):
    """A service withheld a completion because of its content."""


class PromptTooLongError(LanguageModelError):
    """A prompt, with the completion that may follow, is longer than a model can read."""


class UnexpectedFinishError(LanguageModelError):
    """A completion ended for a reason that is neither its end nor its limit of tokens."""


class FineTuneError(LanguageModelError):
    """A fine-tune job failed, or cannot be made or found."""


class FineTuneRefusedError(FineTuneError):
    """A service refused to make a fine-tune job: there is none, and it costs nothing."""


class StalledJobError(LanguageModelError):
    """A fine-tune job makes no progress, since something is wrong with its service."""


class SuiteFailedError(LanguageModelError):
    """An evaluation suite ended without a result."""


class RolloutError(RatchetError, RuntimeError):
    """Some rollouts could not be played; the calls that were answered are kept."""


class MissingKeyError(RatchetError, LookupError):
    """An environment variable that should hold an API key or a service's URL isn't set."""


class PromptTemplateError(RatchetError, ValueError):
    """A system prompt's template is missing, or its variables are not those it should have."""


class BudgetExceededError(RatchetError, RuntimeError):
    """The experiment has spent, or would spend, more than it may."""


class PricingError(RatchetError, LookupError):
    """A table of prices cannot be read, or has no price for a model."""


class CalledHere:
    """Says what an attribute is called here, to code that was written for an earlier system.

    ``called_here`` of a class: the name there → what to write instead.
    """

    called_here: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # else every name would seem to be there

        def __getattr__(self, name):  # noqa: ANN001, ANN204
            for cls in type(self).__mro__:
                hint = vars(cls).get("called_here", {}).get(name)
                if hint is not None:
                    raise AttributeError(
                        f"{type(self).__name__} has no {name!r} here: {hint}. See the guide"
                        ' "Coming from nip".',
                        name=name,
                        obj=self,
                    )
            inherited = getattr(super(), "__getattr__", None)
            if inherited is not None:
                return inherited(name)
            return object.__getattribute__(self, name)  # raises what was raised before


USAGE_ERRORS = (
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
"""What is wrong with what was asked for: the same again fails again, before or in a run."""


def shorten(text: object, limit: int = 200) -> str:
    """Return a text for a message: its start and its length if it is longer than ``limit``."""
    whole = str(text)
    if len(whole) <= limit:
        return whole
    return f"{whole[:limit]}… ({len(whole):,} characters)"


def shown(value: object) -> str:
    """Return the ``repr`` of a value for a message, shortened by :func:`shorten`."""
    try:
        return shorten(repr(value))
    except (ValueError, RecursionError) as error:  # such as an integer of 5,000 digits
        return f"a value of type {type(value).__name__} that cannot be printed ({error})"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"``, or the sorted list of known names when none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(names)}." if names else ""
