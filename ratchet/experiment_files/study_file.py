"""A study's file: searches, runs, comparisons, attacks and claims about one experiment.

It is YAML next to the experiments. `ratchet study` expands it to commands, see ``flows.studies``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)

from ratchet.errors import ParameterError
from ratchet.parameters.reading.messages import describe_validation_error
from ratchet.parameters.reading.yaml_files import read_mapping
from ratchet.parameters.sweeps import expand_values
from ratchet.tracking.preregistration import ACCURACY, PairText


def _expand_seeds(value: object) -> object:
    if not isinstance(value, str | int | list):
        return value
    listed = value if isinstance(value, list) else [value]
    try:
        return sorted(expand_values("seeds", listed))
    except ParameterError as error:
        raise ValueError(str(error)) from error


Seeds: TypeAlias = Annotated[
    list[NonNegativeInt], BeforeValidator(_expand_seeds), Field(min_length=1)
]
"""Seeds as a list or a range such as ``0..4``."""
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A part of a study's file; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ComparisonSection(Section):
    """Comparison of a sweep's runs: the options of `ratchet compare`.

    Attributes
    ----------
    baselines, pairs
        Groups with which all others are compared, or pairs ``FIRST vs SECOND``. With neither, those
        that the experiment preregisters, or all pairs.
    references
        Label → known accuracy, drawn as a line.
    """

    baselines: list[str] = []
    pairs: list[PairText] = []
    metrics: list[str] = []
    less: list[str] = []
    curves: list[str] = []
    x_axis: Literal["frames", "tokens", "calls", "iterations", "sampled_tokens"] | None = None
    thresholds: list[float] = []
    references: dict[str, Share] = {}
    allow_data_mismatch: bool = False

    @model_validator(mode="after")
    def _has_one_kind_of_comparison(self) -> Self:
        if self.baselines and self.pairs:
            raise ValueError("expected baselines or pairs, got both")
        return self


class SweepSection(Section):
    """A sweep over seeds.

    Attributes
    ----------
    name
        The sweep's name; by default the study's, with a suffix.
    changes
        Values of all members by dotted path; ``arms.NAME.…`` changes or adds an arm.
    drop
        Patterns of arms that are left out, such as ``*_attacked``.
    """

    name: str | None = None
    seeds: Seeds
    changes: dict[str, Any] = {}
    drop: list[str] = []


class ChooseSection(Section):
    """Rule that chooses the values of a search.

    Attributes
    ----------
    per
        Whether each arm has its own choice, or all arms the same.
    rule
        The value with the highest mean over seeds (and arms, if all have one choice), or the
        smallest value whose mean is within ``points`` percentage points of the highest.
    prefer
        The value to choose among those with equal means; by default the first in ``values``.
    metric
        The metric as in the page's ``.json`` file; by default the first, the result on the test.
    follow
        Arm that is not searched → the arm whose choice it uses. Others use that of ``main``.
    """

    per: Literal["arm", "study"] = "arm"
    rule: Literal["highest", "smallest_within"] = "highest"
    points: NonNegativeFloat | None = None
    prefer: Any = None
    metric: str | None = None
    follow: dict[str, str] = {}

    @model_validator(mode="after")
    def _has_points_if_read(self) -> Self:
        if (self.rule == "smallest_within") != (self.points is not None):
            raise ValueError("expected `points` with the rule smallest_within, and only with it")
        return self


class SearchSection(SweepSection):
    """A search on the validation split, with separate seeds.

    Attributes
    ----------
    values
        Dotted path → the values to try.
    arms
        The arms for which a value is chosen; by default all except dropped ones.
    against
        The value with which the page compares each other one, in each arm.
    page
        The Markdown page that shows the comparison, with its ``.json`` and ``.svg`` files.
    """

    values: Annotated[dict[str, Annotated[list[Any], Field(min_length=2)]], Field(min_length=1)]
    arms: list[str] = []
    against: Any = None
    choose: ChooseSection = ChooseSection()
    compare: ComparisonSection = ComparisonSection()
    title: str
    page: Path

    @model_validator(mode="after")
    def _compares_with_a_value(self) -> Self:
        if self.against is None:
            return self
        if len(self.values) > 1 or self.against not in next(iter(self.values.values())):
            raise ValueError(
                f"against: got {self.against!r}, expected one of the values of a single parameter"
            )
        return self


class RunSection(SweepSection):
    """The study's runs."""


class FurtherSection(SweepSection):
    """A further sweep of the same experiment, which is not part of the registered study.

    ``seeds`` are by default those of the study.
    """

    name: str
    seeds: Seeds = []
    compare: ComparisonSection = ComparisonSection()
    title: str
    page: Path


class AttackSection(Section):
    """New agents that learn against trained ones; the options of `ratchet exploit`.

    ``data`` is the file of the results, by default ``attacks/NAME.json`` next to the page.
    """

    agent: str = "verifier"
    arms: list[str] = Field(["main"], min_length=1)
    seeds: Seeds = [0, 1, 2]
    learning_rates: list[float] = []
    iterations: PositiveInt | None = None
    data: Path | None = None


class RegisterSection(Section):
    """Content registered before the study's first run, apart from its seeds and pairs."""

    metrics: list[str] = Field([ACCURACY], min_length=1)
    hypothesis: str = ""


class StudySections(Section):
    """Content of a study's file.

    Attributes
    ----------
    experiment
        The experiment's file, relative to the study's.
    search
        Searches whose choices the runs use.
    after
        Further sweeps.
    register_
        What is registered; without it, what the experiment file preregisters.
    claims
        Expressions about the page's data that must be true, see ``ratchet.reports.claims``.
    """

    title: str
    experiment: Path
    search: list[SearchSection] = []
    run: RunSection
    compare: ComparisonSection = ComparisonSection()
    attacks: AttackSection | None = None
    after: list[FurtherSection] = []
    register_: Annotated[RegisterSection | None, Field(alias="register")] = None
    claims: list[str] = []
    page: Path


@dataclass(frozen=True)
class StudyFile:
    """A study with the location of its file."""

    path: Path
    sections: StudySections

    @property
    def name(self) -> str:
        """Name of the study and its sweep: the file's."""
        return self.path.stem

    @property
    def experiment(self) -> Path:
        """The experiment's file."""
        return self.path.parent / self.sections.experiment

    @property
    def lock(self) -> Path:
        """The file of the searches' choices."""
        return self.path.with_suffix(".lock")

    @property
    def data(self) -> Path:
        """The published results of the page."""
        return self.sections.page.with_suffix(".json")

    @property
    def attack_data(self) -> Path:
        """The published results of the attacks."""
        page, attacks = self.sections.page, self.sections.attacks
        default = page.parent / "attacks" / page.with_suffix(".json").name
        return default if attacks is None or attacks.data is None else attacks.data


def load_study(path: str | Path) -> StudyFile:
    """Read a study's file.

    Raises ParameterError with the file, the key, its value and the expectation.
    """
    file = Path(path)
    if not file.is_file():
        raise ParameterError(f"{file}: no such file, expected a study's file (YAML).")
    return StudyFile(file, read_study(read_mapping(file), str(file)))


def read_study(content: Mapping[str, Any], source: str) -> StudySections:
    """Read a study from plain data; errors as :func:`load_study`."""
    try:
        sections = StudySections.model_validate(content)
    except ValidationError as error:
        text = describe_validation_error(error, model=StudySections)
        raise ParameterError(f"{source}:\n{text}") from error
    for number, search in enumerate(sections.search):
        if shared := sorted({*search.seeds} & {*sections.run.seeds}):
            raise ParameterError(
                f"{source}:\nsearch.{number}.seeds: got {shared}, which are also in run.seeds;"
                " expected others, so that no run of the study chooses its own values."
            )
    return sections
