"""Results pages and the README agree with published data and computed values."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from examples.exact_bounds import exact_accuracies
from ratchet.experiment_files.loading import load_experiment
from ratchet.experiment_files.study_file import ComparisonSection, load_study
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.reports.comparison.files import FURTHER
from ratchet.reports.comparison.options import ReferenceValue, planned_pairs
from ratchet.reports.comparison.published import read_published
from ratchet.scenarios.code_validation.tiny_model import pretraining
from ratchet.statistics import interquartile_mean, mean
from tests.planned_frames import planned_frames
from tests.scenarios.binary_erasure_channel import analytic_solution
from trainers.registry import trainer_class

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments"
RESULTS = ROOT / "docs" / "results"
PAGES = sorted(path.stem for path in RESULTS.glob("*.json"))
OTHER_PAGES = sorted(
    f"{folder}/{path.stem}"
    for folder in ("searches", "exploratory")
    for path in (RESULTS / folder).glob("*.json")
)
HELP, VARIANTS, TEXT = "graph_isomorphism_help", "graph_isomorphism_help_variants", "text_protocols"
PROVING, CREDIT, DEBATE = "self_proving_gcd", "code_validation_credit", "debaters"
CHANNEL, PROTOCOLS = "binary_erasure_channel_proof", "graph_isomorphism_protocols"
SUM, ANSWERS = "self_proving_sum_check", "known_answers"
RETURNS = [PROVING, SUM, f"searches/{PROVING}", f"searches/{PROVING}_feedback"]
HEADINGS = {
    **dict.fromkeys(RETURNS, r"mean return of \w+ on the test set"),
    ANSWERS: r"nash conv · average \(test\)",
}
ROUNDING = dict.fromkeys([*RETURNS, ANSWERS], 0.000501)
"""Of a page's figures; by default they are percentages with one decimal place."""


def compared(page: str) -> ComparisonSection:
    """Return how the study of a page compares its runs."""
    return load_study(EXPERIMENTS / "studies" / f"{page}.yaml").sections.compare


def reference_lines(page: str) -> list[ReferenceValue]:
    """Return the reference values that a study's plots show, in ascending order."""
    lines = (ReferenceValue(label, value) for label, value in compared(page).references.items())
    return sorted(lines, key=lambda line: line.value)


def text_of(file: str) -> str:
    """Return a document, with the tables of a page of results, with white space collapsed."""
    name = file.removeprefix("docs/results/").removesuffix(".md")
    is_page = (RESULTS / f"{name}.json").exists()
    return " ".join((page_text(name) if is_page else (ROOT / file).read_text()).split())


def page_text(page: str) -> str:
    """Return a page of results as the site shows it, with the tables of its JSON file."""
    tables = "\n".join(read_published(RESULTS / f"{page}.json").tables)
    return (RESULTS / f"{page}.md").read_text().replace(FURTHER, tables)


def accuracies(page: str, test: str = "test") -> dict[str, dict[int, float]]:
    """Return published accuracies in percent, or mean returns: group → seed → accuracy."""
    found: dict[str, dict[int, float]] = {}
    for run in read_published(RESULTS / f"{page}.json").runs:
        accuracy = None if page == ANSWERS else run.tests[test].accuracy
        metrics = [s for n, s in run.scores.items() if n.endswith((".return", ".average"))]
        score = metrics[0] if accuracy is None else 100 * accuracy
        differing = (f"{path.rpartition('.')[2]}={v:g}" for path, v in run.differing.items())
        found.setdefault(" · ".join([run.arm, *differing]), {})[run.seed] = score
    return found


def iqm(by_seed: dict[int, float]) -> float:
    return float(interquartile_mean(list(by_seed.values())))


def table(page: str, heading: str | None = None) -> dict[str, list[str]]:
    """Return the first table below a heading of a page: first cell of each row → other cells."""
    text = page_text(page)
    heading = heading or HEADINGS.get(page, "accuracy on the test set")
    pattern = rf"^## {heading}.*\n+(?:[^#|\n].*\n+)?((?:\|.*\n)+)"  # perhaps below a sentence
    part = re.findall(pattern, text, re.MULTILINE | re.IGNORECASE)[0]
    rows = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in part.splitlines()]
    return {row[0]: row[1:] for row in rows[2:]}


def differences(page: str, number: int = 0) -> dict[str, dict[str, str]]:
    """Return a table of differences of a page: pair → heading → cell."""
    text = page_text(page)
    part = re.findall(r"^Differences.*\n+((?:\|.*\n)+)", text, re.MULTILINE)[number]
    head, _, *rows = ([c.strip() for c in line.split("|")[1:-1]] for line in part.splitlines())
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def interval_of(row: dict[str, str]) -> str:
    """Return the interval of a difference as in a sentence."""
    return row["95 % interval"].strip("[]").replace("+", "").replace(", ", " to ")


def parameters(page: str) -> dict[str, HyperParameters]:
    """Return the parameters of each arm of a page's experiment."""
    file = load_experiment(load_study(EXPERIMENTS / "studies" / f"{page}.yaml").experiment)
    return {"main": file.hyper_params, **file.arms}


@pytest.mark.parametrize("page", PAGES)
def test_a_pages_reference_lines_are_those_of_its_study(page):
    lines = reference_lines(page)
    named = "; ".join(f"{line.label} {100 * line.value:.1f}" for line in lines)
    said = re.findall(r"Known values, drawn as lines: (.*)\.\n", page_text(page))
    assert set(said) == ({named} if lines else set())
    picture = (RESULTS / f"{page}.svg").read_text()
    assert all(f"{line.label} {100 * line.value:.1f}<" in picture for line in lines)


@pytest.mark.in_turn(1)
@pytest.mark.slow
@pytest.mark.parametrize("page", [HELP, VARIANTS, PROTOCOLS])
def test_exact_reference_lines_are_the_computed_accuracies(page):
    computed = exact_accuracies(str(EXPERIMENTS / f"{page}.yaml"))
    for line in reference_lines(page):
        rule = line.label.removesuffix(", exact").replace(" ", "_")
        assert line.value == pytest.approx(getattr(computed, rule), abs=5e-4)
    lines = {line.label.removesuffix(", exact").replace(" ", "_") for line in reference_lines(page)}
    values = vars(computed) if page == HELP else {name: getattr(computed, name) for name in lines}
    text = text_of(f"docs/results/{page}.md")
    assert all(f"{100 * value:.1f} %" in text for value in values.values())
    alike, question = (
        f"{100 * value:.0f} %" for value in (computed.accept_if_alike, computed.random_question)
    )
    assert f"do not distinguish has {alike}, and {question} after one question" in text_of(
        "docs/results/index.md"
    )


def test_the_reference_values_of_the_channel_follow_its_formulas():
    params = load_experiment(EXPERIMENTS / "binary_erasure_channel_proof.yaml").hyper_params
    section = params.binary_erasure_channel
    assert {line.label: line.value for line in reference_lines("binary_erasure_channel_proof")} == {
        "known": pytest.approx(analytic_solution.accuracy_with_prover(section)),
        "known alone": pytest.approx(analytic_solution.accuracy_alone(section)),
    }


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES])
def test_a_pages_table_agrees_with_its_data(page):
    shown = table(page)
    published = accuracies(page)
    assert shown.keys() == published.keys()
    for group, by_seed in published.items():
        assert int(shown[group][0]) == len(by_seed)
        rounding = ROUNDING.get(page, 0.0501)
        assert float(shown[group][1]) == pytest.approx(iqm(by_seed), abs=rounding)


def test_the_bound_of_the_cosine_of_zero_knowledge_follows_from_the_channel():
    """A message's verdict is wrong only if the bit was erased and the lie was not."""
    channel = load_experiment(EXPERIMENTS / "zero_knowledge.yaml").hyper_params
    unseen, erased = (
        getattr(channel.binary_erasure_channel, f"{name}_erasure_probability")
        for name in ("observation", "lie")
    )
    bound = 1 - unseen + unseen * (1 - erased)
    page = text_of("docs/results/zero_knowledge.md")
    assert f"mean cosine of decisions above {bound:.1f}" in page


@pytest.mark.parametrize("page", [CREDIT, DEBATE, TEXT])
def test_the_uncounted_pretraining_is_on_the_page(page):
    steps = sum(pretraining.STEPS.values())
    written = text_of(f"docs/results/{page}.md").partition("<!-- begin")[0]
    assert f"{steps:,} steps of {pretraining.BATCH_SIZE} replies" in written


@pytest.mark.parametrize("page", [page for page in PAGES if page != ANSWERS])
def test_a_pages_differences_agree_with_its_data(page):
    """Tables have differences of means, as registered; the reanalysis has those of IQMs."""
    groups = {
        name: [by_seed[k] for k in sorted(by_seed)] for name, by_seed in accuracies(page).items()
    }
    registered = read_published(RESULTS / f"{page}.json").preregistered
    named = (
        ([], []) if registered is None else (registered.content.baselines, registered.content.pairs)
    )
    bases = compared(page).baselines or named[0]
    pairs = (
        planned_pairs(compared(page).pairs or named[1])
        or [
            (one, base)
            for k, base in enumerate(bases)
            for one in groups
            if one not in bases[: k + 1]
        ]
        or list(itertools.combinations(groups, 2))
    )
    shown = differences(page)
    assert list(shown) == [f"{a} − {b}" for a, b in pairs]
    for (one, two), row in zip(pairs, shown.values(), strict=True):
        value = float(row["difference of means"].replace("−", "-"))
        gap = mean(groups[one]) - mean(groups[two])
        assert value == pytest.approx(float(gap), abs=ROUNDING.get(page, 0.0501))


@pytest.mark.parametrize("page", [path.stem for path in (RESULTS / "attacks").glob("*.json")])
def test_attacks_are_on_the_published_runs(page):
    (table,) = json.loads((RESULTS / "attacks" / f"{page}.json").read_text())["tables"]
    published = read_published(RESULTS / f"{page}.json").runs
    accuracies = {(run.run, run.arm): run.tests["test"].accuracy for run in published}
    for row in table["rows"]:
        assert row["own"]["value"] == pytest.approx(accuracies[row["run_id"], row["arm"]])


@pytest.mark.parametrize("page", PAGES)
def test_a_preregistered_page_compares_what_was_planned(page):
    published = read_published(RESULTS / f"{page}.json")
    study = load_study(EXPERIMENTS / "studies" / f"{page}.yaml")
    planned = load_experiment(study.experiment).preregistered
    if published.preregistered is None:
        assert planned is None
        return
    assert published.preregistered.content == planned
    assert not published.preregistered.differences
    assert published.preregistered.digest in text_of(f"docs/results/{page}.md")


@pytest.mark.parametrize("page", PAGES)
def test_no_interval_of_fewer_than_five_seeds_is_on_a_page(page):
    text = page_text(page)
    if min(map(len, accuracies(page).values())) < 5:
        generated = text.partition("<!-- begin")[2]
        assert not re.search(r"\[[−+]?\d[\d.,]*, ", generated)
    else:
        assert "n < 5" not in text


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in (TEXT, PROVING, SUM, CREDIT, DEBATE)]
)
def test_a_page_counts_the_frames_of_all_stages(page):
    arms, shown = parameters(page), table(page)
    for run in read_published(RESULTS / f"{page}.json").runs:
        plays = trainer_class(arms[run.arm], EXPERIMENTS).traits.samples_rollouts
        frames = planned_frames(arms[run.arm]) if plays else {}
        counted = {stage: used["frames"] for stage, used in run.used.items() if used["frames"]}
        assert counted == frames
        expected = rf"{sum(frames.values()):,} frames(, [\d,]+ labels)?" if plays else "–"
        assert re.fullmatch(expected, shown[run.arm][-1])


def test_no_page_is_from_an_uncommitted_tree():
    for file in RESULTS.rglob("*.md"):
        assert not re.search(r"[0-9a-f]{12}\+", file.read_text()), file
