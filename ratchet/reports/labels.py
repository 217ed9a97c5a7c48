"""How a report calls its arms."""

from ratchet.tracking.manifest import MAIN_ARM


def arm_label(run_id: str, arm: str, *, several: bool) -> str:
    """Name an arm: by itself in a report of one run, by its run where several are compared."""
    if not several:
        return arm
    return run_id if arm == MAIN_ARM else f"{run_id} · {arm}"
