"""Claims are evaluated against published data, by a small language only."""

from __future__ import annotations

import json

import pytest

from ratchet.errors import DataError, ParameterError
from ratchet.reports.claims import check_claims, evaluate, read_attacks
from ratchet.reports.comparison.published import Published

SCORES = {"main": [0.5, 0.7, 0.9], "adp": [0.6, 0.9, 0.9]}
SLOW, RATE = [0.2, 0.3, 0.4], {"rl.lr": 0.001}


def run(arm, seed, scores, **differing):
    return {
        **{"run": f"{arm}-{seed}", "experiment": "exp", "arm": arm, "seed": seed, "tests": {}},
        **{"differing": differing, "scores": scores},
    }


PUBLISHED = Published.model_validate(
    {
        "commands": [],
        "versions": {},
        "runs": [
            *(
                run(arm, seed, {"test": score, "test/test_trust": 1 - score})
                for arm, scores in SCORES.items()
                for seed, score in enumerate(scores)
            ),
            *(run("slow", seed, {"test": score}, **RATE) for seed, score in enumerate(SLOW)),
        ],
    }
)


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        ("mean(adp) - mean(main) > 0", True),
        ("mean(adp) - mean(main) < 0", False),
        ("mean(main) == 0.7", True),
        ("0.69 < mean(main) <= 0.70000001", True),
        ("all(adp >= main)", True),
        ("all(adp > main)", False),
        ("any(adp > main) and not all(adp == main)", True),
        ("count(main > 0.6) == 2", True),
        ("count(adp == main) == 1", True),
        ("max(adp - main) == 0.2", True),
        ("mean(score('main', 'test/test_trust')) == 1 - mean(main)", True),
        ("median(main) == 0.7 or 1 > 2", True),
        ("round(100 * mean(adp), 1) == 80.0", True),
        ("min(-main) == -0.9", True),
        ("mean(score('slow · lr=0.001')) == 0.3", True),
        ("abs(iqm(main) - 0.7) < 1e-9 and stdev(main) > 0.1", True),
        ("min(interval(main)) < iqm(main) < max(interval(main))", True),
    ],
)
def test_a_claim_is_true_or_false(claim, holds):
    assert evaluate(claim, PUBLISHED).holds is holds


def test_a_false_claim_shows_the_compared_numbers():
    assert str(evaluate("mean(main) > mean(adp)", PUBLISHED)) == (
        "mean(main) > mean(adp) (0.7, 0.8)"
    )


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ("mean(mian) > 1", "unknown arm 'mian', .*Did you mean 'main'"),
        ("meen(main) > 1", "unknown function 'meen'.*Did you mean 'mean'"),
        ("main > 0.5", r"expected true or false.*use all\(…\)"),
        ("mean(main)", "expected true or false"),
        ("mean(score('main', 'trust')) > 0", "no metric 'trust', expected one of test, test/test_"),
        ("mean(1) > 0", r"expected mean\(ARM\)"),
        ("mean(main", "never closed"),
        ("mean(main) / 0 > 1", "division by zero"),
        ("'a' > 1", "got text"),
        ("mean(main) in [1]", "expected"),
        ("__import__('os').system('true') == 0", "expected arms, numbers"),
        ("main.__class__ == 1", "expected arms, numbers"),
        ("(lambda: 1)() == 1", "expected arms, numbers"),
        ("[x for x in main] == 1", "expected arms, numbers"),
        ("9 ** 9 ** 9 > 1", "expected arms, numbers"),
        ("mean(x := main) > 1", "expected arms, numbers"),
        ("1 > 0 " * 500, "at most 1000 characters"),
    ],
)
def test_other_text_is_refused(claim, message):
    with pytest.raises(ParameterError, match=message):
        evaluate(claim, PUBLISHED)


def test_results_under_attack_are_by_seed(tmp_path):
    rows = [
        {"run_id": f"main-{seed}", "arm": "main", "worst": {"value": 0.1 * seed}}
        for seed in (2, 1, 0)
    ]
    attacks = tmp_path / "attacks.json"
    attacks.write_text(json.dumps({"tables": [{"title": "", "rows": rows}]}))
    attacked = read_attacks(attacks, PUBLISHED)
    assert attacked == {"main": {0: 0.0, 1: 0.1, 2: 0.2}}
    assert evaluate("all(attacked('main') < main)", PUBLISHED, attacked).holds
    with pytest.raises(ParameterError, match=r"attacked: .*attacked\('ARM'\), an arm in the data"):
        evaluate("max(attacked('adp')) < 1", PUBLISHED, attacked)
    attacks.write_text("{}")
    with pytest.raises(DataError, match=r"attacks\.json: expected the output of `ratchet exploit"):
        read_attacks(attacks, PUBLISHED)


def test_claims_are_read_with_the_data_of_a_page(tmp_path):
    data = tmp_path / "page.json"
    data.write_text(PUBLISHED.model_dump_json())
    claims = check_claims(["mean(main) > 0", "mean(main) > 1"], data)
    assert [claim.holds for claim in claims] == [True, False]
    assert check_claims([], tmp_path / "missing.json") == []
