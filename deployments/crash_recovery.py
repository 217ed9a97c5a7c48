"""Recovery after a power cut: mark orphaned flow runs as crashed and set up automations.

``ratchet up`` runs this module in a separate process before the worker starts, because the
supervisor does not import Prefect.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from deployments.stack_services import stack_environment
from flows.process.heartbeats import ENDED, ENDING, MISSED_SECONDS
from flows.process.messages import print_plain, print_warning
from flows.process.stack_file import Stack

if TYPE_CHECKING:
    from prefect.events.schemas.automations import AutomationCore, EventTrigger

AUTOMATION = "Crash runs without heartbeats"
FAILURES = "Runs that failed"
LATE_RUNS = "Runs that are late"
STALLS = "Stages that stand still"  # stored on servers: a new name would add an automation
_ENDS = ("Completed", "Failed", "Cancelled", "Crashed")


def recover(home: Path, stack: Stack) -> None:
    """Mark flow runs orphaned by an earlier stack as crashed; create or update the automations."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "deployments.crash_recovery"],
        env=stack_environment(home, stack),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print_warning(
            "Flow runs of an earlier stack may still be Running in Prefect and block their"
            f" schedules: searching for them failed.\n{done.stderr[-2000:]}"
        )
    elif done.stdout:
        print_plain(done.stdout.rstrip())


def apply_automations() -> None:
    """Create or update the automations; keep actions and switches that users have set.

    Exception: the automation that crashes runs must not force states, as earlier versions did.
    """
    from prefect.client.orchestration import get_client
    from prefect.events.actions import ChangeFlowRunState

    with get_client(sync_client=True) as client:
        for automation in automations():
            existing = client.read_automations_by_name(automation.name)
            if not existing:
                client.create_automation(automation)
                continue
            actions = existing[0].actions
            if automation.name == AUTOMATION:
                actions = [
                    each.model_copy(update={"force": False})
                    if isinstance(each, ChangeFlowRunState)
                    else each
                    for each in actions
                ]
            retained = {"enabled": existing[0].enabled, "actions": actions}
            client.update_automation(existing[0].id, automation.model_copy(update=retained))


def automations() -> list[AutomationCore]:
    """Return the automations for runs that died, failed, are late, or stall.

    The first crashes the run, without force: the server then does not change a terminal state, for
    example of a custom flow without the events of :mod:`flows.process.heartbeats`. The others only
    write to the event feed until a user adds an action in the UI, such as a notification.
    """
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState, DoNothing
    from prefect.events.schemas.automations import AutomationCore

    heartbeat = "prefect.flow-run.heartbeat"
    ends = (f"prefect.flow-run.{name}" for name in (*_ENDS, "Paused", "Suspended"))
    return [
        AutomationCore(
            name=AUTOMATION,
            description="Crash a run that sends no heartbeats and has neither ended nor paused.",
            trigger=_trigger(
                {heartbeat, ENDING, ENDED, *ends},
                after={heartbeat, ENDING},
                within=timedelta(seconds=MISSED_SECONDS),
            ),
            actions=[
                ChangeFlowRunState(state=StateType.CRASHED, message="Its heartbeats stopped.")
            ],
        ),
        AutomationCore(
            name=FAILURES,
            description="A run has failed or crashed. Add an action, such as a notification.",
            trigger=_trigger({"prefect.flow-run.Failed", "prefect.flow-run.Crashed"}),
            actions=[DoNothing()],
        ),
        AutomationCore(
            name=LATE_RUNS,
            description="No worker has started a run in time. Add an action, such as a message.",
            trigger=_trigger({"prefect.flow-run.Late"}),
            actions=[DoNothing()],
        ),
        AutomationCore(
            name=STALLS,
            description="A stage has stopped making progress. Add an action, such as a message.",
            trigger=_trigger({"ratchet.stage.stalled"}, resource_pattern="ratchet.stage.*"),
            actions=[DoNothing()],
        ),
    ]


def _trigger(
    expect: set[str],
    after: set[str] | None = None,
    within: timedelta = timedelta(0),
    resource_pattern: str = "prefect.flow-run.*",
) -> EventTrigger:
    """Return a trigger per flow run on expected events, or on their absence after others."""
    from prefect.events.schemas.automations import EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    return EventTrigger(
        after=after or set(),
        expect=expect,
        match=ResourceSpecification({"prefect.resource.id": [resource_pattern]}),
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive if after else Posture.Reactive,
        threshold=1,
        within=within,
    )


def main() -> None:
    """Apply the automations and, without ``--automation``, crash orphaned flow runs."""
    apply_automations()
    if "--automation" in sys.argv[1:]:
        return
    from flows.process.flow_runs import crash_orphaned_flow_runs

    for name in crash_orphaned_flow_runs():
        print_plain(f"Crashed  {name}: its process or worker is gone; its schedule continues")


if __name__ == "__main__":
    main()
