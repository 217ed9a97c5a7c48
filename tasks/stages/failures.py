"""Failures of stages: which are worth a retry, and how they are reported."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import (
    BudgetExceededError,
    CustomCodeError,
    DataError,
    FineTuneError,
    MissingKeyError,
    MissingPackageError,
    OutOfMemoryError,
    ParameterError,
    PromptTooLongError,
    RatchetError,
    RolloutError,
    StageFailedError,
    StageKeyError,
    StalledJobError,
    TaskCodeError,
    UnknownNameError,
)
from ratchet.lazy import explain_missing
from ratchet.plugins import causes, custom_code_location
from ratchet.store.backend import FULL_DISK, store_error

if TYPE_CHECKING:
    from tasks.stages.calls import StageCall


class PrefetchFailedError(StageFailedError):
    """A stage failed on whose result a concurrent stage was waiting."""


_DETERMINISTIC = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(NameError, NotImplementedError, SyntaxError, TypeError),
)
"""Bugs in code, which fail again in every attempt."""
_NOT_WORTH_A_RETRY = (
    BudgetExceededError,
    CustomCodeError,
    DataError,
    FineTuneError,
    MissingKeyError,
    MissingPackageError,
    OutOfMemoryError,
    ParameterError,
    PrefetchFailedError,
    PromptTooLongError,
    StageKeyError,
    StalledJobError,
    UnknownNameError,
)
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
_LESS_MEMORY = (
    "Reduce the parameters that set the sizes of tensors: rl.frames_per_batch and"
    " rl.minibatch_size, the agents' widths (agents.NAME.d_…), the number of datapoints, for images"
    " settings.pretrained_embeddings_batch_size; or use a machine with more memory."
)
_LESS_MEMORY_FOR_TEXT = (
    "Set language.micro_batch_size, settings.recompute_activations=true or"
    " agents.NAME.precision=bfloat16, limit agents.NAME.max_tokens, train an adapter"
    " (agents.NAME.lora.rank); or use a machine with more memory."
)


def could_succeed(error: Exception) -> bool:
    """Return whether another attempt could succeed."""
    return not any(
        isinstance(each, _NOT_WORTH_A_RETRY)
        or (isinstance(each, _DETERMINISTIC) and not isinstance(each, RatchetError))
        or (isinstance(each, OSError) and each.errno in FULL_DISK)
        for each in causes(error)
    )


@contextmanager
def explained(call: StageCall) -> Iterator[None]:
    """Re-raise errors that every attempt would repeat as RatchetErrors that explain them."""
    try:
        yield
    except ImportError as error:
        missing = explain_missing(error)
        if missing is None:
            raise
        raise missing from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RatchetError) or not _is_out_of_memory(error):
            raise
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        is_text = call.parameters.get("scenario") == "language_task"
        advice = _LESS_MEMORY_FOR_TEXT if is_text else _LESS_MEMORY
        raise OutOfMemoryError(f"{call.label}: out of memory ({first_line}). {advice}") from error
    except (*_DETERMINISTIC, RolloutError, TaskCodeError) as error:
        location = custom_code_location(error)
        if location is None or could_succeed(error):
            raise
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        raise CustomCodeError(
            f"{call.label}: {type(error).__name__}: {error}{notes}\nCorrect the code and resume"
            " the run, which keeps finished stages; the same command recomputes those that use this"
            f" code. Raised at\n{location}"
        ) from error


@contextmanager
def full_disk_explained(call: StageCall, folder: Path) -> Iterator[None]:
    """Raise StoreError if a file system is too full for a stage's files, or its temporary ones.

    Libraries raise their own errors with the system's text, some without the file's name.
    """
    try:
        yield
    except RatchetError:
        raise
    except Exception as error:
        texts = " ".join(map(str, causes(error)))
        for number in FULL_DISK:
            if (reason := os.strerror(number)) in texts:
                names = [each.filename for each in causes(error) if isinstance(each, OSError)]
                file = next(filter(None, names), _fuller(folder, tempfile.gettempdir()))
                full = OSError(number, reason, str(file))
                raise store_error(f"write {call.label}", folder, full) from error
        raise


def _fuller(*folders: Path | str) -> Path | str:
    """Return the folder whose file system has the least space."""
    return min(folders, key=lambda folder: shutil.disk_usage(folder).free)


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether memory did not suffice: torch raises RuntimeErrors that differ by device."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY)
