"""Faults between client and service lead to no duplicate payment and no lost work.

Each scenario disturbs one or two requests of an expert iteration run: an error response, a closed
connection, a late or missing response, the client killed before, during or after the request, the
service killed and restarted. The run is re-run while it is killed, and must end like an undisturbed
one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

JOBS, FILES, CHAT = "/v1/fine_tuning/jobs", "/v1/files", "/v1/chat/completions"
AGENT = {"base_url": "embedded", "api_key_name": "GAME_KEY", "fine_tuning": {"n_epochs": 1}}
HYPER_PARAMS = {
    "scenario": "code_validation",
    "trainer": "pure_text_ei",
    "dataset": "generated",
    "interaction_protocol": "adp",
    "seed": 7,
    "agents": {"_default": AGENT},
    "code_validation": {"num_train": 60, "num_test": 20, "levels": [0]},
    "rl": {"num_iterations": 3, "rollouts_per_iteration": 60},
}
SETTINGS = {
    "num_rollout_workers": 8,
    "poll_seconds": 0.1,
    "poll_seconds_max": 0.2,
    "retry_delay_seconds": 0,
    "request_seconds": 3,
}
ONCE = ("429", "500", "503", "503_after", "cut_before", "cut_after", "half", "slow")
KILLS = ("kill_before", "kill_after", "kill_answered")
# Requests by kind and position. Each of two groups creates a job in iterations 0 and 1.
PLACES = {
    "first upload": ("POST", FILES, 0),
    "last upload": ("POST", FILES, 3),
    "first job": ("POST", JOBS, 0),
    "second job": ("POST", JOBS, 1),
    "third job": ("POST", JOBS, 2),
    "look for jobs": ("GET", JOBS, 1),
    "poll": ("GET", JOBS + "/", 3),
    "chat": ("POST", CHAT, 30),
    "late chat": ("POST", CHAT, 200),
}


def rule(place, action):
    method, path, nth = PLACES[place]
    return {"method": method, "path": path, "nth": nth, "action": action}


SCENARIOS = [
    (rule("chat", "kill_before"),),
    (rule("first job", "kill_after"), rule("second job", "cut_after"), rule("poll", "restart")),
]
EXHAUSTIVE = [
    (rule("last upload", "kill_before"), rule("third job", "503_after")),
    (rule("first job", "silent_after"),),
    (rule("poll", "half"),),
    (rule("first upload", "kill_answered"),),
    (rule("look for jobs", "kill_after"),),
    (rule("late chat", "kill_after"), rule("second job", "kill_after")),
    tuple(
        rule(place, "html_after")
        for place in ("first upload", "first job", "look for jobs", "poll", "chat")
    ),
    *[(rule("first job", action),) for action in (*ONCE, *KILLS, "restart")],
    *[(rule("third job", action),) for action in ("503_after", "kill_after")],
    *[(rule("first upload", action),) for action in ("cut_after", "kill_before", "kill_after")],
    *[(rule("poll", action),) for action in ("restart", "kill_answered")],
    (rule("look for jobs", "429"),),
    *[
        (rule("chat", action),)
        for action in ("cut_after", "restart", "kill_after", "kill_answered")
    ],
]
"""The other pairs of a request and a fault, which `make test-exhaustive` runs."""
ALL = [
    *SCENARIOS,
    *(pytest.param(s, marks=pytest.mark.exhaustive) for s in EXHAUSTIVE if s not in SCENARIOS),
]


def name_of(rules):
    return "+".join(
        f"{r['path'].rsplit('/', 1)[-1] or 'poll'}-{r['nth']}-{r['action']}" for r in rules
    )


def outcome(lab, result):
    """Return the results that must not depend on faults."""
    folder = Path(result["folder"])
    transcripts = {
        path.relative_to(folder): path.read_bytes()
        for path in sorted((folder / "transcripts").rglob("*.jsonl"))
    }
    return sorted(lab.metrics(result)), lab.weights(result), transcripts


@pytest.fixture(scope="module")
def undisturbed(new_scene):
    """Run once without faults."""
    scene = new_scene()
    try:
        result = scene.play(HYPER_PARAMS, scene.lab.settings(**SETTINGS))
        assert scene.files_with_the_key() == []
        return outcome(scene.lab, result), scene.jobs(), scene.calls()
    finally:
        scene.close()


def test_the_undisturbed_run_creates_one_job_per_group_and_iteration(undisturbed):
    (metrics, _, transcripts), jobs, _ = undisturbed
    assert len(jobs) == 4
    assert {job["status"] for job in jobs} == {"succeeded"}
    assert len(transcripts) >= 4
    models = {job["fine_tuned_model"] for job in jobs}
    assert len(models) == 4
    rewards = [dict(values) for _, stage, _, values in metrics if stage == "log_stats"]
    assert (
        len({json.dumps(values, sort_keys=True) for values in rewards}) == 3
    )  # they depend on the model


@pytest.mark.parametrize("rules", ALL, ids=name_of)
def test_a_disturbed_run_ends_like_the_undisturbed_one_and_pays_once(rules, new_scene, undisturbed):
    expected, expected_jobs, expected_calls = undisturbed
    scene = new_scene(*rules)
    try:
        result = scene.play(HYPER_PARAMS, scene.lab.settings(**SETTINGS))
        assert scene.files_with_the_key() == []
        assert sorted(scene.fired()) == sorted(r["action"] for r in rules)
        assert outcome(scene.lab, result) == expected
        jobs = scene.jobs()
        assert len(jobs) == len(expected_jobs)
        assert {job["status"] for job in jobs} == {"succeeded"}
        assert _models(jobs) == _models(expected_jobs)
        if "restart" not in scene.fired():  # requests to an unavailable service are repeated
            # Of the requests sent before, only those in flight are repeated.
            chats = scene.calls()["POST", CHAT] - expected_calls["POST", CHAT]
            assert chats <= len(rules) * (SETTINGS["num_rollout_workers"] + 1)
    finally:
        scene.close()


def _models(jobs):
    return sorted(job["fine_tuned_model"] for job in jobs)
