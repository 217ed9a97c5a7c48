"""Searches for settings: on validation data and with equal effort."""

from __future__ import annotations

import numpy as np
import pytest

from ratchet.reports.comparison.published import read_published
from tests.test_results_pages import (
    CHANNEL,
    CREDIT,
    DEBATE,
    HELP,
    PAGES,
    PROTOCOLS,
    PROVING,
    RESULTS,
    SUM,
    TEXT,
    VARIANTS,
    text_of,
)

FACTOR = "agents._default.agent_lr_factor.actor"
FEEDBACK = f"{PROVING}_feedback"
SEARCHED = {
    CHANNEL: "rl.lr",
    CREDIT: "pure_text_grpo.lr",
    HELP: FACTOR,
    PROTOCOLS: FACTOR,
    PROVING: "agents._default.warm_up.lr",
    FEEDBACK: "language.optimizer.lr",
}
"""Searches by the name of their page, and the parameter that each chose."""
STUDIES = {name: PROVING if name == FEEDBACK else name for name in SEARCHED}
"""The study that follows each search."""
UNSEARCHED = {
    DEBATE: "they were not tuned",
    SUM: "come from the training loss of single runs",
    TEXT: "chosen by [such runs]",
    VARIANTS: "Nothing was tuned for the variants",
    "known_answers": "Settings were chosen by NashConv in single runs",
    "zero_knowledge": "One game with one decision, one learning rate",
}
"""Pages without a search, and what they say instead."""


def searched(page: str) -> dict[str, dict[float, list[float]]]:
    """Return the accuracies of a page's search: arm → value → one for each seed."""
    found: dict[str, dict[float, list[float]]] = {}
    for run in read_published(RESULTS / "searches" / f"{page}.json").runs:
        by_value = found.setdefault(run.arm, {})
        score = run.scores.get("test", run.scores.get("test agent.return"))
        by_value.setdefault(run.differing[SEARCHED[page]], []).append(score)
    return found


def test_each_search_is_checked():
    assert sorted(SEARCHED) == sorted(file.stem for file in (RESULTS / "searches").glob("*.json"))


def test_each_page_without_a_search_says_how_its_settings_were_chosen():
    assert sorted([*set(STUDIES.values()), *UNSEARCHED]) == PAGES
    for page, sentence in UNSEARCHED.items():
        assert sentence in text_of(f"docs/results/{page}.md"), page


@pytest.mark.parametrize("page", SEARCHED)
def test_a_search_touches_no_test_data_and_no_seed_of_its_study(page):
    search = read_published(RESULTS / "searches" / f"{page}.json")
    study = read_published(RESULTS / f"{STUDIES[page]}.json")
    tested, published = ({run.data["test"] for run in each.runs} for each in (search, study))
    assert not tested & published
    assert not {run.seed for run in search.runs} & {run.seed for run in study.runs}
    assert "validation.replaces_test=true" in search.commands[0]
    tried = [{value: len(s) for value, s in arm.items()} for arm in searched(page).values()]
    assert all(each == tried[0] for each in tried), "equal effort for each arm and value"
    assert len(set(tried[0].values())) == 1


def test_the_search_of_protocols_has_the_order_that_its_page_states():
    means = {
        arm: {factor: np.mean(scores) for factor, scores in by_factor.items()}
        for arm, by_factor in searched(PROTOCOLS).items()
    }
    assert all(by_factor[0.3] < by_factor[1] for by_factor in means.values())
    assert [arm for arm in means if means[arm][3] > means[arm][1]] == ["main"]
