"""Transcripts in the report: reading, and their viewer in a real browser."""

import base64
import gzip
import json
import random
import shutil
import time

import pytest

from ratchet.errors import DataError
from ratchet.reports import build_report
from ratchet.reports.costs import read_costs
from ratchet.reports.transcripts import read_transcripts
from ratchet.rollouts.transcripts import sampled_transcripts

needs_browser = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="needs chromium and chromedriver",
)


def rollout(rng, number, datapoint, *, correct, decision=None):
    y = rng.randrange(2)
    given = (y if correct else 1 - y) if decision is None else decision
    answer = f"Step {number}: add 4 | + 4 | same. <b>not bold</b> & so on"
    return {
        "rollout": number,
        "datapoint_id": datapoint,
        "seed": number,
        "y": y,
        "prover_stance": 1,
        "level": 0,
        "question": f"Start with x = {datapoint}. Add 4. Give x.",
        "solution": f"x = {datapoint}\nx = x + 4\nprint(x)\n# </script><script>alert(1)</script>",
        "decision": given,
        "correct": correct and given != 2,
        "rewards": {"prover": 1.0, "verifier": 1.0 if correct else -1.0},
        "always_failed": datapoint == 3,
        "rounds": [
            {
                "round": 0,
                "messages": [{"agent": "verifier", "channel": "main", "text": "Which step?"}],
                "raw": {"verifier": "Question: Which step?"},
                "decision": {"verifier": 2},
            },
            {
                "round": 1,
                "messages": [{"agent": "prover", "channel": "main", "text": answer}],
                "raw": {"prover": f"Answer: {answer}"},
                "decision": {},
                "thinking": {"prover": "Let me <i>see</i>."},
                "invalid": {"prover": "an empty reply"},
            },
            {
                "round": 2,
                "messages": [],
                "raw": {"verifier": "Decision: accept"},
                "decision": {"verifier": given},
            },
        ],
    }


def write(folder, name, rollouts, arm="main"):
    path = folder.path / "transcripts" / arm / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in rollouts))
    return path


@pytest.fixture
def with_transcripts(run):
    rng = random.Random(1)
    for name, share in (("0", 3), ("2", 2), ("10", 1)):
        write(run, name, [rollout(rng, i, i, correct=i % 4 >= share) for i in range(20)])
    tests = [rollout(rng, i, i // 2, correct=i // 2 != 3 and i % 5 > 0) for i in range(40)]
    tests.append(rollout(rng, 40, 20, correct=False, decision=2))
    write(run, "test", tests)
    write(run, "0", [rollout(rng, 0, 0, correct=True)], arm="alone")
    return run


def test_accuracies_of_tests_are_drawn_over_iterations_and_usage_is_summed(with_transcripts):
    rng = random.Random(2)
    write(with_transcripts, "test-0", [rollout(rng, i, i, correct=i % 2 == 0) for i in range(40)])
    row = {"arm": "main", "stage": "sample_rollouts", "agent": "prover", "model": "m"}
    counts = {"calls": 2, "prompt_tokens": 10, "completion_tokens": 5, "training_tokens": 0}
    rows = [{**row, **counts, "iteration": i, "paid": True, "cost": 0.5} for i in range(3)]
    rows += [{**row, **counts, "agent": "verifier", "iteration": 0, "paid": True, "cost": None}]
    billed = {"billed_at_least": 1.5, "billed_at_most": 1.75, "billed_unknown": 3}
    (with_transcripts.path / "usage.json").write_text(json.dumps({"rows": rows, **billed}))
    page = build_report(with_transcripts).read_text()
    figures = json.loads(
        page.split('<script id="figures" type="application/json">')[1].split("<")[0]
    )
    (figure,) = [figure for figure in figures if figure["id"] == "tested-accuracy"]
    (trace,) = figure["data"]
    for one in figures:  # plots are placed by id
        assert page.count(f'id="{one["id"]}"') == 1
    assert trace["x"] == [0, 240]  # before the first and after the last of 240 iterations
    assert trace["y"][0] == 0.5
    assert trace["text"][0] == "50.0 % [35.2, 64.8], n=40"
    spent = [(row.agent, row.calls, row.price) for row in read_costs([with_transcripts])]
    assert spent == [("prover", 6, "1.50"), ("verifier", 2, "no price")]
    assert "no price" in page
    assert "Billed to this run: at least 1.50, at most 1.75: 3 attempts have no answer" in page


def test_arms_that_differ_only_in_their_seeds_are_aggregated(with_transcripts):
    parameters = with_transcripts.manifest.arms["main"]
    with_transcripts.update(arms={"main": parameters, "alone": {**parameters, "seed": 2}})
    rng = random.Random(2)
    for arm, every in (("main", 2), ("alone", 4)):
        tests = [rollout(rng, i, i, correct=i % every > 0) for i in range(40)]
        write(with_transcripts, "test-0", tests, arm)
    page = build_report(with_transcripts).read_text()
    assert "Over 2 seeds," in page
    assert "before training 50.0 to 75.0 %." in page
    assert 'id="difference-table"' not in page


def unpack(file):
    return json.loads(gzip.decompress(base64.b64decode(file.packed)))


def test_files_are_in_the_order_of_iterations_with_unchanged_content(with_transcripts):
    files = read_transcripts([with_transcripts])
    main = [file for file in files if file.arm == "main"]
    assert [file.title for file in main] == [
        "Iteration 0",
        "Iteration 2",
        "Iteration 10",
        "Final test",
    ]
    source = with_transcripts.path / "transcripts" / "main" / "10.jsonl"
    assert unpack(main[2]) == [json.loads(line) for line in source.read_text().split("\n")[:-1]]
    assert main[2].number == 20
    assert main[2].right == 15
    assert [file.arm for file in files][-1] == "alone"


def test_middle_files_above_the_size_limit_are_omitted_but_counted(with_transcripts):
    everything = [f for f in read_transcripts([with_transcripts]) if f.arm == "main"]
    room = len(everything[0].packed) + len(everything[-1].packed) + 10
    files = [f for f in read_transcripts([with_transcripts], limit=room) if f.arm == "main"]
    assert [bool(file.packed) for file in files] == [True, False, False, True]
    assert [file.number for file in files] == [file.number for file in everything]


def test_line_separators_of_unicode_do_not_break_a_transcript(with_transcripts):
    said = rollout(random.Random(3), 0, 0, correct=True)
    said["rounds"][0]["messages"][0]["text"] = "one\u2028two\u2029three\x85four"
    path = write(with_transcripts, "12", [])
    path.write_text(json.dumps(said, ensure_ascii=False) + "\n", encoding="utf-8")
    (found,) = [one for one in read_transcripts([with_transcripts]) if one.name == "12"]
    assert unpack(found) == [said]


def test_sampled_transcripts_are_shown_and_all_rollouts_are_counted(with_transcripts):
    before = read_transcripts([with_transcripts])
    for path in (with_transcripts.transcripts_path / "main").glob("*.jsonl"):
        path.write_text(sampled_transcripts(path, 2))
    after = read_transcripts([with_transcripts])
    assert [(f.title, f.number, f.right, f.accuracy) for f in after if f.arm == "main"] == [
        (f.title, f.number, f.right, f.accuracy) for f in before if f.arm == "main"
    ]
    for file in after:
        if file.arm == "main":
            shown = json.loads(gzip.decompress(base64.b64decode(file.packed)))
            assert len(shown) == min(2, file.number)
            assert all(one["question"] for one in shown)


def test_a_damaged_file_is_reported_with_its_line(with_transcripts):
    path = write(with_transcripts, "4", [])
    path.write_text('{"rollout": 0, "correct": true}\n{"rollout": 1, "corr')
    with pytest.raises(DataError, match=r"4\.jsonl, line 2"):
        read_transcripts([with_transcripts])


def test_a_report_without_transcripts_has_no_viewer(run):
    assert 'id="transcripts"' not in build_report(run).read_text()


def _rows(browser):
    return browser.find_elements("css selector", "#t-list li[role=option]")


def _reading(browser):
    return browser.find_element("css selector", "#t-reading").text


def _press(browser, name):
    browser.find_element("css selector", f"[data-filter={name}]").click()


def _wait(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the page did not change"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.browser
@needs_browser
def test_transcripts_are_filtered_searched_and_read(with_transcripts, browser):
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    browser.get(build_report(with_transcripts).as_uri())
    _wait(lambda: len(_rows(browser)) == 41)  # the latest: the final test
    groups = browser.find_elements("css selector", "#t-list li.t-group")
    assert len(groups) == 20  # two rollouts of each datapoint except one
    assert "Datapoint 3, 0 of 2 right" in [group.text for group in groups]
    _press(browser, "failed")
    assert len(_rows(browser)) == 2
    assert "Datapoint 3" in _reading(browser)
    _press(browser, "undecided")
    assert "No decision" in _reading(browser)
    _press(browser, "wrong")
    wrong = len(_rows(browser))
    _press(browser, "right")
    assert wrong + len(_rows(browser)) + 1 == 41
    _press(browser, "all")

    Select(browser.find_element("id", "t-file")).select_by_visible_text(
        "Iteration 10 · 15 of 20 right"
    )
    _wait(lambda: len(_rows(browser)) == 20)
    search = browser.find_element("id", "t-search")
    search.send_keys("STEP 7: add")
    assert len(_rows(browser)) == 1
    assert browser.find_element("css selector", "#t-reading mark").text == "Step 7: add"
    search.send_keys(Keys.CONTROL, "a")
    search.send_keys(Keys.BACKSPACE)
    _wait(lambda: len(_rows(browser)) == 20)

    _rows(browser)[0].click()
    listed = browser.find_element("id", "t-list")
    listed.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    text = _reading(browser)
    assert "Datapoint 2 · rollout 2" in text
    assert text.index("Which step?") < text.index("add 4 | + 4") < text.index("Round 2")
    assert "<b>not bold</b>" in text  # text, not markup
    assert "Could not be read: an empty reply" in text
    assert "Let me" not in text  # folded
    browser.find_element("xpath", "//summary[text()='Thinking']").click()
    assert "Let me <i>see</i>." in _reading(browser)
    Select(browser.find_element("id", "t-arm")).select_by_visible_text("alone")
    _wait(lambda: len(_rows(browser)) == 1)
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []


def on_graphs(number):
    """Return a rollout in which two agents mark the same node in turn."""
    said = [("verifier", [[0, 2]]), ("prover", [[1, 0], [0, 2]])]
    rounds = [
        {
            "round": place,
            "messages": [
                {
                    "agent": agent,
                    "channel": "main",
                    "text": " ".join(f"{'AB'[graph]}{node}" for graph, node in marks),
                    "marks": marks,
                }
            ],
            "raw": {},
            "decision": {},
        }
        for place, (agent, marks) in enumerate(said)
    ]
    rounds.append({"round": 2, "messages": [], "raw": {}, "decision": {"verifier": 1}})
    graphs = [
        {"nodes": [[0, 0], None, [1, 1]], "edges": [[0, 2]]},
        {"nodes": [[0, 1], [1, 0], [0.5, 0.5]], "edges": [[0, 1], [1, 2]]},
    ]
    facts = {"rollout": number, "datapoint_id": number, "seed": 1, "y": 1, "prover_stance": 1}
    facts["truth"] = "the graphs are the same"
    shown = {"question": "A2 B0 A2", "solution": "", "decision": 1, "correct": True}
    more = {"rewards": {"prover": 1.0, "verifier": 1.0}, "always_failed": False}
    return {**facts, **shown, **more, "rounds": rounds, "graphs": graphs}


@pytest.mark.slow
@pytest.mark.browser
@needs_browser
def test_the_truth_is_shown_in_the_scenarios_words(run, browser):
    one = {**rollout(random.Random(0), 0, 0, correct=True), "y": 0, "decision": 0}
    write(run, "4", [{**one, "truth": "the sum is wrong"}])
    browser.get(build_report(run).as_uri())
    _wait(lambda: len(_rows(browser)) == 1)
    assert "Reject – the sum is wrong" in _reading(browser)
    write(run, "4", [one])
    browser.get(build_report(run).as_uri())
    _wait(lambda: len(_rows(browser)) == 1)
    assert "Reject – to reject is right" in _reading(browser)


@pytest.mark.slow
@pytest.mark.browser
@needs_browser
def test_graphs_are_drawn_for_each_round_with_the_marked_nodes(run, browser):
    write(run, "4", [on_graphs(0)])
    browser.get(build_report(run).as_uri())
    _wait(lambda: len(_rows(browser)) == 1)
    assert "Accept – the graphs are the same" in _reading(browser)
    pictures = browser.find_elements("css selector", "svg.t-graphs")
    assert len(pictures) == 3

    def shown(picture, what):
        titles = picture.find_elements("css selector", f"g:has({what}) > title")
        return [title.get_attribute("textContent") for title in titles]

    verifier, both = "verifier in round 0", "verifier in round 0, prover in round 1"
    assert [len(p.find_elements("css selector", ".t-node")) for p in pictures] == [5, 5, 5]
    assert [len(p.find_elements("css selector", "line")) for p in pictures] == [3, 3, 3]
    assert [shown(p, ".now") for p in pictures] == [[verifier], [both, "prover in round 1"], []]
    assert [shown(p, ".t-ring") for p in pictures] == [[], [both], [both, "prover in round 1"]]
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []


@pytest.mark.slow
@pytest.mark.browser
@needs_browser
def test_a_transcript_has_a_permanent_link(with_transcripts, browser):
    page = build_report(with_transcripts).as_uri()
    run_id = with_transcripts.run_id
    browser.get(f"{page}#transcript={run_id}/main/2/7/7")
    _wait(lambda: "Datapoint 7 · rollout 7" in _reading(browser))
    assert browser.find_element("id", "t-file").get_attribute("value") == "2"
    top = "return document.getElementById('transcripts').getBoundingClientRect().top"
    assert abs(browser.execute_script(top)) < 50
    _rows(browser)[3].click()
    link = browser.find_element("css selector", "#t-reading .t-link")
    assert link.get_attribute("href") == f"{page}#transcript={run_id}/main/2/3/3"
    link.click()
    assert browser.current_url.endswith("/main/2/3/3")
    _press(browser, "right")
    browser.execute_script(f"location.hash = '#transcript={run_id}/alone/0/0/0'")
    _wait(lambda: len(_rows(browser)) == 1)
    assert browser.find_element("id", "t-arm").get_attribute("value") == "alone"
    browser.execute_script(f"location.hash = '#transcript={run_id}/main/77/1/1'")
    note = browser.find_element("id", "t-note")
    _wait(lambda: f"no transcript {run_id}/main/77/1/1" in note.text)
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []
