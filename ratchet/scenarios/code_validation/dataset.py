"""Datasets of programs by name: ``generated``, ``jsonl:PATH``, ``hub:NAME``.

Train and test share no question: where a dataset has no splits, the hash of a question determines
its side. Buggy solutions are mutants or come from a language model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ratchet.errors import DataError, ParameterError
from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.scenarios.code_validation.bug_writer import BugTask, BugWriter
from ratchet.scenarios.code_validation.generator.examples import (
    Example,
    ExamplePlan,
    generate_examples,
    question_share,
)
from ratchet.scenarios.code_validation.loaders import (
    LoadingOptions,
    load_hub_examples,
    load_jsonl_examples,
)
from ratchet.scenarios.code_validation.parameters import NO_BUG
from ratchet.scenarios.hub import hash_files
from ratchet.scenarios.sandbox.programs import run_programs
from ratchet.seeding import derive_seed, numpy_generator

if TYPE_CHECKING:
    from ratchet.language_models.auxiliary_calls import ModelCalls
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.code_validation.bug_writer import RunPrograms
    from ratchet.scenarios.code_validation.parameters import CodeValidationParameters

SIDES = ("train", "test")


def add_written_bugs(
    examples: Sequence[Example],
    side: str,
    writer: BugWriter,
    run: RunPrograms,
    *,
    seed: int,
    max_bugs: int | None = None,
) -> list[Example]:
    """Add a buggy program to each problem that has a tested right one and no buggy one.

    Parameters
    ----------
    examples
        Of the set named ``side``.
    max_bugs
        So many at most, of problems that are sampled by the seed; None for all.
    """
    buggy = {example.question for example in examples if example.y == 0}
    right: dict[str, Example] = {}
    for example in examples:
        if example.y == 1 and example.program is not None and example.question not in buggy:
            right.setdefault(example.question, example)
    if not right and not buggy:
        raise DataError(
            f"bug_generator: none of the {len(examples)} programs of the {side} set has tests that"
            " it passes, so that no bug in it could be told. Give problems with tests (of APPS:"
            " code_validation.run_own_tests=true), or leave bug_generator.model_name out."
        )
    rng = numpy_generator(seed, "code_validation", purpose=f"bugs/{side}")
    chosen = list(right.values())
    chosen = [chosen[int(i)] for i in rng.permutation(len(chosen))[:max_bugs]]
    tasks = {
        f"{side}/{number}": BugTask(f"{side}/{number}", each.question, each.solution, each.program)
        for number, each in enumerate(chosen)
        if each.program is not None
    }
    written = writer.write(list(tasks.values()), run)
    writer.report(side, "have none")
    added = [
        Example(example.question, written[name], 0, example.level, writer.origin)
        for name, example in zip(tasks, chosen, strict=True)
        if name in written
    ]
    return [*examples, *added]


GENERATED, JSONL, HUB = "generated", "jsonl:", "hub:"


def build_code_validation_datasets(
    hyper_params: HyperParameters, calls: ModelCalls | None = None
) -> dict[str, NestedArrayDictDataset]:
    """Build ``train`` and ``test``.

    Their fields: ``question``, ``solution``, ``source`` text; ``y``, ``datapoint_id``, ``level``
    (-1 unknown) and ``bug`` (a number of ``bug_kinds``) int64. If a chat model writes the buggy
    programs, it is called through ``calls``, and the datasets' notes contain the outcome.
    """
    section: CodeValidationParameters = hyper_params.code_validation
    seed = hyper_params.seed if section.dataset_seed is None else section.dataset_seed
    name = hyper_params.dataset
    writers = _writers(hyper_params, seed, calls)
    if name == GENERATED:
        examples = _generate(section, seed, hyper_params.test_size, writers)
    else:
        examples = _load(hyper_params, section, seed, writers)
    largest = largest_sizes(hyper_params)
    source = _source(name)
    datasets = {
        side: examples_to_dataset(examples[side], source).take(largest[side]) for side in SIDES
    }
    return {
        side: data.with_notes(writers[side].counts) if writers else data
        for side, data in datasets.items()
    }


def most_bugs(hyper_params: HyperParameters) -> int | None:
    """Return the most buggy programs of a model; None if only the data determine it."""
    section: CodeValidationParameters = hyper_params.code_validation
    sizes: Iterable[int | None] = largest_sizes(hyper_params).values()
    if hyper_params.dataset == GENERATED:
        sizes = (section.num_train, section.num_test)
    halves = [None if size is None else -(-size // 2) for size in sizes]
    return None if None in halves else sum(filter(None, halves))


def largest_sizes(hyper_params: HyperParameters) -> dict[str, int | None]:
    """Return the maximal size of each set; None for no limit."""
    return {
        "train": hyper_params.dataset_options.max_train_size,
        "test": hyper_params.code_validation.max_test_size,
    }


def examples_to_dataset(examples: Sequence[Example], source: str) -> NestedArrayDictDataset:
    """Convert examples to arrays, in their order."""
    return NestedArrayDictDataset(
        NestedArrayDict(
            {
                "question": [example.question for example in examples],
                "solution": [example.solution for example in examples],
                "y": np.array([example.y for example in examples], dtype=np.int64),
                "datapoint_id": np.arange(len(examples), dtype=np.int64),
                "level": np.array([example.level for example in examples], dtype=np.int64),
                "bug": np.array(
                    [NO_BUG if example.y == 1 else example.bug for example in examples],
                    dtype=np.int64,
                ),
                "source": [example.origin or source for example in examples],
            },
            len(examples),
        )
    )


def hash_data_files(name: str) -> dict[str, str]:
    """Hash the local files of a dataset: SHA-256 by name; none for data from elsewhere."""
    kind, _, rest = name.partition(":")
    path = Path(rest).expanduser()
    if f"{kind}:" not in (JSONL, HUB):
        return {}
    return hash_files(path)


def _source(name: str) -> str:
    """Return the name of a dataset without its path."""
    kind, _, rest = name.partition(":")
    path = Path(rest).expanduser()
    if f"{kind}:" not in (JSONL, HUB) or not path.exists():
        return name
    return kind if path.is_dir() else f"{kind}:{path.name}"


def _writers(
    hyper_params: HyperParameters, seed: int, calls: ModelCalls | None
) -> dict[str, BugWriter]:
    """Return the writer of the buggy programs of each set; empty without a model."""
    parameters = hyper_params.bug_generator
    if not parameters.is_on:
        return {}
    if calls is None:
        raise ParameterError(
            f"bug_generator.model_name: got {parameters.model_name!r}, but models cannot be"
            " called here. Build the data with Scenario.make_datasets and ModelCalls,"
            " or leave it out."
        )
    return {side: BugWriter(parameters, seed, calls) for side in SIDES}


def _generate(
    section: CodeValidationParameters,
    seed: int,
    test_size: float,
    writers: Mapping[str, BugWriter],
) -> dict[str, list[Example]]:
    salt = derive_seed(seed, "code_validation", purpose="sides")
    sizes = {"train": section.num_train, "test": section.num_test}
    return {
        side: generate_examples(
            ExamplePlan(
                seed=seed,
                purpose=side,
                count=count,
                levels=section.levels,
                max_mutations=section.max_mutations,
                accepts=lambda q, is_test=side == "test": (  # type: ignore[misc]
                    (question_share(q, salt) < test_size) == is_test
                ),
            ),
            writers.get(side),
        )
        for side, count in sizes.items()
    }


def _load(
    hyper_params: HyperParameters,
    section: CodeValidationParameters,
    seed: int,
    writers: Mapping[str, BugWriter],
) -> dict[str, list[Example]]:
    splits = _read(hyper_params, section, seed)
    largest = largest_sizes(hyper_params)
    run = partial(run_programs, time_limit=section.time_limit, memory_mb=section.memory_mb)
    for side, writer in writers.items():
        size = largest[side]
        max_bugs = None if size is None else -(-size // 2)
        splits[side] = add_written_bugs(
            splits[side], side, writer, run, seed=seed, max_bugs=max_bugs
        )
    return {
        side: _arrange(
            splits[side], side, seed, balanced=hyper_params.dataset_options.make_balanced
        )
        for side in SIDES
    }


def _read(
    hyper_params: HyperParameters, section: CodeValidationParameters, seed: int
) -> dict[str, list[Example]]:
    """Read the examples of each set, in the order of the files."""
    name = hyper_params.dataset
    options = LoadingOptions(
        difficulties=section.difficulties,
        exclude_flagged=section.exclude_flagged,
        solution_number=section.apps_solution_number,
        run_own_tests=section.run_own_tests,
        time_limit=section.time_limit,
        memory_mb=section.memory_mb,
    )
    if name.startswith(JSONL) and len(name) > len(JSONL):
        splits = load_jsonl_examples(Path(name.removeprefix(JSONL)), options)
    elif name.startswith(HUB) and len(name) > len(HUB):
        splits = load_hub_examples(name.removeprefix(HUB), options)
    else:
        raise ParameterError(
            f"dataset: got {name!r}, expected 'generated', 'jsonl:PATH' or 'hub:OWNER/NAME' for the"
            " scenario code_validation."
        )
    if "test" not in splits:
        salt = derive_seed(seed, "code_validation", purpose="sides")
        everything = [example for examples in splits.values() for example in examples]
        shares = [question_share(example.question, salt) for example in everything]
        sides = [share < hyper_params.test_size for share in shares]
        splits = {
            "train": [e for e, test in zip(everything, sides, strict=True) if not test],
            "test": [e for e, test in zip(everything, sides, strict=True) if test],
        }
    return {side: splits[side] for side in SIDES}


def _arrange(examples: list[Example], side: str, seed: int, *, balanced: bool) -> list[Example]:
    """Shuffle; if requested, drop surplus examples of the larger class."""
    rng = numpy_generator(seed, "code_validation", purpose=f"order/{side}")
    shuffled = [examples[int(i)] for i in rng.permutation(len(examples))]
    if balanced:
        by_class = [[e for e in shuffled if e.y == y] for y in (0, 1)]
        fewest = min(map(len, by_class))
        balanced_examples = [by_class[y][i] for i in range(fewest) for y in (0, 1)]
        shuffled = [balanced_examples[int(i)] for i in rng.permutation(len(balanced_examples))]
    if not shuffled:
        what = "right and buggy programs" if balanced else "programs"
        raise DataError(
            f"code_validation: the {side} set has no {what} among {len(examples)} that were read."
            " Choose other difficulties, another test_size, or dataset_options.make_balanced=false."
        )
    return shuffled
