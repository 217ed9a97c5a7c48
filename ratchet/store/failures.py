"""Turn what the operating system says about a store into an error that says what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

from ratchet.errors import RatchetError, StoreError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_IN_THE_WAY = frozenset({errno.ENOTDIR, errno.EEXIST, errno.EISDIR})
UNWRITABLE = _FULL | {errno.EROFS, errno.EFBIG, errno.EIO}
"""Errors that come from where the files lie, and not from who writes them."""


def store_error(action: str, place: object, error: OSError) -> StoreError:
    """Describe a failure of the file system below a store; ``action`` stands after "could not"."""
    code = errno.errorcode.get(error.errno or 0, type(error).__name__)
    reason = error.strerror or str(error) or type(error).__name__
    at = f" (at {error.filename})" if error.filename and str(error.filename) != str(place) else ""
    result = StoreError(
        f"could not {action} in {place}: {reason} [{code}]{at}. Nothing half-written counts as"
        f" finished. {_advice(error.errno)} Then run the same command again: finished stages"
        " are kept."
    )
    result.errno = error.errno
    return result


@contextlib.contextmanager
def store_errors(action: str, place: object) -> Iterator[None]:
    """Raise :class:`StoreError` for what the system or S3's client refuses inside the block."""
    try:
        yield
    except RatchetError:
        raise
    except OSError as error:
        raise store_error(action, place, error) from error
    except Exception as error:
        if not _is_of_s3(error):
            raise
        wrapped = OSError(errno.EIO, f"{type(error).__name__}: {error}")
        raise store_error(action, place, wrapped) from error


def _is_of_s3(error: Exception) -> bool:
    """Whether an error is of S3's client, whose errors are not the system's; never imports it."""
    module = sys.modules.get("botocore.exceptions")
    return module is not None and isinstance(error, module.BotoCoreError)


def _advice(number: int | None) -> str:
    if number in _FULL:
        return "Free space there, or choose another place with the setting `store`."
    if number in _FORBIDDEN:
        return "Make it writable for you, or choose another place with the setting `store`."
    if number in _IN_THE_WAY:
        return (
            "A file stands where a folder should be: move it away, or choose another place with"
            " the setting `store`."
        )
    if number == errno.EFBIG:
        return "A limit on file sizes is in force (`ulimit -f`): raise it."
    if number in (errno.EMFILE, errno.ENFILE):
        return "Too many files are open: raise the limit (`ulimit -n`)."
    hint = f" ({os.strerror(number)})" if number else ""
    return f"Mend that{hint}, or choose another place with the setting `store`."
