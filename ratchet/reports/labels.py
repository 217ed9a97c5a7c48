"""How a report calls its arms."""

from collections.abc import Sequence

from ratchet.tracking.manifest import MAIN_ARM


def arm_label(run_id: str, arm: str, *, several: bool) -> str:
    """Name an arm: by itself in a report of one run, by its run where several are compared."""
    if not several:
        return arm
    return run_id if arm == MAIN_ARM else f"{run_id} · {arm}"


def ranges(numbers: Sequence[int]) -> str:
    """Write sorted integers with runs of them in short: ``0–4, 7``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    texts = [f"{part[0]}–{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts]
    return ", ".join(texts)
