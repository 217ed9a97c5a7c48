"""A deployment of one experiment file, with a schedule: ``ratchet deploy FILE --cron …``.

It is the shipped Prefect file with this deployment instead of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ratchet.errors import ParameterError

ENTRYPOINT = "flows.deployed.experiment_from_file"


@dataclass(frozen=True)
class Schedule:
    """When runs begin: one of three ways to say it, or none."""

    cron: str | None = None
    interval: float | None = None
    rrule: str | None = None
    timezone: str = "UTC"

    def check(self) -> None:
        """Refuse a schedule that says it in two ways, or in one that does not exist.

        Raises
        ------
        ParameterError
            With what was got and expected.
        """
        given = [name for name in ("cron", "interval", "rrule") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ParameterError(
                f"schedule: got --{' and --'.join(given)}, expected one of them. Deploy the"
                " experiment twice, under two names."
            )
        from prefect.schedules import Cron, Interval, RRule

        makers: dict[str, Callable[..., object]] = {
            "cron": Cron,
            "interval": Interval,
            "rrule": RRule,
        }
        for name in given:
            try:
                makers[name](getattr(self, name), timezone=self.timezone)
            except ValueError as error:
                raise ParameterError(
                    f"--{name}: got {getattr(self, name)!r} in {self.timezone!r}, expected such as"
                    f" {_EXAMPLES[name]} ({error})."
                ) from error

    def to_entries(self) -> list[dict[str, Any]]:
        """Return the schedule as it stands in a Prefect file; nothing where there is none."""
        facts = {"cron": self.cron, "interval": self.interval, "rrule": self.rrule}
        chosen = {name: value for name, value in facts.items() if value is not None}
        return [{**chosen, "timezone": self.timezone, "active": True}] if chosen else []


_EXAMPLES = {"cron": "'0 3 * * *'", "interval": "3600 (seconds)", "rrule": "'FREQ=DAILY;COUNT=7'"}


def deployment_file(
    shipped: Path,
    experiment: str,
    overrides: Sequence[str],
    *,
    name: str,
    schedule: Schedule,
    slots: int,
) -> str:
    """Write the Prefect file of one experiment's deployment.

    Parameters
    ----------
    shipped
        The file whose work pool and place it has.
    slots
        How many of its runs go at a time; others wait.
    """
    content = yaml.safe_load(shipped.read_text(encoding="utf-8"))
    content["deployments"] = [
        {
            "name": name,
            "description": f"Run {experiment} {' '.join(overrides)}".strip() + ".",
            "entrypoint": ENTRYPOINT,
            "parameters": {"file": experiment, "overrides": list(overrides)},
            "enforce_parameter_schema": True,
            "work_pool": content["definitions"]["pool"],
            "concurrency_limit": slots,
            "schedules": schedule.to_entries(),
        }
    ]
    return yaml.safe_dump(content, sort_keys=False)
