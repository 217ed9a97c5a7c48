"""Results pages and the README agree with published data and computed values."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.exact_bounds import exact_accuracies
from ratchet.experiment_files.loading import load_experiment
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.reports.comparison.options import ReferenceValue, reference_values
from ratchet.reports.comparison.published import read_published
from ratchet.scenarios.binary_erasure_channel import analytic_solution
from ratchet.statistics import interquartile_mean

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments"
RESULTS = ROOT / "docs" / "results"
PAGES = sorted(path.stem for path in RESULTS.glob("*.json"))
TARGETS = {
    "binary_erasure_channel_proof": "results-channel",
    "graph_isomorphism_help": "results-help",
    "graph_isomorphism_help_variants": "results-variants",
    "graph_isomorphism_protocols": "results",
    "text_protocols": "results-text",
}
HELP, VARIANTS, TEXT = "graph_isomorphism_help", "graph_isomorphism_help_variants", "text_protocols"


def compare_command(page: str) -> list[str]:
    """Return the arguments of the `ratchet compare` that the Makefile runs for a page."""
    printed = subprocess.run(
        ["make", "--dry-run", TARGETS[page]], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.replace("\\\n", " ")
    (line,) = (line for line in printed.splitlines() if "/ratchet compare " in line)
    return ["ratchet", *shlex.split(line)[1:]]


def reference_lines(page: str) -> list[ReferenceValue]:
    """Return the reference values that the Makefile passes for a page's plots."""
    words = compare_command(page)
    return reference_values([words[i + 1] for i, word in enumerate(words) if word == "--line"])


def text_of(file: str) -> str:
    """Return a document with white space collapsed."""
    return " ".join((ROOT / file).read_text().split())


def accuracies(page: str, test: str = "test") -> dict[str, dict[int, float]]:
    """Return the published accuracies of a page in percent: group → seed → accuracy."""
    found: dict[str, dict[int, float]] = {}
    for run in read_published(RESULTS / f"{page}.json").runs:
        group = str(run.differing.get("interaction_protocol", run.arm))
        accuracy = run.tests[test].accuracy
        assert accuracy is not None
        found.setdefault(group, {})[run.seed] = 100 * accuracy
    return found


def iqm(by_seed: dict[int, float]) -> float:
    return float(interquartile_mean(list(by_seed.values())))


def table(page: str, heading: str = "accuracy on the test set") -> dict[str, list[str]]:
    """Return the first table below a heading of a page: first cell of each row → other cells."""
    text = (RESULTS / f"{page}.md").read_text()
    (part,) = re.findall(rf"^## {heading}.*\n+((?:\|.*\n)+)", text, re.MULTILINE | re.IGNORECASE)
    rows = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in part.splitlines()]
    return {row[0]: row[1:] for row in rows[2:]}


def ppo_frames(params: HyperParameters) -> int:
    phases = sum(phase.num_iterations for phase in params.phases or ())
    return (phases or params.rl.num_iterations) * params.rl.frames_per_batch


def imitation_frames(params: HyperParameters) -> int:
    return params.imitation.num_iterations * params.rl.frames_per_batch


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_written_by_the_command_of_the_makefile(page):
    published = read_published(RESULTS / f"{page}.json")
    assert shlex.split(published.commands[1]) == compare_command(page)


@pytest.mark.parametrize("page", PAGES)
def test_a_pages_reference_lines_are_those_of_the_makefile(page):
    lines = reference_lines(page)
    named = "; ".join(f"{line.label} {100 * line.value:.1f}" for line in lines)
    said = re.findall(
        r"Known values, drawn as lines: (.*)\.\n", (RESULTS / f"{page}.md").read_text()
    )
    assert set(said) == ({named} if lines else set())
    picture = (RESULTS / f"{page}.svg").read_text()
    assert all(f"{line.label} {100 * line.value:.1f}<" in picture for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("page", [HELP, VARIANTS])
def test_exact_reference_lines_are_the_computed_accuracies(page):
    computed = exact_accuracies(str(EXPERIMENTS / f"{page}.yaml"))
    for line in reference_lines(page):
        rule = line.label.removesuffix(", exact").replace(" ", "_")
        assert line.value == pytest.approx(getattr(computed, rule), abs=5e-4)
    pages = text_of(f"docs/results/{HELP}.md") + text_of(f"docs/results/{VARIANTS}.md")
    assert all(f"{100 * value:.1f} %" in pages for value in vars(computed).values())


def test_the_reference_values_of_the_channel_follow_its_formulas():
    params = load_experiment(EXPERIMENTS / "binary_erasure_channel_proof.yaml").hyper_params
    section = params.binary_erasure_channel
    assert {line.label: line.value for line in reference_lines("binary_erasure_channel_proof")} == {
        "known": pytest.approx(analytic_solution.accuracy_with_prover(section)),
        "known alone": pytest.approx(analytic_solution.accuracy_alone(section)),
    }


@pytest.mark.parametrize("page", PAGES)
def test_a_pages_table_agrees_with_its_data(page):
    shown = table(page)
    published = accuracies(page)
    assert shown.keys() == published.keys()
    for group, by_seed in published.items():
        assert int(shown[group][0]) == len(by_seed)
        assert float(shown[group][1]) == pytest.approx(iqm(by_seed), abs=0.0501)


def sentences() -> Iterator[tuple[str, str]]:
    """Yield documents and what they must contain, computed from data and experiment files."""
    rows = table(HELP)
    for arm in ("main", "alone", "adversary"):
        yield "README.md", f"{rows[arm][1]} % {rows[arm][2]}"
    for arm in ("main", "alone"):
        yield f"docs/results/{HELP}.md", f"{rows[arm][1]} % {rows[arm][2]}"
    groups = accuracies(TEXT)
    alone = groups.pop("solo_verifier")
    helped = [round(iqm(group)) for group in groups.values()]
    yield (
        "README.md",
        f"{iqm(alone):.0f} % by itself, {min(helped)} to {max(helped)} % with provers",
    )
    more = [group[seed] - alone[seed] for group in groups.values() for seed in group]
    yield (
        f"docs/results/{TEXT}.md",
        f"more in every seed ({min(more):.0f} to {max(more):.0f} points)",
    )
    main = accuracies(HELP)["main"]
    rest = iqm({seed: main[seed] for seed in range(3, 8)})
    yield f"docs/results/{HELP}.md", f"other five seeds of main have an IQM of {rest:.1f} %"
    searched = ", ".join(f"{main[seed]:.1f}" for seed in range(3))
    yield "docs/measurements.md", f"seeds 0, 1, 2 | 126 | {searched} |"


@pytest.mark.parametrize(("file", "sentence"), sentences())
def test_figures_in_sentences_agree_with_the_data(file, sentence):
    assert sentence in text_of(file)


def test_frames_are_counted_with_imitation():
    main = load_experiment(EXPERIMENTS / f"{HELP}.yaml").hyper_params
    scratch = load_experiment(EXPERIMENTS / f"{VARIANTS}.yaml").arms["from_scratch"]
    imitated = imitation_frames(main)
    page, variants = text_of(f"docs/results/{HELP}.md"), text_of(f"docs/results/{VARIANTS}.md")
    assert f"{imitated:,} more, so main and honest use {imitated + ppo_frames(main):,}" in page
    reached, patient = (
        int(table(VARIANTS, "learning: verifier")[arm][5].replace(",", ""))
        for arm in ("main", "from_scratch")
    )
    ratio = patient / (imitated + reached)
    assert f"{imitated + reached:,} frames instead of {patient:,}, {ratio:.1f} times" in variants
    assert f"{ppo_frames(scratch):,} frames of PPO" in variants
