"""What is done about a rollout that fails: its environment or evaluator raised an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ratchet.errors import DataError, RatchetError, RolloutError, TaskCodeError
from ratchet.plugins import custom_code_location

_TRANSIENT = (OSError, EOFError)
"""What may go well another time: the network's errors are among them."""


@contextmanager
def blamed(who: str, task_id: str) -> Iterator[None]:
    """Say of an error of somebody's code whose it is, and with which task it was raised.

    Raises
    ------
    TaskCodeError
        For what would be raised again.
    RolloutError
        For what may go well another time.
    """
    try:
        yield
    except (RatchetError, MemoryError):
        raise
    except Exception as error:
        kind = RolloutError if isinstance(error, _TRANSIENT) else TaskCodeError
        raise kind(
            f"{who}, task {task_id!r}: {type(error).__name__}: {error}"
            f" ({custom_code_location(error)}). Correct it; language.failures says what is done"
            " about an episode that fails."
        ) from error


class FailurePolicy:
    """What is done about a rollout that fails; the base lets its error travel."""

    drops: bool = False
    """Whether a rollout that failed for good is left out; else its error travels."""

    def plays_again(self, num_failures: int) -> bool:
        """Return whether a rollout is played again that has failed that often."""
        return False

    def check_group(self, group_id: str, left: int, size: int) -> None:
        """Check that enough of a group is left. Raises DataError if not."""


class FailFast(FailurePolicy):
    """The first failure ends it all."""


@dataclass(frozen=True)
class Retry(FailurePolicy):
    """A rollout is played again, with other seeds, up to ``num_retries`` times."""

    num_retries: int

    def plays_again(self, num_failures: int) -> bool:
        """Return whether there are tries left."""
        return num_failures <= self.num_retries


@dataclass(frozen=True)
class AtLeast(FailurePolicy):
    """A rollout that failed is left out, where ``fewest`` of its group are left."""

    fewest: int
    drops = True

    def check_group(self, group_id: str, left: int, size: int) -> None:
        """Check that there are enough; all, in a group that never had as many."""
        wanted = min(self.fewest, size)
        if left < wanted:
            raise DataError(
                f"group {group_id}: {size - left} of {size} rollouts failed, expected at least"
                f" {wanted} that did not. The log has their errors."
            )
