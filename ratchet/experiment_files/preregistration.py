"""Read the section ``preregistered`` of an experiment file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ratchet.errors import ParameterError
from ratchet.parameters.reading.messages import describe_validation_error
from ratchet.parameters.sweeps import expand_values
from ratchet.tracking.preregistration import SECTION, Preregistration


def read_preregistration(section: Mapping[str, Any]) -> Preregistration:
    """Read a preregistration from plain data.

    Seeds are a list or a range such as ``0..4``.

    Raises
    ------
    ParameterError
        With the dotted path, the value and the expected one, a line for each error.
    """
    content = dict(section)
    seeds = content.get("seeds")
    if isinstance(seeds, str | list):
        listed = [seeds] if isinstance(seeds, str) else seeds
        content["seeds"] = expand_values(f"{SECTION}.seeds", listed)
    try:
        return Preregistration.model_validate(content)
    except ValidationError as error:
        text = describe_validation_error(error, prefix=SECTION, model=Preregistration)
        raise ParameterError(text) from error
