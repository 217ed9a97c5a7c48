"""What a server needs to outlive a power cut: lost runs crash, and automations find later ones.

``ratchet up`` runs this module in a process of its own before the worker starts, since the
supervisor does not import Prefect.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from deployments.parts import HEARTBEAT_SECONDS, stack_environment
from flows.process.messages import print_plain, print_warning
from flows.process.stack_file import Stack

if TYPE_CHECKING:
    from prefect.events.schemas.automations import AutomationCore, EventTrigger

AUTOMATION = "Crash runs without heartbeats"
FAILURES = "Runs that failed"
LATE_RUNS = "Runs that are late"
STALLS = "Stages that stand still"
_ENDS = ("Completed", "Failed", "Cancelled", "Crashed")
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


def apply_automations() -> None:
    """Make the automations, or bring them up to date; what somebody has them do is kept.

    Except that earlier versions forced states: the automation that crashes runs must not.
    """
    from prefect.client.orchestration import get_client
    from prefect.events.actions import ChangeFlowRunState

    with get_client(sync_client=True) as client:
        for wanted in automations():
            known = client.read_automations_by_name(wanted.name)
            if not known:
                client.create_automation(wanted)
                continue
            actions = known[0].actions
            if wanted.name == AUTOMATION:
                actions = [
                    each.model_copy(update={"force": False})
                    if isinstance(each, ChangeFlowRunState)
                    else each
                    for each in actions
                ]
            chosen = {"enabled": known[0].enabled, "actions": actions}
            client.update_automation(known[0].id, wanted.model_copy(update=chosen))


def automations() -> list[AutomationCore]:
    """Return what the server is to watch: runs that died, failed, are late, or stand still.

    The first crashes the run, without force: a heartbeat may arrive after the event that ended the
    run, and the server then refuses to change a terminal state. The others only note it in the
    event feed, until somebody gives them an action in the UI, such as a notification.
    """
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState, DoNothing
    from prefect.events.schemas.automations import AutomationCore

    heartbeat = "prefect.flow-run.heartbeat"
    ends = (f"prefect.flow-run.{name}" for name in (*_ENDS, "Paused", "Suspended"))
    return [
        AutomationCore(
            name=AUTOMATION,
            description="A run whose heartbeats stay away, without end or pause, is gone.",
            trigger=_trigger(
                {heartbeat, *ends},
                after={heartbeat},
                within=timedelta(seconds=_MISSED * HEARTBEAT_SECONDS),
            ),
            actions=[
                ChangeFlowRunState(state=StateType.CRASHED, message="Its heartbeats stayed away.")
            ],
        ),
        AutomationCore(
            name=FAILURES,
            description="A run has failed or crashed. Give it an action, such as a notification.",
            trigger=_trigger({"prefect.flow-run.Failed", "prefect.flow-run.Crashed"}),
            actions=[DoNothing()],
        ),
        AutomationCore(
            name=LATE_RUNS,
            description="No worker has taken a run in time. Give it an action, such as a message.",
            trigger=_trigger({"prefect.flow-run.Late"}),
            actions=[DoNothing()],
        ),
        AutomationCore(
            name=STALLS,
            description="A stage gives no sign of life. Give it an action, such as a message.",
            trigger=_trigger({"ratchet.stage.stalled"}, about="ratchet.stage.*"),
            actions=[DoNothing()],
        ),
    ]


def _trigger(
    expect: set[str],
    after: set[str] | None = None,
    within: timedelta = timedelta(0),
    about: str = "prefect.flow-run.*",
) -> EventTrigger:
    """Return a trigger for each flow run: events that come, or after some others stay away."""
    from prefect.events.schemas.automations import EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    return EventTrigger(
        after=after or set(),
        expect=expect,
        match=ResourceSpecification({"prefect.resource.id": [about]}),
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive if after else Posture.Reactive,
        threshold=1,
        within=within,
    )


def main() -> None:
    """Apply the automations; unless they are to be alone, crash lost runs and say which."""
    apply_automations()
    if "--automation" in sys.argv[1:]:
        return
    from flows.process.lost_runs import crash_lost_runs

    for name in crash_lost_runs(pool_is_here=True):
        print_plain(f"Crashed  {name}: no process works on it any more; its schedule goes on")


if __name__ == "__main__":
    main()
