"""Sentences about models that prove their answers agree with the published data."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from ratchet.experiment_files.loading import load_experiment
from ratchet.reports.comparison.published import PublishedRun, read_published
from ratchet.scenarios.registry import build_scenario
from ratchet.scenarios.validation_split import split_datasets
from ratchet.statistics import mean
from tests.examples.test_self_proving import FOLDER, tasks
from tests.test_results_pages import PROVING, RESULTS, SUM, accuracies, differences, text_of

POLYNOMIAL = [3, 1, 4, 2]
PAGE, SUM_PAGE = f"docs/results/{PROVING}.md", f"docs/results/{SUM}.md"


def interval(pair: str, page: str = PROVING) -> str:
    """Return a difference's interval in points and its corrected p, as in a sentence."""
    row = differences(page)[pair]
    low, high = row["95 % interval"].replace("−", "-").strip("[]").split(", ")
    ends = f"{100 * float(low):.1f} to {100 * float(high):.1f}".replace("-", "−")
    return f"{ends}; corrected p {row['corrected p']}"


def proofs(page: str = PROVING) -> dict[str, list[float]]:
    """Return the shares of proved answers in percent: arm → one for each seed."""
    return {
        arm: [100 * share for share in by_seed.values()]
        for arm, by_seed in accuracies(page).items()
    }


def known(page: str = PROVING) -> dict[str, float]:
    """Return the mean share of correct answers in percent, with or without a proof, by arm."""
    found: dict[str, list[float]] = {}
    for run in read_published(RESULTS / f"{page}.json").runs:
        found.setdefault(run.arm, []).append(100 * run.scores["test/test_correct"])
    return {arm: mean(values) for arm, values in found.items()}


def sentences() -> Iterator[tuple[str, str]]:
    """Yield documents and what they must contain."""
    proved = {arm: mean(shares) for arm, shares in proofs().items()}
    right = known()
    for file in ("README.md", "docs/results/index.md"):
        yield file, f"{proved['annotated']:.1f} % of greatest common divisors after transcripts"
        yield file, f"Euclidean algorithm, {proved['main']:.1f} % without"
    both = f"{proved['annotated']:.1f} % of the divisors, without them {proved['main']:.1f} %"
    yield PAGE, f"the model proves {both} ({interval('annotated − main')})"
    yield PAGE, f"right divisor in {right['annotated']:.0f} and {right['main']:.0f} %"
    raised = f"{proved['main']:.1f} to {proved['feedback']:.1f} %"
    yield PAGE, f"{raised} ({interval('feedback − main')})"
    known_change = differences(PROVING, 1)
    for pair, points in (("feedback − main", "1.1"), ("shifted − few", "5.4")):
        row = known_change[pair]
        change = 100 * float(row["difference of means"].replace("−", "-"))
        assert change == pytest.approx(-float(points), abs=0.0501)
        yield PAGE, f"right divisors by {points} points (corrected p {row['corrected p']})"
    pair = "annotated_feedback − annotated"
    after = f"{proved['annotated']:.1f} become {proved['annotated_feedback']:.1f} %"
    yield PAGE, f"{after} ({interval(pair)})"
    yield PAGE, f"annotated training proves {proved['few']:.1f} %"
    yield PAGE, f"({proved['shifted']:.1f} %; {interval('shifted − few')})"
    yield PAGE, f"right in {right['few']:.0f} and {right['shifted']:.0f} %"


def test_what_the_page_says_about_the_pairs_agrees_with_the_data():
    arms = load_experiment(FOLDER / f"{PROVING}.yaml").arms
    scenario = build_scenario("language_task", FOLDER)
    found: dict[str, list[float]] = {}
    for seed in range(200, 208):
        for arm in ("annotated", "few"):
            given = arms[arm].replace({"seed": seed})
            data = split_datasets(scenario, given)
            source = scenario._source(given)
            lengths = [float(len(source.demonstrate(task))) for task in data["train"]]
            found.setdefault(f"length/{arm}", []).append(mean(lengths))
            train, test = ([(t.info["x"], t.info["y"]) for t in data[n]] for n in ("train", "test"))
            learned = set(train)
            found.setdefault(arm, []).append(mean([float((y, x) in learned) for x, y in test]))
        found.setdefault("one", []).append(mean([float(math.gcd(x, y) == 1) for x, y in test]))
        trivial = [float(x % y == 0 or y % x == 0) for x, y in test]
        found.setdefault("trivial", []).append(mean(trivial))
    shares = {name: 100 * mean(values) for name, values in found.items()}
    page = text_of(PAGE)
    length = mean(found["length/annotated"])
    assert length / 3 == pytest.approx(6, abs=0.5)
    assert f"six times as long if annotated ({length:.0f} characters instead of 3)" in page
    assert f"{shares['one']:.1f} % of the test pairs have the divisor 1" in page
    assert f"in {shares['trivial']:.1f} % one number divides the other" in page
    assert f"for {shares['annotated']:.0f} % of the test pairs the pair in reverse" in page
    assert f"in training (few: {shares['few']:.0f} %)" in page


def runs_of(arm: str) -> list[PublishedRun]:
    """Return the runs of an arm of the interactive proof, by seed."""
    runs = read_published(RESULTS / f"{SUM}.json").runs
    return sorted((run for run in runs if run.arm == arm), key=lambda run: run.seed)


def sentences_on_sums() -> Iterator[tuple[str, str]]:
    """Yield documents and what they must contain about the interactive proof."""
    shares, right = proofs(SUM), known(SUM)
    proved = {arm: mean(each) for arm, each in shares.items()}
    learned = f"{proved['annotated']:.1f} %"
    without = f"without them of {proved['main']:.1f} %"
    yield SUM_PAGE, f"proofs of {learned} of 500 unseen sums, {without}"
    assert right["annotated"] == 100
    yield SUM_PAGE, "All sums that annotated claims are right"
    yield SUM_PAGE, f"({interval('annotated − main', SUM)})"
    yield SUM_PAGE, f"at least of {min(shares['annotated']):.1f} % in each seed"
    sums = [100 * run.scores["test/test_correct"] for run in runs_of("main")]
    claims, guesses = (
        [share for share, known in zip(shares["main"], sums, strict=True) if (known == 100) == all_]
        for all_ in (True, False)
    )
    assert len(claims) == len(guesses) == 4
    yield SUM_PAGE, f"proves {min(claims):.1f} to {max(claims):.1f} % of them"
    accepted = [
        tasks.accepts_line(POLYNOMIAL, first, (h, (due - h) % p), challenge, last)
        for first, p in [(tasks.first_reply(POLYNOMIAL), tasks.MODULUS)]
        for challenge in range(p)
        for due in [tasks.value_between(*first[1:], challenge)]
        for h in range(p)
        for last in range(p)
    ]
    lucky = f"random second line with the right total would ({100 * mean(accepted):.1f} %)"
    yield SUM_PAGE, f"about as many as a {lucky}"
    yield SUM_PAGE, f"In the other seeds it proves at most {max(guesses):.1f} %"
    yield SUM_PAGE, f"proves {proved['few']:.1f} % ({interval('few − annotated', SUM)})"
    yield SUM_PAGE, f"although it claims the right sum in {right['few']:.1f} %"
    *others, best = sorted(shares["few"])
    yield SUM_PAGE, f"reaches {best:.1f} %, the others at most {others[-1]:.1f} %"
    for file in (PAGE, "docs/results/index.md"):
        yield file, f"the verifier accepts the proofs of {learned} of unseen sums"


@pytest.mark.parametrize(("file", "sentence"), [*sentences(), *sentences_on_sums()])
def test_figures_of_the_proving_study_agree_with_the_data(file, sentence):
    assert sentence in text_of(file)
