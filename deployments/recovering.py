"""What a server needs to outlive a power cut: lost runs crash, and an automation finds later ones.

``ratchet up`` runs this module in a process of its own before the worker starts, since the
supervisor does not import Prefect.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from deployments.parts import HEARTBEAT_SECONDS, stack_environment
from flows.process.messages import print_plain, print_warning
from flows.process.stack_file import Stack

AUTOMATION = "Crash runs without heartbeats"
_MISSED = 5  # as many heartbeats may be missing: a machine may be asleep, or very busy


def recover(home: Path, stack: Stack) -> None:
    """Crash the runs that were lost with an earlier stack; have later ones found by the server."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "deployments.recovering"],
        env=stack_environment(home, stack),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print_warning(
            "Flow runs of an earlier stack may still be Running in Prefect, and hold up their"
            f" schedules: looking for them failed.\n{done.stderr[-2000:]}"
        )
    elif done.stdout:
        print_plain(done.stdout.rstrip())


def apply_automation() -> None:
    """Make, or bring up to date, the automation that crashes runs whose heartbeats stay away."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    heartbeat = "prefect.flow-run.heartbeat"
    ends = (f"prefect.flow-run.{name}" for name in ("Completed", "Failed", "Cancelled", "Crashed"))
    wanted = AutomationCore(
        name=AUTOMATION,
        description="A run that has sent heartbeats and then neither one nor its end is gone.",
        trigger=EventTrigger(
            after={heartbeat},
            expect={heartbeat, *ends},
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=_MISSED * HEARTBEAT_SECONDS),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED, message="Its heartbeats stayed away.", force=True
            )
        ],
    )
    with get_client(sync_client=True) as client:
        known = client.read_automations_by_name(AUTOMATION)
        if known:
            client.update_automation(known[0].id, wanted)
        else:
            client.create_automation(wanted)


def main() -> None:
    """Apply the automation; unless it is to be alone, crash lost runs and say which."""
    apply_automation()
    if "--automation" in sys.argv[1:]:
        return
    from flows.process.lost_runs import crash_lost_runs

    for name in crash_lost_runs(pool_is_here=True):
        print_plain(f"Crashed  {name}: no process works on it any more; its schedule goes on")


if __name__ == "__main__":
    main()
