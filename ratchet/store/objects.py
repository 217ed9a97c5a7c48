"""Objects at a URL that change by compare-and-swap only, for leases and manifests.

S3 supports it since 2024 with ``If-None-Match`` and ``If-Match`` of a PUT; not every S3-compatible
server does, so support is tested before use.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import threading
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

_REFUSED = frozenset({404, 409, 412})  # gone, changing now, changed before
_READS = 5  # attempts before an interrupted response is an error
_NO_TAG = '"00000000000000000000000000000000"'


class TaggedObject(NamedTuple):
    """Text of an object, and the tag that changes with it."""

    text: bytes
    tag: str


class Objects(ABC):
    """Objects by path, changed by compare-and-swap."""

    @abstractmethod
    def read(self, path: str) -> TaggedObject | None:
        """Read an object; None if it does not exist."""

    @abstractmethod
    def create(self, path: str, text: bytes) -> str | None:
        """Write a new object and return its tag; None if it exists already."""

    @abstractmethod
    def replace(self, path: str, text: bytes, tag: str) -> str | None:
        """Write an object that still has this tag and return its new tag; None if it has not."""

    @abstractmethod
    def remove(self, path: str, tag: str) -> None:
        """Remove an object if it still has this tag, on servers that check tags."""

    def supports_conditions(self, path: str) -> bool:
        """Test at an unused path whether the server respects conditions."""
        try:
            self.create(path, b"{}")
            if self.create(path, b"{}") is not None:
                return False
            return self.replace(path, b"{}", _NO_TAG) is None
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.EINVAL):  # the server rejects the header
                return False
            raise


class S3Objects(Objects):
    """Objects of an ``s3fs.S3FileSystem``; the tag is the ETag."""

    def __init__(self, filesystem: Any) -> None:  # noqa: ANN401 -- s3fs has no types
        self._fs = filesystem

    def read(self, path: str) -> TaggedObject | None:
        """Read an object with one GET."""
        from fsspec.asyn import sync

        try:
            text, tag = sync(self._fs.loop, self._read, *self._split(path))
        except FileNotFoundError:
            return None
        return TaggedObject(text, tag)

    async def _read(self, bucket: str, key: str) -> tuple[bytes, str]:
        from s3fs.core import S3_RETRYABLE_ERRORS  # type: ignore[import-untyped]

        for left in reversed(range(_READS)):
            response = await self._fs._call_s3("get_object", Bucket=bucket, Key=key)
            try:
                return await response["Body"].read(), str(response["ETag"])
            except S3_RETRYABLE_ERRORS as error:
                if not left:
                    raise OSError(
                        errno.EIO, f"the response was interrupted: {error}", key
                    ) from error
        raise AssertionError

    def create(self, path: str, text: bytes) -> str | None:
        """PUT with ``If-None-Match: *``."""
        return self._put(path, text, IfNoneMatch="*")

    def replace(self, path: str, text: bytes, tag: str) -> str | None:
        """PUT with ``If-Match``."""
        return self._put(path, text, IfMatch=tag)

    def remove(self, path: str, tag: str) -> None:
        """DELETE with ``If-Match``, which some servers ignore."""
        bucket, key = self._split(path)
        try:
            self._fs.call_s3("delete_object", Bucket=bucket, Key=key, IfMatch=tag)
        except OSError as error:
            if not _is_refused(error):
                raise
        self._fs.invalidate_cache()

    def _put(self, path: str, text: bytes, **condition: str) -> str | None:
        bucket, key = self._split(path)
        try:
            response = self._fs.call_s3(
                "put_object", Bucket=bucket, Key=key, Body=text, **condition
            )
        except OSError as error:
            if _is_refused(error):
                return None
            raise
        return str(response["ETag"])

    def _split(self, path: str) -> tuple[str, str]:
        bucket, key, _ = self._fs.split_path(path)
        return bucket, key


class MemoryObjects(Objects):
    """Objects of fsspec's file system in this process's memory; the tag is the SHA-256."""

    _changes = threading.Lock()

    def __init__(self, filesystem: Any) -> None:  # noqa: ANN401 -- fsspec has no types
        self._fs = filesystem

    def read(self, path: str) -> TaggedObject | None:
        """Read an object."""
        try:
            text = bytes(self._fs.cat_file(path))
        except FileNotFoundError:
            return None
        return TaggedObject(text, hashlib.sha256(text).hexdigest())

    def create(self, path: str, text: bytes) -> str | None:
        """Write a new object."""
        return self._write(path, text, None)

    def replace(self, path: str, text: bytes, tag: str) -> str | None:
        """Write an object that still has this tag."""
        return self._write(path, text, tag)

    def remove(self, path: str, tag: str) -> None:
        """Remove an object that still has this tag."""
        with self._changes:
            current = self.read(path)
            if current is not None and current.tag == tag:
                self._fs.rm_file(path)
                folder = path.rpartition("/")[0]
                with contextlib.suppress(FileNotFoundError):
                    if not self._fs.find(folder):  # an object store has no empty folders
                        self._fs.rm(folder, recursive=True)

    def _write(self, path: str, text: bytes, tag: str | None) -> str | None:
        with self._changes:
            current = self.read(path)
            if (None if current is None else current.tag) != tag:
                return None
            self._fs.pipe_file(path, text)
        return hashlib.sha256(text).hexdigest()


def objects_for(filesystem: Any) -> Objects | None:  # noqa: ANN401 -- fsspec has no types
    """Return the objects of an fsspec file system; None if it has no known compare-and-swap."""
    protocol = filesystem.protocol
    names = {protocol} if isinstance(protocol, str) else set(protocol)
    if names & {"s3", "s3a"}:
        return S3Objects(filesystem)
    return MemoryObjects(filesystem) if "memory" in names else None


def _is_refused(error: OSError) -> bool:
    """Return whether a server has refused a write because its condition does not hold."""
    response = getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return isinstance(error, FileExistsError)
    if response.get("Error", {}).get("Code") == "NoSuchBucket":
        return False
    return response.get("ResponseMetadata", {}).get("HTTPStatusCode") in _REFUSED
