"""Small objects that change only if they are what one saw last: compare and swap at a URL.

Leases and manifests stand on it. S3 has it since 2024 as ``If-None-Match`` and ``If-Match`` of a
PUT; not every server that speaks S3 does, so that it is tried before it is relied upon.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import threading
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

_REFUSED = frozenset({404, 409, 412})  # gone, changed at this moment, changed before
_READS = 5  # tries before an answer that breaks off is an error
_NO_TAG = '"00000000000000000000000000000000"'


class Stored(NamedTuple):
    """An object's text, and the tag that changes with it."""

    text: bytes
    tag: str


class Objects(ABC):
    """Objects by path, changed by compare and swap."""

    @abstractmethod
    def read(self, path: str) -> Stored | None:
        """Read an object; None if there is none."""

    @abstractmethod
    def create(self, path: str, text: bytes) -> str | None:
        """Write an object that is not there, and return its tag; None if there is one."""

    @abstractmethod
    def replace(self, path: str, text: bytes, tag: str) -> str | None:
        """Write an object that still has this tag, and return its new one; None if it has not."""

    @abstractmethod
    def remove(self, path: str, tag: str) -> None:
        """Remove an object, if it still has this tag where the server can tell."""

    def keep_their_word(self, path: str) -> bool:
        """Try, at a path for nothing else, whether conditions are kept."""
        try:
            self.create(path, b"{}")
            if self.create(path, b"{}") is not None:
                return False
            return self.replace(path, b"{}", _NO_TAG) is None
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.EINVAL):  # the server does not know the header
                return False
            raise


class S3Objects(Objects):
    """Objects of an ``s3fs.S3FileSystem``; the tag is the ETag."""

    def __init__(self, filesystem: Any) -> None:  # noqa: ANN401 -- s3fs has no types
        self._fs = filesystem

    def read(self, path: str) -> Stored | None:
        """Read an object with one GET."""
        from fsspec.asyn import sync

        try:
            text, tag = sync(self._fs.loop, self._read, *self._place(path))
        except FileNotFoundError:
            return None
        return Stored(text, tag)

    async def _read(self, bucket: str, key: str) -> tuple[bytes, str]:
        from s3fs.core import S3_RETRYABLE_ERRORS  # type: ignore[import-untyped]

        for left in reversed(range(_READS)):
            answer = await self._fs._call_s3("get_object", Bucket=bucket, Key=key)
            try:
                return await answer["Body"].read(), str(answer["ETag"])
            except S3_RETRYABLE_ERRORS as error:
                if not left:
                    raise OSError(errno.EIO, f"the answer broke off: {error}", key) from error
        raise AssertionError

    def create(self, path: str, text: bytes) -> str | None:
        """PUT with ``If-None-Match: *``."""
        return self._put(path, text, IfNoneMatch="*")

    def replace(self, path: str, text: bytes, tag: str) -> str | None:
        """PUT with ``If-Match``."""
        return self._put(path, text, IfMatch=tag)

    def remove(self, path: str, tag: str) -> None:
        """DELETE with ``If-Match``, which servers that do not know it overlook."""
        bucket, key = self._place(path)
        try:
            self._fs.call_s3("delete_object", Bucket=bucket, Key=key, IfMatch=tag)
        except OSError as error:
            if not _is_refused(error):
                raise
        self._fs.invalidate_cache()

    def _put(self, path: str, text: bytes, **condition: str) -> str | None:
        bucket, key = self._place(path)
        try:
            answer = self._fs.call_s3("put_object", Bucket=bucket, Key=key, Body=text, **condition)
        except OSError as error:
            if _is_refused(error):
                return None
            raise
        return str(answer["ETag"])

    def _place(self, path: str) -> tuple[str, str]:
        bucket, key, _ = self._fs.split_path(path)
        return bucket, key


class MemoryObjects(Objects):
    """Objects of fsspec's file system in this process's memory; the tag is the SHA-256."""

    _changes = threading.Lock()

    def __init__(self, filesystem: Any) -> None:  # noqa: ANN401 -- fsspec has no types
        self._fs = filesystem

    def read(self, path: str) -> Stored | None:
        """Read an object."""
        try:
            text = bytes(self._fs.cat_file(path))
        except FileNotFoundError:
            return None
        return Stored(text, hashlib.sha256(text).hexdigest())

    def create(self, path: str, text: bytes) -> str | None:
        """Write an object that is not there."""
        return self._write(path, text, None)

    def replace(self, path: str, text: bytes, tag: str) -> str | None:
        """Write an object that still has this tag."""
        return self._write(path, text, tag)

    def remove(self, path: str, tag: str) -> None:
        """Remove an object that still has this tag."""
        with self._changes:
            found = self.read(path)
            if found is not None and found.tag == tag:
                self._fs.rm_file(path)
                folder = path.rpartition("/")[0]
                with contextlib.suppress(FileNotFoundError):
                    if not self._fs.find(folder):  # an object store has no empty folders
                        self._fs.rm(folder, recursive=True)

    def _write(self, path: str, text: bytes, tag: str | None) -> str | None:
        with self._changes:
            found = self.read(path)
            if (None if found is None else found.tag) != tag:
                return None
            self._fs.pipe_file(path, text)
        return hashlib.sha256(text).hexdigest()


def objects_of(filesystem: Any) -> Objects | None:  # noqa: ANN401 -- fsspec has no types
    """Return the objects of an fsspec file system; None if it has no compare and swap we know."""
    protocol = filesystem.protocol
    names = {protocol} if isinstance(protocol, str) else set(protocol)
    if names & {"s3", "s3a"}:
        return S3Objects(filesystem)
    return MemoryObjects(filesystem) if "memory" in names else None


def _is_refused(error: OSError) -> bool:
    """Whether a server has said that the condition does not hold."""
    answer = getattr(error.__cause__, "response", None)
    if not isinstance(answer, dict):
        return isinstance(error, FileExistsError)
    if answer.get("Error", {}).get("Code") == "NoSuchBucket":
        return False
    return answer.get("ResponseMetadata", {}).get("HTTPStatusCode") in _REFUSED
