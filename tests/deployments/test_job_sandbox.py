"""A Kubernetes job's command with the template's mounts: everything else is read-only.

No cluster: a mount namespace with the template's writable paths, below a separate folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.s3_server import BUCKET, S3Server
from tests.tasks.phased import PARAMETERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TEMPLATE = Path(__file__).parents[2] / "deployments" / "kubernetes" / "base_job_template.json"
SCRIPT = """
set -e
mount --make-rprivate /
for folder in $WRITABLE; do mount --bind "$folder" "$folder"; done
mount -o remount,bind,ro /
if touch "$HOME/forbidden" 2> /dev/null; then echo "the root can be written" >&2; exit 3; fi
exec "$@"
"""


class Pod:
    """Writable paths and variables of a pod created from the template."""

    def __init__(self, root: Path) -> None:
        template = json.loads(TEMPLATE.read_text())
        manifest = template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
        mounts = manifest["containers"][0]["volumeMounts"]
        self.root = root
        self.writable = [self.inside(mount["mountPath"]) for mount in mounts]
        kinds = {volume["name"]: volume for volume in manifest["volumes"]}
        self.temporary = [
            self.inside(mount["mountPath"])
            for mount in mounts
            if "emptyDir" in kinds[mount["name"]]
        ]
        for folder in self.writable:
            folder.mkdir(parents=True)
        values = template["variables"]["properties"]["env"]["default"]
        self.environment = {
            **os.environ,
            **{name: value.replace("/", f"{root}/", 1) for name, value in values.items()},
            "HOME": str(root / "work"),
            "TMPDIR": str(root / "tmp"),
            "WRITABLE": " ".join(map(str, self.writable)),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def inside(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def run(self, *arguments: str, **environment: str) -> str:
        """Run `ratchet` in a new pod: only volume claims persist from the previous one."""
        for folder in self.temporary:
            shutil.rmtree(folder)
            folder.mkdir()
        ratchet = [str(Path(sys.executable).with_name("ratchet")), *arguments]
        done = subprocess.run(
            ["unshare", "--mount", "bash", "-c", SCRIPT, "bash", *ratchet],
            cwd=self.root / "work",
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("no mount namespaces here: unshare needs root")
    pod = Pod(tmp_path / "pod")
    parameters: dict[str, Any] = {**PARAMETERS, "pretrain_agents": False}
    parameters["rl"] = {**parameters["rl"], "num_iterations": 2}
    settings = {"tracking": False, "progress": "none"}
    text = yaml.safe_dump({**parameters, "settings": settings})
    (pod.root / "work" / "tiny.yaml").write_text(text)
    return pod


@pytest.mark.in_turn(2, of="deployments")
def test_a_restarted_pod_reuses_its_stages_without_s3(pod: Pod) -> None:
    pod.run("run", "tiny.yaml")
    assert "0 computed" in pod.run("run", "tiny.yaml")


@pytest.mark.exhaustive
def test_copies_and_locks_of_an_s3_store_are_in_writable_folders(pod: Pod) -> None:
    server = S3Server()
    with server.with_a_bucket():
        store = f"settings.store=s3://{BUCKET}/store"
        pod.run("run", "tiny.yaml", store, **server.environment)
        assert "0 computed" in pod.run("run", "tiny.yaml", store, **server.environment)
