"""Sentences about graph isomorphism agree with the published data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest

from examples.exact_bounds import exact_accuracies
from ratchet.experiment_files.loading import load_experiment
from ratchet.reports.comparison.published import read_published
from ratchet.statistics import mean
from tests.planned_frames import planned_frames
from tests.test_results_pages import (
    EXPERIMENTS,
    HELP,
    PROTOCOLS,
    RESULTS,
    VARIANTS,
    differences,
    interval_of,
    parameters,
    table,
    text_of,
)

GREEDY, SAMPLED = "test", "test-by-sampling"
LARGE, LARGE_SAMPLED = "test-large", "test-large-by-sampling"
BEST, ANY = "test/test_best_response.accuracy", "test/test_any_messages.accuracy"
PROVERS = (2, 3, 4)
"""Depths of the prover among the variants."""
ALIKE = ((1, 55.0), (2, 65.0), (3, 98.0))
"""By depth of the verifier, the accuracy of accepting what looks alike, as in the page's table."""


def scores(page: str, name: str) -> dict[str, list[float]]:
    """Return a published score in percent: arm → one value for each seed, in their order."""
    found: dict[str, dict[int, float]] = {}
    for run in read_published(RESULTS / f"{page}.json").runs:
        if name in run.scores:
            found.setdefault(run.arm, {})[run.seed] = 100 * run.scores[name]
    return {arm: [by_seed[seed] for seed in sorted(by_seed)] for arm, by_seed in found.items()}


def extremes(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f} %"


def help_sentences() -> Iterator[str]:
    """Yield what the page on provers that help must say."""
    rows = table(HELP)
    for arm in ("main", "alone"):
        yield f"{rows[arm][1]} % {rows[arm][2]}"
    best, worst = scores(HELP, BEST)["main"], scores(HELP, ANY)["main"]
    accepted = [2 * (100 - each) for each in best]  # all isomorphic pairs are accepted
    yield f"accepts at most {mean(accepted):.1f} % ({extremes(accepted)} in the seeds)"
    yield f"its accuracy is {mean(best):.1f} % ({extremes(best)})"
    yield f"it is correct on {mean(worst):.1f} % ({extremes(worst)})"
    found = {arm: mean(values) for arm, values in scores(HELP, GREEDY).items()}
    yield f"shows no advantage**: {found['honest']:.1f} % (means"
    yield f"with it the verifier reaches {found['hand_made']:.1f} %"
    yield f"the verifier ends lower**: {found['random']:.1f} % (random − alone"
    yield f"three times the games, {found['alone_scratch']:.1f} %"
    large, sampled = scores(HELP, LARGE), scores(HELP, LARGE_SAMPLED)
    yield (
        f"{mean(large['main']):.1f} % on 800 pairs ({extremes(large['main'])} in the seeds), alone"
        f" {mean(large['alone']):.1f} %, with the scripted prover {mean(large['hand_made']):.1f} %"
    )
    yield f"main has {mean(sampled['main']):.1f} % there, alone {mean(sampled['alone']):.1f} %"
    yield f"with the scripted prover {mean(sampled['hand_made']):.1f} %; on pairs"
    yield f"of the trained sizes main has {mean(scores(HELP, SAMPLED)['main']):.1f} %"


@pytest.mark.parametrize("sentence", help_sentences())
def test_figures_of_the_help_study_agree_with_the_data(sentence):
    assert sentence in text_of(f"docs/results/{HELP}.md")


def test_summaries_of_the_help_study_agree_with_the_data():
    summary, rows = text_of("docs/results/index.md"), table(HELP)
    for arm in ("main", "alone"):
        for text in (summary, text_of("README.md")):
            assert f"{rows[arm][1]} % {rows[arm][2]}" in text
    accepted = 2 * (100 - min(scores(HELP, BEST)["main"]))
    assert f"accept more than {accepted:.1f} % of the wrong pairs in any seed's test" in summary


def test_the_tests_on_larger_graphs_have_the_corrected_p_of_their_tables():
    page = text_of(f"docs/results/{HELP}.md")
    tests = list(read_published(RESULTS / f"{HELP}.json").runs[0].tests)
    greedy, sampled = (differences(HELP, tests.index(name)) for name in (LARGE, LARGE_SAMPLED))
    assert f"from main, corrected p {greedy['hand_made − main']['corrected p']})" in page
    assert f"alone 60.8 % (corrected p {sampled['alone − main']['corrected p']})" in page


def test_frames_in_sentences_include_imitation_and_normalisation():
    arms = parameters(HELP)
    frames = {arm: planned_frames(params) for arm, params in arms.items()}
    totals = {arm: f"{sum(each.values()):,}" for arm, each in frames.items()}
    page = text_of(f"docs/results/{HELP}.md")
    before = sum(count for stage, count in frames["main"].items() if stage != "train")
    scripted = before + arms["main"].phases[0].num_iterations * arms["main"].rl.frames_per_batch
    for sentence in (
        f"imitation plays 80 × 3,072 = {frames['main']['imitate-prover']:,}",
        f"main and honest use {totals['main']} frames in all",
        f"hand_made, random and alone_scratch {totals['random']}, and alone {totals['alone']}",
        f"Up to {scripted:,} frames the curves of main and honest",
    ):
        assert sentence in page
    assert totals["random"] == totals["hand_made"] == totals["alone_scratch"]


def depth_arm(verifier: int, prover: int) -> str:
    """Return the arm of the variants with bodies of so many layers."""
    parts = [f"verifier_{verifier}"] * (verifier != 2) + [f"prover_{prover}"] * (prover != 3)
    return "_".join(parts) or "main"


def difference(arm: str) -> str:
    """Return the interval of an arm's difference from main as in a sentence."""
    return f"{arm} − main: {interval_of(differences(VARIANTS)[f'{arm} − main'])} points"


def by_depth(verifiers: Sequence[int], score: str) -> str:
    """Return the smallest and largest mean of a score over depths of the prover."""
    found = scores(VARIANTS, score)
    means = [mean(found[depth_arm(v, p)]) for v in verifiers for p in PROVERS]
    return f"{min(means):.1f} to {max(means):.1f} %"


def labels_in_training(arm: str) -> int:
    """Return the labelled games of a variant, from the table of its page."""
    (cell,) = (cell for cell in table(VARIANTS)[arm] if "labels" in cell)
    (count,) = re.findall(r"([\d,]+) labels", cell)
    return int(count.replace(",", ""))


def variant_sentences() -> Iterator[str]:
    """Yield what the page on variants must say."""
    found = scores(VARIANTS, GREEDY)
    means = {arm: f"{mean(values):.1f} %" for arm, values in found.items()}
    yield (
        f"decides {means['from_scratch']} of 1,600 pairs correctly"
        f" ({extremes(found['from_scratch'])} in the seeds), main {means['main']}"
    )
    for verifier in (1, 2, 3):
        cells = " | ".join(means[depth_arm(verifier, prover)] for prover in PROVERS)
        yield f"| {cells} |"
    for arm in ("untied", "separate_critics"):
        yield f"{means[arm]} ({difference(arm)})"
    two, three = "two_exchanges", "three_exchanges"
    yield f"{means[two]} with two and {means[three]} with three"
    yield f"({difference(two)}; {difference(three)})"
    large = {arm: f"{mean(values):.1f} %" for arm, values in scores(VARIANTS, LARGE).items()}
    yield f"main has {large['main']}, untied {large['untied']}, two_exchanges {large[two]}"
    yield f"of three layers have {by_depth([3], LARGE)}, by depth of the prover"
    spread = [
        max(values) - min(values)
        for values in ([mean(found[depth_arm(v, p)]) for p in PROVERS] for v in (1, 2, 3))
    ]
    yield f"means differ by at most {max(spread):.1f} points"
    gains = [mean([mean(found[depth_arm(v, p)]) for p in PROVERS]) - alike for v, alike in ALIKE]
    yield f"{gains[1]:.0f} points over accepting what looks alike"
    yield f"one of one layer gains {gains[0]:.1f}"
    below = [ALIKE[2][1] - mean(found[depth_arm(3, prover)]) for prover in PROVERS]
    yield f"three layers stays {range_of(below)} points below this rule"
    games = {arm: labels_in_training(arm) for arm in ("main", two, three)}
    shares = (f"{games[arm] / games['main']:.2f}" for arm in (two, three))
    yield f"they play {' and '.join(shares)} of main's games"
    one, both, deep = (by_depth(verifiers, BEST) for verifiers in ([1], [2], [3]))
    untied = f"{mean(scores(VARIANTS, BEST)['untied']):.1f} %"
    yield f"of one layer have {one}, of two {both} and of three {deep} (means"
    yield f"by depth of the prover), untied {untied}"
    shallow, others = (by_depth(verifiers, ANY) for verifiers in ([1], [2, 3]))
    yield f"a verifier of one layer has {shallow}, of two or three {others}"


@pytest.mark.parametrize("sentence", variant_sentences())
def test_figures_of_the_variants_agree_with_the_data(sentence):
    assert sentence in text_of(f"docs/results/{VARIANTS}.md")


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_reference_values_of_the_variants_by_depth(layers, tmp_path):
    experiment = (EXPERIMENTS / f"{VARIANTS}.yaml").read_text()
    file = tmp_path / f"{VARIANTS}.yaml"
    file.write_text(experiment.replace("num_gnn_layers: 2\n", f"num_gnn_layers: {layers}\n", 1))
    assert load_experiment(file).hyper_params.agents["verifier"].num_gnn_layers == layers
    exact = exact_accuracies(str(file))
    row = (
        f"| {layers} | {100 * exact.accept_if_alike:.1f} % | {100 * exact.random_question:.1f} % |"
    )
    assert row in text_of(f"docs/results/{VARIANTS}.md")


def test_frames_of_the_variants():
    variants = text_of(f"docs/results/{VARIANTS}.md")
    scratch, main = (planned_frames(parameters(VARIANTS)[arm]) for arm in ("from_scratch", "main"))
    assert f"{scratch['train']:,} frames of PPO" in variants
    more = sum(scratch.values()) / sum(main.values())
    assert f"{more:.1f} times main's frames" in variants


def range_of(values: Sequence[float], digits: int = 1) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def protocol_sentences() -> Iterator[str]:
    """Yield what the page on protocols must say."""
    found, lengths = scores(PROTOCOLS, GREEDY), scores(PROTOCOLS, "test/test_mean_episode_length")
    means = {arm: mean(values) for arm, values in found.items()}
    free, forced = ("nip", "debate", "mnip"), ("adp", "merlin_arthur")
    yield f"ends at {means['main']:.1f} %, with nip, debate and mnip"
    yield f"with nip, debate and mnip at {range_of([means[arm] for arm in free])} %"
    yield f"with adp and merlin_arthur at {means['adp']:.1f} and {means['merlin_arthur']:.1f} %"
    rows = {arm: differences(PROTOCOLS)[f"{arm} − main"] for arm in (*free, *forced)}
    (p,) = {rows[arm]["corrected p"] for arm in forced}
    adp, merlin_arthur = (interval_of(rows[arm]) for arm in forced)
    yield f"adp − main: {adp} points, merlin_arthur − main: {merlin_arthur} points"
    yield f"corrected p {p} for both"
    detectable = [float(rows[arm]["detectable in 80 %"]) for arm in free]
    yield f"eight seeds would detect {range_of(detectable)} points"
    low, *high = sorted(found["main"])
    yield f"seven of eight verifiers end at {range_of(high)} %, and one at {low:.1f} %"
    rounds = [(each / 100, found[arm][k]) for arm in free for k, each in enumerate(lengths[arm])]
    long = [(each, accuracy) for each, accuracy in rounds if each > 1.05]
    assert (len(rounds), len(long)) == (24, 5)
    yield f"{len(rounds) - len(long)} of {len(rounds)} runs episodes have 1.0 rounds"
    yield f"{range_of([each for each, _ in long])} rounds on average, and has"
    yield f"and has {range_of([accuracy for _, accuracy in long])} %"
    second = table(PROTOCOLS, "By the Weisfeiler–Leman round")["round 2"]
    iqms = dict(zip(found, (cell.partition(" ")[0] for cell in second), strict=True))
    least = min((iqms[arm] for arm in ("main", *free)), key=float)
    yield f"{iqms['adp']} and {iqms['merlin_arthur']} % (IQM) instead of {least} and more"
    best, worst = (scores(PROTOCOLS, name)["adp"] for name in (BEST, ANY))
    yield f"its best response leaves {mean(best):.1f} % ({range_of(best)} % in the seeds)"
    yield f"{means['adp_attacked'] - mean(best):.1f} points less than the attack, and the worst"
    yield f"the worst messages {mean(worst):.1f} % ({range_of(worst)} %)"


@pytest.mark.parametrize("sentence", protocol_sentences())
def test_figures_of_the_study_of_protocols_agree_with_the_data(sentence):
    assert sentence in text_of(f"docs/results/{PROTOCOLS}.md")


def test_protocols_are_worse_or_alike_as_their_page_says():
    found, rows = scores(PROTOCOLS, GREEDY), differences(PROTOCOLS)
    runs = read_published(RESULTS / f"{PROTOCOLS}.json").runs
    games = {arm: {run.used["train"]["labels"] for run in runs if run.arm == arm} for arm in found}
    (of_main,) = games["main"]
    for arm in ("adp", "merlin_arthur"):
        assert max(a - b for a, b in zip(found[arm], found["main"], strict=True)) < 0
        assert games[arm] == {of_main / 2}
    for arm in ("nip", "debate", "mnip"):
        assert float(rows[f"{arm} − main"]["corrected p"]) > 0.05


def test_new_provers_change_as_little_as_the_page_of_protocols_says():
    found = scores(PROTOCOLS, GREEDY)
    for arm, most in (("nip", 0), ("debate", 0), ("mnip", 0), ("merlin_arthur", 0.99)):
        pairs = zip(found[f"{arm}_attacked"], found[arm], strict=True)
        assert max(abs(after - before) for after, before in pairs) <= most
    row = differences(PROTOCOLS)["adp_attacked − adp"]
    written = f"{row['difference of means']} points on average ({interval_of(row)}, corrected p"
    most = min(a - b for a, b in zip(found["adp_attacked"], found["adp"], strict=True))
    in_one = f"and by {most:.1f} points in one seed".replace("-", "−")
    page = text_of(f"docs/results/{PROTOCOLS}.md")
    assert f"by {written} {row['corrected p']}), {in_one}" in page


def test_figures_of_a_prover_that_only_imitates_agree_with_their_data():
    name = f"{HELP}_imitated"
    published = read_published(RESULTS / "exploratory" / f"{name}.json")
    assert published.preregistered is None
    study, found = scores(HELP, GREEDY), scores(f"exploratory/{name}", GREEDY)
    assert found["main"] == study["main"], "the same runs"
    imitated, more = (mean(found[arm]) for arm in ("imitated", "main"))
    gains = [a - b for a, b in zip(found["main"], found["imitated"], strict=True)]
    assert min(gains) > 0
    page, there = (text_of(f"docs/results/{f}.md") for f in (f"exploratory/{name}", HELP))
    row = differences(f"exploratory/{name}")["imitated − main"]
    high, low = (end.strip("−+[] ") for end in row["95 % interval"].split(","))
    size = f"{row['difference of means'].strip('−')} points"
    where = f"({low} to {high}, p {row['p']}"
    assert f"decides {imitated:.1f} % of the test pairs correctly, with main's {more:.1f} %" in page
    assert f"{size} more {where}) and more in every seed" in page
    assert f"Without a prover it has {mean(study['alone']):.1f} %" in page
    best = scores(f"exploratory/{name}", BEST)
    exact = (
        f"{mean(best['imitated']):.1f} % with the imitating prover and {mean(best['main']):.1f} %"
    )
    assert exact in page
    assert f"the verifier has {imitated:.1f} %, {size} less than in main {where}" in there


def test_figures_of_pairs_that_are_not_balanced_agree_with_their_data():
    page = text_of(f"docs/results/exploratory/{HELP}.md")
    published = read_published(RESULTS / "exploratory" / f"{HELP}.json")
    assert published.preregistered is None
    found: dict[str, list[float]] = {}
    for run in published.runs:
        found.setdefault(run.arm, []).append(100 * run.scores[GREEDY])
    balanced = scores(HELP, GREEDY)
    for arm in ("main", "alone"):
        cells = " | ".join(
            f"{mean(values):.1f} ({range_of(values)})" for values in (balanced[arm], found[arm])
        )
        assert f"| {arm} | {cells} |" in page
    assert min(found["alone"]) > 65
    gains = {arm: mean(found[arm]) - mean(balanced[arm]) for arm in found}
    assert abs(gains["main"]) < 0.1
    assert f"gains {gains['alone']:.1f} points" in page
    less, more = (mean(each["main"]) - mean(each["alone"]) for each in (found, balanced))
    assert f"{less:.1f} points better than alone" in page
    assert f"instead of {more:.1f} on balanced pairs" in page
    there = text_of(f"docs/results/{HELP}.md")
    assert f"there alone has {mean(found['alone']):.1f} %" in there
