"""Pages on models that prove their answers: statements without formulas."""

import math
import re
from itertools import product
from statistics import fmean

import pytest

from ratchet.experiment_files.loading import load_experiment
from ratchet.reports.claims import find_cell
from ratchet.reports.comparison.published import read_published
from ratchet.scenarios.registry import build_scenario
from ratchet.scenarios.validation_split import split_datasets
from tests.examples.test_self_proving import FOLDER, tasks

RESULTS = FOLDER.parent / "docs" / "results"


@pytest.mark.parametrize(
    ("page", "count"), [("self_proving_gcd", 4), ("self_proving_sum_check", 2)]
)
def test_intervals_in_points(page, count):
    tables = read_published(RESULTS / f"{page}.json").tables
    text = (RESULTS / f"{page}.md").read_text()
    found = re.findall(r"([−\d.]+ to \S+);\s+corrected p [< \d.]+<!-- = cell\('(.*?)'", text)
    for interval, pair in found:
        ends = find_cell(tables, pair, "95 % interval").replace("−", "-").strip("[]").split(", ")
        shown = " to ".join(f"{100 * float(end):.1f}" for end in ends)
        assert interval == shown.replace("-", "−")
    assert len(found) == count


@pytest.mark.exhaustive
def test_figures_on_pairs():
    arms = load_experiment(FOLDER / "self_proving_gcd.yaml").arms
    scenario = build_scenario("language_task", FOLDER)
    reverse, one, trivial, lengths = {"annotated": [], "few": []}, [], [], []
    for arm, seed in product(reverse, range(200, 208)):
        given = arms[arm].replace({"seed": seed})
        data, source = split_datasets(scenario, given), scenario._source(given)
        train, test = ([(t.info["x"], t.info["y"]) for t in data[n]] for n in ("train", "test"))
        learned = set(train)
        reverse[arm].append(fmean((y, x) in learned for x, y in test))
        one.append(fmean(math.gcd(x, y) == 1 for x, y in test))
        trivial.append(fmean(x % y == 0 or y % x == 0 for x, y in test))
        if arm == "annotated":
            lengths.append(fmean(len(source.demonstrate(task)) for task in data["train"]))
    page = " ".join((RESULTS / "self_proving_gcd.md").read_text().split())
    assert f"{100 * fmean(one):.1f} % of the test pairs have the divisor 1" in page
    assert f"in {100 * fmean(trivial):.1f} % one number divides" in page
    shares = [f"{100 * fmean(each):.0f} %" for each in reverse.values()]
    order = "of the test pairs the pair in reverse order is in training"
    assert f"for {shares[0]} {order} (few: {shares[1]})" in page
    assert f"if annotated ({fmean(lengths):.0f} characters instead of 3)" in page


def test_a_random_second_line_is_accepted_in_25_of_169():
    values, p = [3, 1, 4, 2], tasks.MODULUS
    first = tasks.first_reply(values)
    accepted = [
        tasks.accepts_line(values, first, (h, (tasks.value_between(*first[1:], c) - h) % p), c, r)
        for c, h, r in product(range(p), repeat=3)
    ]
    assert fmean(accepted) == pytest.approx(25 / 169)
