"""``ratchet plan``: which stages an experiment has, which are stored, and why not."""


def plan(file: str) -> None:
    """Plan."""
