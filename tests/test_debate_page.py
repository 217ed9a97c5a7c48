"""The page on debaters agrees with its data: table, sentences and rank correlations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scipy.stats import spearmanr

from ratchet.reports.comparison.published import read_published
from ratchet.statistics import mean
from tests.test_results_pages import accuracies, attacked_accuracies, differences, page_text

RESULTS = Path(__file__).parents[1] / "docs" / "results"
TEXT = " ".join((RESULTS / "debaters.md").read_text().partition("<!-- begin")[0].split())
GAMES = ("main", "open_consultancy", "debate", "open_debate", "proposer_critic")
FROZEN, LEARNING = (
    [
        (f"{game}{trainer}{judge}", f"{game}{judge}_untrained")
        for trainer in ("", "_ei", "_dpo")
        for game in GAMES
    ]
    for judge in ("", "_judge_learns")
)
CELLS = [*FROZEN, *LEARNING]
"""The arms after and before training."""
BEST = "proposer_critic_ei_judge_learns"


@pytest.fixture(scope="module")
def scores():
    """Return a score in percent by name, arm and seed."""
    found = {}
    for run in read_published(RESULTS / "debaters.json").runs:
        names = ("test", *(name for name in run.scores if name.startswith("test/")))
        for name in names:
            if run.scores[name] is not None:
                by_arm = found.setdefault(name.removeprefix("test/test_"), {})
                by_arm.setdefault(run.arm, {})[run.seed] = 100 * run.scores[name]
    return {
        name: {arm: [by_seed[k] for k in sorted(by_seed)] for arm, by_seed in by_arm.items()}
        for name, by_arm in found.items()
    }


@pytest.fixture(scope="module")
def changes(scores):
    """Return the change of mean accuracy of each cell by training."""
    accuracy = scores["test"]
    return {cell: float(mean(accuracy[cell[0]]) - mean(accuracy[cell[1]])) for cell in CELLS}


@pytest.mark.parametrize("place", range(5))
def test_rows_of_the_tables(scores, place):
    for cells in (FROZEN, LEARNING):
        arms = (cells[place][1], *(cells[place + 5 * k][0] for k in range(3)))
        shown = [f"{mean(scores['test'][arm]):.1f}" for arm in arms]
        assert f"| {' | '.join(shown)} |" in TEXT


def test_only_expert_iteration_and_dpo_raise_a_frozen_judges_accuracy_with_a_critic():
    table = page_text("debaters").partition("\nDifferences")[2]
    found = re.findall(r"^\| (\w+) − \w+ \| \S+ \| \[([−+])", table.partition("\n## ")[0], re.M)
    lows = dict(found)
    risen = {arm for arm, _ in FROZEN if lows[arm] == "+"}
    assert risen == {"proposer_critic_ei", "proposer_critic_dpo"}
    assert all(lows[arm] == "+" for arm, _ in LEARNING)


def test_changes_of_frozen_judges(scores, changes):
    debates = [changes[cell] for cell in FROZEN if "debate" in cell[0]]
    assert f"falls by {-max(debates):.1f} to {-min(debates):.1f} points" in TEXT
    critics = [changes[cell] for cell in FROZEN if "critic" in cell[0]]
    assert f"changes it by −{-min(critics):.1f} to {max(critics):.1f} points" in TEXT
    assert f"by {critics[1]:.1f} and {critics[2]:.1f} points, and changes by" in TEXT
    rows = differences("debaters")
    consultants = [c for c in FROZEN if c[0].startswith("main") or "consultancy" in c[0]]
    shown = [rows[f"{after} − {before}"]["difference of means"] for after, before in consultants]
    falls_by = [float(each.removeprefix("−")) for each in shown]
    plain, hidden = (
        sorted(f for f, (arm, _) in zip(falls_by, consultants, strict=True) if ("open" in arm) == o)
        for o in (False, True)
    )
    assert f"in open consultancy, by {hidden[0]} to {hidden[-1]} points" in TEXT
    assert f"the mean falls by {plain[0]} to {plain[-1]} points" in TEXT
    for after, before in FROZEN:
        pairs = zip(scores["test"][after], scores["test"][before], strict=True)
        falls = [now < then for now, then in pairs]
        if after == "main_ei":
            assert falls == [True] * 6 + [False] * 2
        elif "critic" not in after:
            assert all(falls)
        elif after != "proposer_critic":
            assert not any(falls)
    lowest = min(FROZEN, key=lambda cell: mean(scores["test"][cell[0]]))[0]
    assert lowest == "open_debate_dpo"
    assert f"lowest accuracy is {mean(scores['test'][lowest]):.1f} %" in TEXT


def test_attacks_on_judges_that_have_learned():
    attacked, own = attacked_accuracies("debaters"), accuracies("debaters")
    assert sum(map(len, attacked.values())) == 24
    falls = {
        arm: f"from {mean(list(own[arm].values())):.1f} to {mean(values):.1f} %"
        for arm, values in attacked.items()
    }
    assert f"lower its accuracy {falls['debate_ei_judge_learns']}" in TEXT
    assert f"the side is sampled, {falls['main_ei_judge_learns']}" in TEXT
    assert f"judge's side, {falls['proposer_critic_ei_judge_learns']}" in TEXT
    harmed = {
        arm: sum(now < own[arm][seed] for now, seed in zip(values, sorted(own[arm]), strict=True))
        for arm, values in attacked.items()
    }
    assert harmed.pop("debate_ei_judge_learns") == 7
    assert set(harmed.values()) == {4}


def test_corrected_p_values_of_frozen_judges():
    corrected = {
        pair.partition(" ")[0]: row["corrected p"] for pair, row in differences("debaters").items()
    }
    fallen = [arm for arm, _ in FROZEN if arm.startswith(("debate", "open_"))]
    assert f"p is at most {max(corrected[arm] for arm in fallen)} in each cell" in TEXT
    assert corrected["main"] == corrected["main_dpo"]
    assert f"it is {corrected['main']} with policy gradients and DPO" in TEXT
    assert f"and {corrected['main_ei']} with expert iteration" in TEXT
    ei, dpo = (corrected[f"proposer_critic_{trainer}"] for trainer in ("ei", "dpo"))
    assert f"and a critic {ei} with expert iteration and {dpo} with DPO" in TEXT


def test_learning_judges_trust_and_do_not_verify(scores, changes):
    gains = [changes[cell] for cell in LEARNING]
    assert f"rises in all 15 cells, by {min(gains):.1f} to {max(gains):.1f} points" in TEXT
    verified = max(mean(scores["verification"][arm]) for arm, _ in CELLS)
    assert f"at most {verified:.1f} % of the correct decisions change" in TEXT
    learning, frozen = (
        [mean(scores["trust"][arm]) for arm, _ in cells] for cells in (LEARNING, FROZEN)
    )
    assert f"{min(learning):.0f} to {max(learning):.0f} % of their decisions change" in TEXT
    assert f"of frozen judges, {min(frozen):.0f} to {max(frozen):.0f} %" in TEXT
    before = [mean(scores["trust"][untrained]) for _, untrained in LEARNING]
    assert f"before training {min(before):.0f} to {max(before):.0f} % at temperature 1" in TEXT
    cool = [mean(scores["trust"][untrained]) for _, untrained in FROZEN]
    assert f"and {min(cool):.0f} to {max(cool):.0f} % at 0.2" in TEXT
    corrected = differences("debaters")[
        "open_debate_dpo_judge_learns − open_debate_judge_learns_untrained"
    ]
    assert f"one seed falls; corrected p {corrected['corrected p']}" in TEXT
    below = [
        mean(scores["true_arguments"][arm]) - mean(scores["test"][arm])
        for arm, _ in LEARNING
        if "dpo" in arm
    ]
    assert f"{min(below):.1f} to {max(below):.1f} points below the arguments" in TEXT
    ahead = [mean(scores["test"][arm]) - mean(scores["true_arguments"][arm]) for arm, _ in LEARNING]
    assert f"at most {max(ahead):.1f} points more accurate than the arguments" in TEXT
    true, right = mean(scores["true_arguments"][BEST]), mean(scores["test"][BEST])
    assert f"{true:.1f} % of the arguments are true, and {right:.1f} % of the decisions" in TEXT


def test_learning_judges_against_the_untrained_judge_at_the_frozen_judges_temperature(scores):
    untrained = {
        after: mean(scores["test"][before.replace("_judge_learns", "")])
        for after, before in LEARNING
    }
    low, high = min(untrained.values()), max(untrained.values())
    assert f"the same untrained judge has {low:.0f} to {high:.0f} %" in TEXT
    more = [mean(scores["test"][arm]) - known for arm, known in untrained.items()]
    assert sum(gap > 0 for gap in more) == 9
    assert (
        f"by at most {max(more):.1f} points, and below it in six, by at most {-min(more):.1f}"
        in TEXT
    )


def test_rank_correlations(scores, changes):
    verified = [mean(scores["verification"][after]) for after, _ in CELLS]
    ahead = [
        mean(scores["true_arguments"][before]) - mean(scores["test"][before]) for _, before in CELLS
    ]
    product = [a * b for a, b in zip(ahead, verified, strict=True)]
    change = [changes[cell] for cell in CELLS]

    def shown(values, part=slice(None)):
        return f"{spearmanr(values[part], change[part]).statistic:.2f}".replace("-", "−")

    assert f"verification, measured after training, is {shown(verified)} over the 30 cells" in TEXT
    before = f"measured before training, it is {shown(ahead)}, and with the product of both"
    assert f"{before} {shown(product)}. The advance has seven distinct values, four for" in TEXT
    parts = (slice(None), slice(15), slice(15, 30))
    assert [len({round(float(each), 6) for each in ahead[part]}) for part in parts] == [7, 4, 3]
    frozen, learning = (
        " and ".join(shown(values, part) for values in (verified, ahead))
        for part in (slice(15), slice(15, 30))
    )
    assert f"among frozen judges they are {frozen}, among learning ones {learning}" in TEXT
