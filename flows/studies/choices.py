"""Choices of a study's searches, based on their published results, and the file that stores them.

The lock file is next to the study. It also contains the study's first registration.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import yaml
from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from ratchet.errors import DataError, ParameterError
from ratchet.experiment_files.loading import load_experiment
from ratchet.experiment_files.study_file import ChooseSection, SearchSection, StudyFile
from ratchet.parameters.identity import parameters_digest
from ratchet.parameters.reading.messages import describe_validation_error
from ratchet.parameters.reading.yaml_files import read_mapping
from ratchet.reports.comparison.published import Published, PublishedRun
from ratchet.store.keys import canonical_json
from ratchet.tracking.environment import capture_code_state
from ratchet.tracking.files import write_atomically
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.mirrors.payload import flatten

Values: TypeAlias = dict[str, Any]
"""Dotted path → value."""
Choices: TypeAlias = Mapping[str, Values]
"""Arm → its chosen values."""
_HEADER = "# Written by `ratchet study`: choices of the searches, and the study's registration.\n"
_DIGITS = 16
_ROUNDING = 12  # digits of a mean; differences below come from the order of summation


class Registration(BaseModel):
    """Time of a study's first registration, and digests of its content.

    ``parameters`` is that of the experiment's arms; None in registrations of earlier versions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: AwareDatetime
    code: str
    digest: str
    parameters: str | None = None


class Lock(BaseModel):
    """Content of a lock file.

    Attributes
    ----------
    registered
        The first registration; None for studies that were run before they were files.
    choices
        Page of the search → arm → chosen values.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    registered: Registration | None = None
    choices: dict[str, dict[str, Values]] = {}

    @property
    def all_choices(self) -> Choices:
        """The choices of all searches, by arm."""
        merged: dict[str, Values] = {}
        for by_arm in self.choices.values():
            for arm, values in by_arm.items():
                merged[arm] = {**merged.get(arm, {}), **values}
        return merged


def read_lock(study: StudyFile) -> Lock:
    """Read a study's lock file; an empty lock if it does not exist."""
    if not study.lock.exists():
        return Lock()
    try:
        return Lock.model_validate(read_mapping(study.lock))
    except ValidationError as error:
        text = describe_validation_error(error, model=Lock)
        raise ParameterError(
            f"{study.lock}:\n{text}\nRemove the file to choose again from the searches' pages."
        ) from error


def write_lock(study: StudyFile, lock: Lock) -> None:
    """Write a study's lock file."""
    content = lock.model_dump(mode="json", exclude_none=True)
    write_atomically(study.lock, _HEADER + yaml.safe_dump(content, sort_keys=False))


def register(study: StudyFile) -> Registration | None:
    """Return the study's registration; record it now unless it has results.

    It covers the searches with their rules, the runs, the comparison, the attacks, and the
    parameters of the experiment.
    """
    lock = read_lock(study)
    if lock.registered is None and not study.data.exists():
        registered = Registration(
            at=datetime.now(UTC).replace(microsecond=0),
            code=capture_code_state().short,
            digest=_digest_of_sections(study),
            parameters=_digest_of_arms(study),
        )
        lock = lock.model_copy(update={"registered": registered})
        write_lock(study, lock)
    return lock.registered


def _digest_of_sections(study: StudyFile) -> str:
    """Return a digest of a study's registered sections."""
    parts = {"experiment", "search", "run", "compare", "attacks", "register_"}
    content = study.sections.model_dump(mode="json", include=parts)
    return hashlib.sha256(canonical_json(content)).hexdigest()[:_DIGITS]


def changed_files(study: StudyFile, registered: Registration) -> list[Path]:
    """Return which of a study's file and its experiment have changed since its registration."""
    changed = [study.path] if _digest_of_sections(study) != registered.digest else []
    if registered.parameters not in (None, _digest_of_arms(study)):
        changed.append(study.experiment)
    return changed


def _digest_of_arms(study: StudyFile) -> str:
    experiment = load_experiment(study.experiment)
    arms = {MAIN_ARM: experiment.hyper_params, **experiment.arms}
    return parameters_digest(arms)[:_DIGITS]


def choose(search: SearchSection, published: Published) -> dict[str, Values]:
    """Choose values from the published results of a search: arm → values.

    Raises DataError if an arm lacks results of some values, or has different numbers of seeds.
    """
    combinations = itertools.product(*search.values.values())
    points = [dict(zip(search.values, each, strict=True)) for each in combinations]
    scores = _scores(search, published, points)
    arms = list(search.arms or scores)
    rule = search.choose
    if rule.per == "study":
        joined = [[s for arm in arms for s in scores[arm][k]] for k in range(len(points))]
        choices = dict.fromkeys(arms, points[_best(rule, points, joined)])
    else:
        choices = {arm: points[_best(rule, points, scores[arm])] for arm in arms}
    followers = {arm: choices[followed] for arm, followed in rule.follow.items()}
    return {arm: dict(values) for arm, values in {**choices, **followers}.items()}


def _scores(
    search: SearchSection, published: Published, points: Sequence[Values]
) -> dict[str, list[list[float]]]:
    """Return the scores of each arm: one list per point."""
    scores: dict[str, list[list[float]]] = {}
    for run in published.runs:
        number = _point_of(run, points)
        name = search.choose.metric or next(iter(run.scores), "")
        if number is None or name not in run.scores:
            continue
        scores.setdefault(run.arm, [[] for _ in points])[number].append(run.scores[name])
    expected = [*search.arms, *search.choose.follow.values()] or list(scores)
    for arm in expected:
        sizes = {len(each) for each in scores.get(arm, [[]])}
        if sizes != {len(search.seeds)}:
            raise DataError(
                f"{search.page.with_suffix('.json')}: arm {arm} has {sorted(sizes)} scores of the"
                f" values of {', '.join(search.values)}, expected {len(search.seeds)} of each (one"
                " per seed). Run the search again."
            )
    return scores


def _point_of(run: PublishedRun, points: Sequence[Values]) -> int | None:
    """Return the index of a run's point; None if it has none of them."""
    for number, point in enumerate(points):
        flat = flatten(point)
        if all(run.differing.get(path) == value for path, value in flat.items()):
            return number
    return None


def _best(rule: ChooseSection, points: Sequence[Values], scores: Sequence[Sequence[float]]) -> int:
    """Return the index of the point that a rule chooses."""
    means = [round(fmean(each), _ROUNDING) for each in scores]
    highest = max(means)
    if rule.points is None:
        best = [k for k, value in enumerate(means) if value == highest]
        preferred = [k for k in best if rule.prefer in points[k].values()]
        return (preferred or best)[0]
    close = [k for k, value in enumerate(means) if highest - value <= rule.points / 100]
    return min(close, key=lambda k: _magnitudes(points[k]))


def _magnitudes(point: Values) -> list[float]:
    """Return the numbers in a point, by which points are ordered."""
    numbers = list(flatten(point).values())
    for number in numbers:
        if not isinstance(number, int | float):
            raise ParameterError(
                f"choose: got the value {number!r} with the rule smallest_within, expected numbers."
            )
    return numbers
