"""Results pages and the README agree with published data and computed values."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
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
SUM = "self_proving_sum_check"
RETURNS = [PROVING, SUM, f"searches/{PROVING}", f"searches/{PROVING}_feedback"]
HEADINGS = dict.fromkeys(RETURNS, "mean return of agent on the test set")
ROUNDING = dict.fromkeys(RETURNS, 0.000501)
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
        accuracy = run.tests[test].accuracy
        score = run.scores[f"{test} agent.return"] if accuracy is None else 100 * accuracy
        differing = (f"{path.rpartition('.')[2]}={v:g}" for path, v in run.differing.items())
        found.setdefault(" · ".join([run.arm, *differing]), {})[run.seed] = score
    return found


def attacked_accuracies(page: str) -> dict[str, list[float]]:
    """Return the accuracies against new provers in percent: arm → one for each seed, in order."""
    content = json.loads((RESULTS / "attacks" / f"{page}.json").read_text())
    (rows,) = (each["rows"] for each in content["tables"])
    found: dict[str, list[float]] = {}
    own: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["arm"], []).append(100 * row["worst"]["value"])
        own.setdefault(row["arm"], []).append(100 * row["own"]["value"])
    published = accuracies(page)
    for arm, values in own.items():
        assert values == pytest.approx([published[arm][seed] for seed in sorted(published[arm])])
    return found


def iqm(by_seed: dict[int, float]) -> float:
    return float(interquartile_mean(list(by_seed.values())))


def table(page: str, heading: str | None = None) -> dict[str, list[str]]:
    """Return the first table below a heading of a page: first cell of each row → other cells."""
    text = page_text(page)
    heading = heading or HEADINGS.get(page, "accuracy on the test set")
    pattern = rf"^## {heading}.*\n+(?:[^#|\n].*\n+)?((?:\|.*\n)+)"  # perhaps below a sentence
    (part,) = re.findall(pattern, text, re.MULTILINE | re.IGNORECASE)
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
    file = load_experiment(EXPERIMENTS / f"{page}.yaml")
    return {"main": file.hyper_params, **file.arms}


@pytest.mark.parametrize("page", PAGES)
def test_a_pages_reference_lines_are_those_of_its_study(page):
    lines = reference_lines(page)
    named = "; ".join(f"{line.label} {100 * line.value:.1f}" for line in lines)
    said = re.findall(r"Known values, drawn as lines: (.*)\.\n", page_text(page))
    assert set(said) == ({named} if lines else set())
    picture = (RESULTS / f"{page}.svg").read_text()
    assert all(f"{line.label} {100 * line.value:.1f}<" in picture for line in lines)


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


def test_figures_of_the_channel_agree_with_the_data():
    page, groups = text_of(f"docs/results/{CHANNEL}.md"), accuracies(CHANNEL)
    best = {
        (run.arm, run.seed): 100 * run.scores["test/test_best_response.accuracy"]
        for run in read_published(RESULTS / f"{CHANNEL}.json").runs
    }
    optimal = sum(each > 89.9 for each in groups["main"].values())
    others = {round(each, 1) for each in groups["main"].values() if each < 89.9}
    assert (optimal, others) == (14, {87.5})
    assert "90.0 % in 14 of 20 seeds and 87.5 % in the other six" in page
    assert {round(each, 1) for each in groups["alone"].values()} == {60.0}
    harmed = [
        100 * run.scores["test/test_any_messages.accuracy"]
        for run in read_published(RESULTS / f"{CHANNEL}.json").runs
        if run.arm == "main"
    ]
    worst = f"{mean(harmed):.1f} % (mean; {min(harmed):.1f} to {max(harmed):.1f} %)"
    assert f"whose only aim is a wrong decision, main has {worst}" in page
    trusting, main = (mean(list(groups[arm].values())) for arm in ("trusting", "main"))
    assert f"better by this measure ({trusting:.1f} % against {main:.1f} %)" in page
    assert groups["attacked"] == groups["main"]
    assert all(best["main", seed] == each for seed, each in groups["main"].items())
    assert sum(each == 100 for each in groups["trusting"].values()) == 16
    attacked = groups["trusting_attacked"]
    falls = [groups["trusting"][seed] - attacked[seed] for seed in attacked]
    assert f"all twenty fall, by {min(falls):.0f} to {max(falls):.0f} points" in page
    assert f"to a mean of {table(CHANNEL)['trusting_attacked'][4]} %" in page
    assert all(
        best["trusting_attacked", seed] == pytest.approx(attacked[seed]) for seed in attacked
    )


def test_figures_of_zero_knowledge_agree_with_the_data():
    page, groups = text_of("docs/results/zero_knowledge.md"), accuracies("zero_knowledge")
    means = {arm: f"{mean(list(by_seed.values())):.1f} %" for arm, by_seed in groups.items()}
    likeness: dict[str, list[float]] = {}
    for run in read_published(RESULTS / "zero_knowledge.json").runs:
        if run.arm != "plain":
            found = run.scores["test/test_simulator.mean_episode_reward"]
            likeness.setdefault(run.arm, []).append(found)
    for arm, values in likeness.items():
        cell = f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f})".replace("-", "−")
        assert f"{means[arm]} | {cell} |" in page
    assert f"| plain | (absent) | | {means['plain']} | |" in page
    gradient = [each for arm, part in likeness.items() if "gradient" in arm for each in part]
    ppo = [each for arm, part in likeness.items() if "gradient" not in arm for each in part]
    assert len(gradient) == len(ppo) == 24
    assert f"reaches {min(gradient):.2f} to {max(gradient):.2f} in all 24 runs" in page
    extremes = f"between {min(ppo):.2f} and {max(ppo):.2f}".replace("-", "−")
    assert f"{extremes} (24 runs, mean {mean(ppo):.2f})" in page
    assert {means[arm] for arm in groups if "gradient" in arm} == {"89.7 %"}
    assert "keep an accuracy of 89.7 %" in page
    channel = load_experiment(EXPERIMENTS / "zero_knowledge.yaml").hyper_params
    unseen, erased = (
        getattr(channel.binary_erasure_channel, f"{name}_erasure_probability")
        for name in ("observation", "lie")
    )
    assert f"mean cosine of decisions above {1 - unseen + unseen * (1 - erased):.1f}" in page
    assert sum(each < 85 for by_seed in groups.values() for each in by_seed.values()) == 1
    row = differences("zero_knowledge")["share_10 − plain"]
    assert f"share_10 − plain: {interval_of(row)} points, corrected p {row['corrected p']}" in page
    runs = read_published(RESULTS / "zero_knowledge.json").runs
    assert all(r.scores["test/test_best_response.accuracy"] == r.scores["test"] for r in runs)
    assert f"as it is, in each of the {len(runs)} runs" in page
    worst = [float(cells[4]) for cells in table("zero_knowledge", "Any messages").values()]
    assert f"leave {min(worst):.1f} to {max(worst):.1f} % (means of the arms)" in page


def credit_sentences() -> Iterator[str]:
    """Yield what the page on replayed credit must say."""
    groups, rows, gaps = accuracies(CREDIT), table(CREDIT), differences(CREDIT)
    found = {arm: f"{iqm(by_seed):.1f} %" for arm, by_seed in groups.items()}
    yield f"{found['main']} with the group baseline, {found['verifier']} with redrawn decisions"
    yield f"and {found['both']} with redraws of both agents"
    seen = {
        arm: f"({interval_of(row)}, corrected p {row['corrected p']})"
        for arm, row in ((arm, gaps[f"{arm} − main"]) for arm in ("verifier", "both"))
    }
    gap = {arm: f"{mean(list(by_seed.values())):.2f}" for arm, by_seed in groups.items()}
    more = {arm: f"{float(gap[arm]) - float(gap['main']):.1f}" for arm in seen}
    yield f"is {more['verifier']} points for verifier {seen['verifier']}"
    yield f"and {more['both']} for both {seen['both']}"
    least = [gaps[f"{arm} − main"]["detectable in 80 %"] for arm in seen]
    yield f"eight seeds would detect {least[0]} and {least[1]} points"
    lowest = sorted(groups["main"].values())[:2]
    yield f"two of eight seeds end at {lowest[0]:.1f} and {lowest[1]:.1f} %"
    others = min(min(groups[arm].values()) for arm in seen)
    yield f"with redraws no seed ends below {int(others)} %"
    curves = table(CREDIT, "learning")
    reach = {arm: f"{round(int(c[-2].replace(',', '')), -3):,}" for arm, c in curves.items()}
    yield f"{reach['main']} sampled tokens in main, {reach['verifier']} in verifier"
    yield f"and {reach['both']} in both, with overlapping intervals"
    used = {arm: re.findall(r"\d[\d,]*", cells[-1]) for arm, cells in rows.items()}
    tokens, labels = (
        {arm: int(each[k].replace(",", "")) for arm, each in used.items()} for k in (0, 1)
    )
    in_thousands = {arm: f"{round(number, -3):,}" for arm, number in tokens.items()}
    yield f"training used {in_thousands['main']} tokens of prompts and completions in main"
    yield f"{in_thousands['verifier']} in verifier and {in_thousands['both']} in both"
    attacked = attacked_accuracies(CREDIT)
    after = {arm: f"{mean(values):.1f} % in {arm}" for arm, values in attacked.items()}
    yield f"to {after['main']}, {after['verifier']} and {after['both']}"
    yield f"at most {max(max(values) for values in attacked.values()):.1f} % in any seed"
    factors = [f"{labels[arm] / labels['main']:.1f}" for arm in seen]
    yield f"use {factors[0]} and {factors[1]} times the rewards"


@pytest.mark.parametrize("sentence", credit_sentences())
def test_figures_of_replayed_credit_agree_with_the_data(sentence):
    assert sentence in text_of(f"docs/results/{CREDIT}.md")


@pytest.mark.parametrize("page", [CREDIT, DEBATE, TEXT])
def test_the_uncounted_pretraining_is_on_the_page(page):
    steps = sum(pretraining.STEPS.values())
    written = text_of(f"docs/results/{page}.md").partition("<!-- begin")[0]
    assert f"{steps:,} steps of {pretraining.BATCH_SIZE} replies" in written


@pytest.mark.parametrize("page", PAGES)
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


@pytest.mark.parametrize("page", PAGES)
def test_a_preregistered_page_compares_what_was_planned(page):
    published = read_published(RESULTS / f"{page}.json")
    planned = load_experiment(EXPERIMENTS / f"{page}.yaml").preregistered
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


def test_corrected_p_values_in_sentences_are_those_of_the_table():
    page, shown = text_of(f"docs/results/{HELP}.md"), differences(HELP)
    for pair in ("alone − main", "honest − main", "hand_made − main", "random − alone"):
        row = shown[pair]
        assert f"{pair}: {interval_of(row)} points, corrected p {row['corrected p']}" in page
    channel = differences("binary_erasure_channel_proof")
    pairs = ("trusting − main", "trusting_attacked − main")
    corrected = {channel[pair]["corrected p"] for pair in pairs}
    (p,) = corrected
    assert f"corrected p {p} for both" in text_of("docs/results/binary_erasure_channel_proof.md")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in (TEXT, PROVING, SUM, CREDIT, DEBATE)]
)
def test_a_page_counts_the_frames_of_all_stages(page):
    arms, shown = parameters(page), table(page)
    for run in read_published(RESULTS / f"{page}.json").runs:
        frames = planned_frames(arms[run.arm])
        counted = {stage: used["frames"] for stage, used in run.used.items() if used["frames"]}
        assert counted == frames
        assert re.fullmatch(
            rf"{sum(frames.values()):,} frames(, [\d,]+ labels)?", shown[run.arm][-1]
        )


def test_no_page_is_from_an_uncommitted_tree():
    for file in RESULTS.rglob("*.md"):
        assert not re.search(r"[0-9a-f]{12}\+", file.read_text()), file
