"""The commands that a study's file stands for, in order.

A study is executed through these commands, in one process. Runs and pages record them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from flows.studies.choices import Choices, Lock
from flows.studies.steps import Part, Step
from ratchet.errors import ParameterError, nearest
from ratchet.experiment_files.loading import ExperimentFile, load_experiment
from ratchet.experiment_files.study_file import (
    ComparisonSection,
    SearchSection,
    StudyFile,
    SweepSection,
)
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.reports.tables import show
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.mirrors.payload import flatten
from trainers.registry import TRAINERS

STORE_VARIABLE = "RATCHET_STUDY_STORE"
"""Environment variable with the store of a study's stages: a folder or a URL."""


@dataclass(frozen=True)
class StudyCommands:
    """Expands a study's file.

    Attributes
    ----------
    settings
        Overrides of settings for all commands, ``settings.a=b``.
    """

    study: StudyFile
    experiment: ExperimentFile
    parallel: int = 1
    settings: Sequence[str] = ()
    file: str = field(init=False)

    def __post_init__(self) -> None:
        path = os.path.relpath(self.study.experiment.resolve())
        object.__setattr__(self, "file", path)

    @classmethod
    def load(
        cls, study: StudyFile, parallel: int = 1, settings: Sequence[str] = ()
    ) -> StudyCommands:
        """Load the study's experiment; the environment may name a store."""
        for each in settings:
            if not each.startswith("settings."):
                raise ParameterError(
                    f"study: got {each!r}, expected settings.NAME=value: the study's file contains"
                    " all parameters."
                )
        if url := os.environ.get(STORE_VARIABLE):
            settings = [f"settings.store={url}", *settings]
        file = load_experiment(study.experiment, settings, {"trainer": TRAINERS})
        return cls(study, file, parallel, settings)

    def searches(self, lock: Lock, only: Part | None = None) -> list[Step]:
        """Return the commands of the searches: those without a choice, or all if requested."""
        if only not in (None, Part.SEARCH):
            return []
        searches = enumerate(self.study.sections.search)
        return [
            step
            for number, search in searches
            if only is Part.SEARCH or search.page.as_posix() not in lock.choices
            for step in self._search(number, search)
        ]

    def runs(self, lock: Lock, only: Part | None = None) -> list[Step]:
        """Return the commands after the searches, with the chosen values.

        The comparison without a page is left out unless it is requested.
        """
        steps = [*self._run(lock.all_choices), *self._further(lock.all_choices)]
        omitted = Part.COMPARE if only is None else None
        return [step for step in steps if only in (None, step.part) and step.part is not omitted]

    def require_choices(self, lock: Lock, only: Part | None) -> None:
        """Raise ParameterError if a part is requested whose values have not been chosen."""
        searches = [each.page.as_posix() for each in self.study.sections.search]
        missing = [page for page in searches if page not in lock.choices]
        if missing and only not in (None, Part.SEARCH):
            raise ParameterError(
                f"study: --only {only}: {self.study.lock} has no choice of the search"
                f" {missing[0]}. First run `ratchet study {self.study.path} --only search`."
            )

    def _search(self, number: int, search: SearchSection) -> Iterator[Step]:
        name = search.name or f"{self.study.name}_search" + (f"_{number + 1}" if number else "")
        assignments = [
            *(f"{path}={_listed(values)}" for path, values in search.values.items()),
            "validation.replaces_test=true",
            *(  # remove a searched value from arms that set it themselves
                f"~arms.{arm}.{path}"
                for arm in self._searched(search)
                for path in search.values
                if path in _prefixes(self.experiment.arm_changes.get(arm, {}))
            ),
        ]
        num_points = math.prod(map(len, search.values.values()))
        yield self._sweep(Part.SEARCH, search, name, assignments, num_points)
        pairs = self._pairs(search)
        compared = search.compare.model_copy(update={"pairs": pairs} if pairs else {})
        page = self._compare(name, compared, search.title, search.page)
        yield Step(Part.SEARCH, page, search=search)

    def _run(self, choices: Choices) -> Iterator[Step]:
        sections, name = self.study.sections, self.sweep_name
        yield self._sweep(Part.RUN, sections.run, name, self._registered(choices))
        yield from self._attacks(name)
        for part, page in ((Part.COMPARE, None), (Part.PAGE, sections.page)):
            yield Step(part, self._compare(name, sections.compare, sections.title, page))

    def _further(self, choices: Choices) -> Iterator[Step]:
        for each in self.study.sections.after:
            section = each.model_copy(update={"seeds": each.seeds or self.study.sections.run.seeds})
            assignments = [*self._chosen(choices, section), "preregistered=null"]
            yield self._sweep(Part.AFTER, section, each.name, assignments)
            yield Step(Part.AFTER, self._compare(each.name, each.compare, each.title, each.page))

    @property
    def sweep_name(self) -> str:
        """Name of the sweep of the study's runs."""
        return self.study.sections.run.name or self.study.name

    def of_seed(self, seed: int, lock: Lock) -> list[str]:
        """Return the overrides of the study's run with a seed, for `ratchet run`."""
        section = self.study.sections.run
        seeds = section.model_copy(update={"seeds": [seed]})
        return self._assignments(seeds, self._chosen(lock.all_choices, section))

    @property
    def runs_folder(self) -> list[str]:
        """The option for the folder of runs, unless it is the default one."""
        runs = self.experiment.settings.runs
        return [] if runs == ExperimentSettings().runs else ["--runs-dir", runs]

    def _registered(self, choices: Choices) -> list[str]:
        """Return the assignments of the chosen values and of the study's registration."""
        register, compare = self.study.sections.register_, self.study.sections.compare
        chosen = self._chosen(choices, self.study.sections.run)
        if register is None:
            return chosen
        content = {
            "metrics": register.metrics,
            **compare.model_dump(include={"baselines", "pairs"}, exclude_defaults=True),
            "seeds": self.study.sections.run.seeds,
            **register.model_dump(include={"hypothesis"}, exclude_defaults=True),
        }
        return [*chosen, f"preregistered={_text(content)}"]

    def _sweep(
        self,
        part: Part,
        section: SweepSection,
        name: str,
        chosen: Iterable[str],
        num_points: int = 1,
    ) -> Step:
        assignments = self._assignments(section, chosen)
        options = ["--name", name, "--parallel", str(self.parallel)]
        command = ["ratchet", "sweep", self.file, *options, *assignments]
        num_runs = num_points * len(section.seeds)
        return Step(part, command, sweep=name, assignments=assignments, num_runs=num_runs)

    def _assignments(self, section: SweepSection, chosen: Iterable[str]) -> list[str]:
        return [
            f"seed={_seeds(section.seeds)}",
            *chosen,
            *(f"{path}={_listed([value])}" for path, value in section.changes.items()),
            *(f"~arms.{arm}" for arm in self._dropped(section)),
            *self.settings,
        ]

    def _compare(
        self, name: str, section: ComparisonSection, title: str, page: Path | None = None
    ) -> list[str]:
        options: dict[str, Sequence[object]] = {
            "--baseline": section.baselines,
            "--pair": section.pairs,
            "--metric": section.metrics,
            "--less": section.less,
            "--curve": section.curves,
            "--x-axis": [section.x_axis] if section.x_axis else [],
            "--threshold": section.thresholds,
            "--reference": [f"{label}={value}" for label, value in section.references.items()],
            "--update-page": [page] if page else [],
            "--title": [title],
        }
        command = ["ratchet", "compare", name, "--by-arm"]
        for option, values in options.items():
            command += [part for value in values for part in (option, str(value))]
        command += ["--allow-data-mismatch"] * section.allow_data_mismatch
        return [*command, *self.runs_folder]

    def _attacks(self, name: str) -> Iterator[Step]:
        section = self.study.sections.attacks
        if section is None:
            return
        command = ["ratchet", "exploit", name, "--agent", section.agent]
        command += [part for arm in section.arms for part in ("--arm", arm)]
        command += ["--seeds", _seeds(section.seeds), "--parallel", str(self.parallel)]
        if section.learning_rates:
            command += ["--lr", ",".join(map(str, section.learning_rates))]
        if section.iterations:
            command += ["--iterations", str(section.iterations)]
        command += self.runs_folder
        yield Step(Part.ATTACKS, command, output=self.study.attack_data)

    def _dropped(self, section: SweepSection) -> list[str]:
        """Return the arms that match the section's patterns; ParameterError if one matches none."""
        arms = list(self.experiment.arms)
        for pattern in section.drop:
            if not any(fnmatchcase(arm, pattern) for arm in arms):
                raise ParameterError(
                    f"{self.study.path}: drop: {pattern!r} matches no arm, expected some of"
                    f" {', '.join(arms)}.{nearest(pattern, arms)}"
                )
        return [arm for arm in arms if any(fnmatchcase(arm, each) for each in section.drop)]

    def _searched(self, search: SearchSection) -> list[str]:
        """Return the arms for which a search chooses; ParameterError if one is unknown."""
        dropped = self._dropped(search)
        arms = [arm for arm in (MAIN_ARM, *self.experiment.arms) if arm not in dropped]
        for arm in search.arms:
            if arm not in arms:
                raise ParameterError(
                    f"{self.study.path}: search.arms: got {arm!r}, expected some of"
                    f" {', '.join(arms)}.{nearest(arm, arms)}"
                )
        return search.arms or arms

    def _pairs(self, search: SearchSection) -> list[str]:
        """Return the pairs of each other value and the one to compare with, in each arm."""
        if search.against is None:
            return []
        ((path, values),) = search.values.items()
        against = _label(path, search.against)
        return [
            f"{arm} · {_label(path, value)} vs {arm} · {against}"
            for arm in self._searched(search)
            for value in values
            if value != search.against
        ]

    def _chosen(self, choices: Choices, section: SweepSection) -> list[str]:
        """Return overrides for the chosen values that the experiment's file does not contain."""
        main, dropped = self.experiment.hyper_params, self._dropped(section)
        of_main = choices.get(MAIN_ARM, {})
        overrides = [f"{p}={_text(v)}" for p, v in of_main.items() if not _has(main, p, v)]
        main = main.replace(of_main)
        for arm, changes in self.experiment.arm_changes.items():
            arm_paths = _prefixes(changes)
            overrides += [
                f"arms.{arm}.{path}={_text(value)}"
                for path, value in choices.get(arm, {}).items()
                if arm not in dropped
                and not _has(self.experiment.arms[arm] if path in arm_paths else main, path, value)
            ]
        return overrides


def _prefixes(changes: Mapping[str, Any]) -> set[str]:
    """Return the dotted paths of the values and mappings that an arm sets."""
    paths = (path.split(".") for path in flatten(changes))
    return {".".join(parts[:number]) for parts in paths for number in range(1, len(parts) + 1)}


def _has(params: HyperParameters, path: str, value: object) -> bool:
    """Return whether parameters do not change if a path is set to a value."""
    return params.replace({path: value}).to_dict() == params.to_dict()


def _label(path: str, value: object) -> str:
    """Return a value's part of a group's label, as in comparisons."""
    flat = flatten({path: value})
    if len(flat) == 1 and isinstance(value, str):
        return show(value)
    return " · ".join(f"{name.rpartition('.')[2]}={show(each)}" for name, each in flat.items())


def _seeds(seeds: Sequence[int]) -> str:
    """Format seeds as on the command line, consecutive ones as a range."""
    first, last = seeds[0], seeds[-1]
    if len(seeds) > 1 and list(seeds) == list(range(first, last + 1)):
        return f"{first}..{last}"
    return ",".join(map(str, seeds))


def _listed(values: Iterable[object]) -> str:
    return ",".join(map(_text, values))


def _text(value: object) -> str:
    """Format a value as an element of a YAML list on one line."""
    text: str = yaml.safe_dump(
        [_plain(value)],
        default_flow_style=True,
        width=float("inf"),
        allow_unicode=True,
        sort_keys=False,
    )
    return text.strip()[1:-1]


def _plain(value: object) -> Any:  # noqa: ANN401 -- data of a file
    """Return data without aliases, which YAML would otherwise write for equal objects."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
