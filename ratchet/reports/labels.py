"""Formatting of names and numbers in reports."""

import math
import re
from collections.abc import Sequence

from ratchet.tracking.manifest import MAIN_ARM


def arm_label(run_id: str, arm: str, *, several: bool) -> str:
    """Label an arm: its name in a report of one run, with its run in comparisons."""
    if not several:
        return arm
    return run_id if arm == MAIN_ARM else f"{run_id} · {arm}"


_WORDS = {"lr": "learning rate"} | {
    word.lower(): word
    for word in ("DPO", "DQN", "GAE", "GNN", "GRPO", "KL", "MALT", "PPO", "SAC", "SPG", "TD", "WL")
}


def metric_label(name: str) -> str:
    """Format a metric's name: ``gnn.lr`` → ``GNN · learning rate``."""
    parts = [
        " ".join(_WORDS.get(word.lower(), word) for word in part.split())
        for part in re.split(r"[./]", name.replace("_", " "))
    ]
    text = " · ".join(filter(None, parts))
    return upper_first(text)


def upper_first(text: str) -> str:
    """Return a text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def number(value: float) -> str:
    """Format a return: about four digits, with a true minus sign."""
    if not math.isfinite(value):
        return str(value)
    size = max(abs(value), 1e-9)
    digits = max(0, 3 - math.floor(math.log10(size))) if size < 1000 else 0
    return f"{value:,.{min(digits, 3) if size >= 1 else 3}f}".replace("-", "−")


def ranges(numbers: Sequence[int]) -> str:
    """Format sorted integers with consecutive ones abbreviated: ``0–4, 7``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    texts = [f"{part[0]}–{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts]
    return ", ".join(texts)
