"""With a password, Prefect's server describes its API only to clients that log in."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from flows.process.prefect_server import DOCUMENTATION

STATUSES = """
import json, sys
from starlette.testclient import TestClient
from flows.process.prefect_server import create_app
client = TestClient(create_app())
paths = sys.argv[1].split(",")
print(json.dumps([[client.get(path, auth=auth).status_code for path in paths]
                  for auth in (None, ("admin", "secret"))]))
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_documentation_of_the_api_needs_the_password(tmp_path):
    paths = [*DOCUMENTATION, "/api/flows", "/ui-settings"]
    done = subprocess.run(
        [sys.executable, "-c", STATUSES, ",".join(paths)],
        env={
            **os.environ,
            "PREFECT_HOME": str(tmp_path),
            "PREFECT_SERVER_API_AUTH_STRING": "admin:secret",
            "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(tmp_path / "ui"),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    without, with_password = json.loads(done.stdout.splitlines()[-1])
    assert without == [*[401] * len(DOCUMENTATION), 401, 200], "the log-in page reads /ui-settings"
    assert with_password[: len(DOCUMENTATION)] == [200] * len(DOCUMENTATION)
