"""``ratchet new``: a folder with an experiment, a custom component, a test and a README.

The files are copies of the examples, in which names are replaced.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Annotated

import typer

from flows.process.messages import print_plain
from ratchet.errors import ParameterError

_PACKAGE = Path(__file__).parents[1]
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_TEST = "custom_experiment_test.py"
_TESTED = "custom_scenario"
"""The experiment that the example of a test names."""
_README = """# {title}

{about}

```
{commands}
```

| file | content |
| --- | --- |
| `{module}.yaml` | the experiment: parameters, and settings that do not affect results |
| `{module}.py` | custom code, which is part of the keys of the stages that use it |
| `test_{module}.py` | tests: the experiment can be planned, and runs with one step of each loop |
{further}
`ratchet list parameters WORDS` finds parameters, `ratchet list trainers` and the like list names.
"""


class Kind(StrEnum):
    """Kind of custom component."""

    SCENARIO = "scenario"
    TRAINER = "trainer"
    LANGUAGE_TASK = "language-task"
    GAME = "game"
    TEXT_SCENARIO = "text-scenario"
    STUDY = "study"


@dataclass(frozen=True)
class Example:
    """An example that is copied: ``stem``.py and .yaml, in the folder of examples.

    Attributes
    ----------
    names
        Regular expression of a name in the files → its replacement, with ``{name}`` and, in class
        names, ``{Name}``.
    further
        Another copied file: its path, the end of the copy's name, and its content in the README.
    """

    stem: str
    names: Mapping[str, str]
    further: tuple[str, str, str] | None = None


_SECTION = r'(?<=["`])\b{0}\b(?=["`])|(?<=hyper_params\.){0}\b|^{0}(?=:)'
"""A registered name in quotes, as an attribute of the parameters, or as a key of the YAML file."""
_CARDS = {r"\bCards": "{Name}", _SECTION.format("cards"): "{name}"}
EXAMPLES = {
    Kind.SCENARIO: Example("custom_scenario", _CARDS),
    Kind.STUDY: Example(
        "custom_scenario",
        _CARDS,
        ("study.yaml", "_study.yaml", "the study: searches, seeds, comparison, claims and page"),
    ),
    Kind.TRAINER: Example(
        "custom_trainer",
        {
            r"\bAdvantageActorCritic": "{Name}",
            r"\bHillClimbing": "{Name}Loop",
            r"\badvantage_actor_critic\b": "{name}",
            r"\bhill_climbing\b": "{name}_loop",
        },
    ),
    Kind.LANGUAGE_TASK: Example("language/custom_task", {r"\bDoubling\b": "{Name}"}),
    Kind.GAME: Example(
        "language/custom_game",
        {r"\bHighCard": "{Name}", r"\bcustom_game_networks\b": "{name}_networks"},
        ("language/custom_game_networks.yaml", "_networks.yaml", "the same game for networks"),
    ),
    Kind.TEXT_SCENARIO: Example(
        "custom_text_scenario", {r"\bSums": "{Name}", _SECTION.format("sums"): "{name}"}
    ),
}


def new(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="New folder; its name is used.")],
    kind: Annotated[Kind, typer.Option(help="Kind of custom component.")] = Kind.SCENARIO,
) -> None:
    """Create a folder with an experiment, custom code and a test."""
    module = _module_name(name.name)
    if name.exists():
        raise ParameterError(f"new: {name} exists already. Choose another name.")
    example = EXAMPLES[kind]
    files = _files(example, module)
    experiment = name / f"{module}.yaml"
    commands = [f"ratchet plan {experiment}", f"ratchet run {experiment}", f"pytest {name}"]
    further = ""
    if example.further is not None:
        _, suffix, content = example.further
        further = f"| `{module}{suffix}` | {content} |\n"
        verb = "study" if kind is Kind.STUDY else "run"
        commands.insert(2, f"ratchet {verb} {name / module}{suffix}")
    description = files[f"{module}.py"].removeprefix('"""').partition("\n")[0]
    title = module.replace("_", " ").capitalize()
    files["README.md"] = _README.format(
        title=title,
        about=description,
        module=module,
        commands="\n".join(commands),
        further=further,
    )
    try:
        name.mkdir(parents=True)
        for file, text in files.items():
            (name / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ParameterError(
            f"new: cannot write {name}: {error}. Choose another folder."
        ) from error
    print_plain(f"Created {name} with {', '.join(files)}. To continue:")
    for command in commands:
        print_plain(f"  {command}")


def _module_name(folder: str) -> str:
    """Return the name of a folder's module; ParameterError if it is not usable."""
    module = folder.replace("-", "_").lower()
    problem = ""
    if not _NAME.fullmatch(folder) or iskeyword(module):
        problem = "expected a letter, then letters, digits, - and _"
    elif module in sys.stdlib_module_names or find_spec(module) is not None:
        problem = "which is the name of an installed Python module"
    elif module in _registered_names():
        problem = "which is registered already"
    if problem:
        raise ParameterError(f"new: got the name {folder!r}, {problem}. Choose another name.")
    return module


def _registered_names() -> set[str]:
    """Return the names of sections, scenarios and trainers, and the keys of an experiment file."""
    from ratchet.experiment_files.loading import FILE_KEYS
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.registry import SCENARIOS
    from trainers.registry import TRAINERS

    return {*FILE_KEYS, *HyperParameters.known_keys(), *SCENARIOS.names(), *TRAINERS.names()}


def _files(example: Example, module: str) -> dict[str, str]:
    """Return the files of a new folder: name → text."""
    packaged = _PACKAGE / "examples"
    folder = packaged if packaged.is_dir() else _PACKAGE.parent / "examples"  # in a clone
    stem = example.stem.rpartition("/")[2]
    texts = {
        f"{module}.yaml": (folder / f"{example.stem}.yaml").read_text("utf-8"),
        f"{module}.py": (folder / f"{example.stem}.py").read_text("utf-8"),
        f"test_{module}.py": (folder / _TEST).read_text("utf-8").replace(_TESTED, stem),
    }
    if example.further is not None:
        path, suffix, _ = example.further
        texts[f"{module}{suffix}"] = (folder / path).read_text("utf-8")
    words = "".join(word.capitalize() for word in module.split("_"))
    class_name = words.removesuffix("Trainer") or "Custom"
    if re.search(rf"\b{class_name}\b", texts[f"{module}.py"]):
        raise ParameterError(
            f"new: got the name {module!r}, but the copied example uses the name {class_name}."
            " Choose another name."
        )
    moved = {
        r"\bexamples/study\b": "{name}_study",
        r"\bexamples/(language/)?": "",
        rf"\b{Path(_TEST).stem}\b": f"test_{module}",
    }
    names = {**moved, rf"\b{stem}\b": "{name}", **example.names}
    for pattern, replacement in names.items():
        replaced = replacement.format(name=module, Name=class_name)
        for file, text in texts.items():
            texts[file] = re.sub(pattern, replaced, text, flags=re.MULTILINE)
    return texts
