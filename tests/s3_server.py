"""S3 server for tests: moto over HTTP, which records requests and executes one at a time."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer

BUCKET = "ratchet"


class S3Server:
    """Server at ``url``; ``requests`` contains those since the last :meth:`forget`."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._server: BaseWSGIServer | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for client processes."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",  # pragma: allowlist secret
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def forget(self) -> None:
        self.requests.clear()

    def asked(self, part: str) -> list[str]:
        """Return the requests that contain ``part``."""
        return [request for request in self.requests if part in request]

    @contextmanager
    def with_a_bucket(self) -> Iterator[S3Server]:
        """Serve with a bucket, and set this process's environment for it."""
        import boto3
        from s3fs import S3FileSystem  # type: ignore[import-untyped]

        with self.serving():
            before = dict(os.environ)
            os.environ.update(self.environment)
            S3FileSystem.clear_instance_cache()  # cached clients use a different server
            boto3.client("s3").create_bucket(Bucket=BUCKET)
            try:
                yield self
            finally:
                os.environ.clear()
                os.environ.update(before)

    @contextmanager
    def serving(self) -> Iterator[S3Server]:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        app, one = DomainDispatcherApplication(create_backend_app), threading.Lock()

        def counted(environ: dict[str, Any], start_response: Any) -> Any:
            query = environ.get("QUERY_STRING", "")
            with one:  # S3's conditional writes are atomic, moto's are not
                self.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} {query}")
                return list(app(environ, start_response))

        logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it logs each request
        self._server = make_server("127.0.0.1", 0, counted, threaded=True)
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
