"""Heartbeats of flow runs: their interval, when they are missed, and the end of a flow run.

The only place that sets the interval: :mod:`flows.process.environment` passes it to processes in
which runs start, ``ratchet deploy`` and the work-pool runner to the runs of workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State
    from prefect.flows import Flow, FlowStateHook

_INTERVAL_SECONDS = 60
HEARTBEAT_VARIABLES = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(_INTERVAL_SECONDS)}
"""Environment of processes in which flow runs start."""
MISSED_SECONDS = 10 * _INTERVAL_SECONDS
"""Seconds without a heartbeat after which a flow run is considered lost.

A process on a busy machine, or a server that restarts, is late by minutes rather than by nine
heartbeats; flow runs with Prefect's own interval of 180 seconds may still miss two.
"""
ENDING, ENDED = "ratchet.flow-run.ending", "ratchet.flow-run.ended"
"""Events that a flow run emits after its last heartbeat, the second as the successor of the first.

Prefect sends heartbeats through a queue of the process, but states directly, and its server handles
two events at a time. A heartbeat may thus be handled after the final state, so that another one is
expected. The server handles an event only after the one that it follows, and ignores events older
than the last heartbeat: the first event counts as one, and the second ends the expectation.
"""


class EndHooks(TypedDict):
    """Hooks of a flow for each final state."""

    on_completion: list[FlowStateHook[..., Any]]
    on_failure: list[FlowStateHook[..., Any]]
    on_cancellation: list[FlowStateHook[..., Any]]
    on_crashed: list[FlowStateHook[..., Any]]


def emit_end(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Emit the events of a flow run that has ended; a hook of Prefect."""
    from prefect.events import emit_event

    resource = {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}"}
    emit_event(ENDED, resource, follows=emit_event(ENDING, resource))


END_HOOKS: EndHooks = {
    "on_completion": [emit_end],
    "on_failure": [emit_end],
    "on_cancellation": [emit_end],
    "on_crashed": [emit_end],
}
"""Arguments of ``@flow`` for every flow of the project."""
