"""The contract of the generator: labels, mix, spread, disjoint sides, reproducible bytes."""

import os
import subprocess
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from ratchet.errors import DataError, OutOfMemoryError, ParameterError
from ratchet.parameters import HyperParameters
from ratchet.scenarios.dataset import TensorDictDataset
from ratchet.scenarios.graph_isomorphism.dataset import build_graph_datasets, pairs_to_dataset
from ratchet.scenarios.graph_isomorphism.generator import GraphPairs
from ratchet.scenarios.graph_isomorphism.wl import class_keys

ROOT = Path(__file__).parents[3]
REQUIRED = {"scenario": "graph_isomorphism", "trainer": "vanilla_ppo"}
SMALL = {"graph_sizes": (8, 9), "edge_probabilities": (0.4, 0.6)}


def make(dataset: str = "generated", **section):
    options = section.pop("dataset_options", {})
    top = {key: section.pop(key) for key in ("seed", "test_size") if key in section}
    hyper_params = HyperParameters(
        **REQUIRED,
        **top,
        dataset=dataset,
        graph_isomorphism={**SMALL, **section},
        dataset_options=options,
    )
    return build_graph_datasets(hyper_params)


@pytest.fixture(scope="module")
def datasets():
    return build_graph_datasets(HyperParameters(**REQUIRED, dataset="eru1000"))


def graphs_of(dataset: TensorDictDataset):
    """All graphs without padding, in pairs."""
    for adjacency, n in zip(dataset["adjacency"].numpy(), dataset["num_nodes"], strict=True):
        yield adjacency[:, :n, :n]


def keys_of(dataset: TensorDictDataset) -> set[int]:
    return {int(key) for pair in graphs_of(dataset) for key in class_keys(pair, salt=0)}


def test_shapes_types_and_masks(datasets):
    train = datasets["train"]
    assert train["adjacency"].shape == (800, 2, 11, 11)
    assert train["adjacency"].dtype == torch.uint8
    assert train["node_mask"].shape == (800, 2, 11)
    assert torch.equal(train["node_mask"].sum(-1), train["num_nodes"][:, None].expand(-1, 2))
    absent = ~train["node_mask"]
    assert not train["adjacency"][absent].any()
    assert torch.equal(train["adjacency"], train["adjacency"].transpose(-1, -2))
    assert not train["adjacency"].diagonal(dim1=-2, dim2=-1).any()


@pytest.mark.parametrize(("name", "size"), [("train", 800), ("test", 200)])
def test_mix_is_as_asked(datasets, name, size):
    dataset = datasets[name]
    counts = torch.bincount(dataset["wl_score"], minlength=7)
    assert len(dataset) == size
    assert counts[0] == size // 2
    assert counts[1] == size // 20
    assert counts[2] == size // 10
    assert counts[3:6].sum() == size * 35 // 100
    assert counts[6:].sum() == 0
    assert torch.equal(dataset["y"], (dataset["wl_score"] == 0).long())


def test_pairs_are_spread_evenly_over_sizes_and_probabilities(datasets):
    train = datasets["train"]
    cells = train["num_nodes"] * 10 + (train["edge_probability"] * 10).round().long()
    for kind in (train["wl_score"] == 1, train["wl_score"] == 2):
        counts = cells[kind].unique(return_counts=True)[1]
        assert len(counts) == 20
        assert counts.max() - counts.min() <= 1
    counts = cells[(train["wl_score"] > 2) & (train["num_nodes"] >= 9)].unique(return_counts=True)[
        1
    ]
    assert len(counts) == 12
    assert counts.max() - counts.min() <= 3


def test_labels_agree_with_networkx(datasets):
    dataset = datasets["test"]
    for pair, y in zip(graphs_of(dataset), dataset["y"].tolist(), strict=True):
        assert nx.is_isomorphic(*(nx.from_numpy_array(graph) for graph in pair)) == bool(y)


def test_no_pair_comes_twice(datasets):
    few_graphs = make(
        "er300", graph_sizes=(5,), edge_probabilities=(0.3,), prop_score_1=1, prop_score_2=0
    )
    for dataset in (*datasets.values(), *few_graphs.values()):
        pairs = [tuple(sorted(g.tobytes() for g in pair)) for pair in graphs_of(dataset)]
        assert len(set(pairs)) == len(pairs)


def test_sides_share_no_graph_even_relabelled():
    section = {"extra_test_sets": {"easy": {"num_pairs": 40}}}
    for seed in (1, 2):
        made = make("er300", seed=seed, graph_sizes=(7, 8), **section)
        assert not keys_of(made["train"]) & (keys_of(made["test"]) | keys_of(made["easy"]))


def test_an_extra_test_set_may_have_larger_graphs():
    made = make("er100", extra_test_sets={"large": {"num_pairs": 20, "graph_sizes": (12, 14)}})
    assert made["test"]["adjacency"].shape[-1] == 9
    assert set(made["large"]["num_nodes"].tolist()) == {12, 14}
    for pair, y in zip(graphs_of(made["large"]), made["large"]["y"].tolist(), strict=True):
        assert nx.is_isomorphic(*(nx.from_numpy_array(graph) for graph in pair)) == bool(y)


def test_half_of_the_isomorphic_pairs_reuse_graphs(datasets):
    train = datasets["train"]
    negatives = {
        graph.tobytes()
        for pair, y in zip(graphs_of(train), train["y"], strict=True)
        if not y
        for graph in pair
    }
    reused = sum(
        pair[0].tobytes() in negatives
        for pair, y in zip(graphs_of(train), train["y"], strict=True)
        if y
    )
    assert 200 <= reused <= 220  # a few new graphs are the same by chance


def single_graph_features(dataset):
    """Size, degrees, two-round colours and triangles of the first graph of each pair."""
    adjacency = dataset["adjacency"][:, 0].double()
    present = dataset["node_mask"][:, 0]
    degrees = adjacency.sum(-1)
    sums = [(adjacency @ degrees[..., None] ** k)[..., 0] for k in (1, 2)]
    columns = [
        degrees,
        degrees + sums[0] / 1e3 + sums[1] / 1e7,  # of a node's neighbours: one number for a colour
        torch.einsum("bij,bjk,bki->bi", adjacency, adjacency, adjacency),
    ]
    columns = [column.masked_fill(~present, 1e3).sort(-1).values for column in columns]
    return torch.cat([present.sum(-1, keepdim=True), *columns], -1).numpy()


@pytest.mark.slow
@pytest.mark.parametrize(("balanced", "published"), [(False, 0.603), (True, 0.501)])
def test_a_single_graph_of_balanced_data_carries_no_information(balanced, published):
    section = {"num_pairs": 24_000, "balanced": balanced}
    options = {"dataset": "generated", "test_size": 0.5, "graph_isomorphism": section}
    made = build_graph_datasets(HyperParameters(**REQUIRED, **options))
    train, test = made["train"], made["test"]
    classifier = HistGradientBoostingClassifier(max_iter=100, random_state=0)
    classifier.fit(single_graph_features(train), train["y"].numpy())
    score = classifier.score(single_graph_features(test), test["y"].numpy())
    assert score == pytest.approx(published, abs=0.009)  # twice the standard error
    page = (ROOT / "docs/results/graph_isomorphism_help.md").read_text()
    assert f"{100 * published:.1f} %" in page


def test_balanced_data_take_one_graph_of_each_non_isomorphic_pair():
    test = make("eru400", balanced=True)["test"]
    pairs = list(zip(graphs_of(test), test["y"], strict=True))
    owner = {graph.tobytes(): n for n, (pair, y) in enumerate(pairs) if not y for graph in pair}
    reused = [
        {owner[graph.tobytes()] for graph in pair if graph.tobytes() in owner}
        for pair, y in pairs
        if y
    ]
    assert all(reused), "each isomorphic pair has a graph of a non-isomorphic one"
    assert len(set().union(*reused)) >= 0.9 * len(reused)  # a few graphs are in several pairs


def test_order_is_shuffled(datasets):
    y = datasets["train"]["y"].float()
    assert 0.35 < y[:200].mean() < 0.65
    assert 0.35 < y[-200:].mean() < 0.65


def test_same_seed_same_bytes_other_seed_other_bytes():
    first, again, other = make("er200"), make("er200"), make("er200", seed=1)
    fixed = [make("er200", seed=seed, dataset_seed=5) for seed in (1, 2)]
    for name in ("train", "test"):
        assert first[name].hash == again[name].hash
        assert first[name].hash != other[name].hash
        assert fixed[0][name].hash == fixed[1][name].hash


@pytest.mark.slow
def test_dataset_does_not_depend_on_pythons_hash_seed():
    code = (
        "from ratchet.parameters import HyperParameters\n"
        "from ratchet.scenarios.graph_isomorphism.dataset import build_graph_datasets\n"
        "import sys\n"
        "section = {'graph_sizes': (8, 9), 'edge_probabilities': (0.4, 0.6)}\n"
        "p = HyperParameters(scenario='graph_isomorphism', trainer='vanilla_ppo',\n"
        "    dataset='er100', graph_isomorphism=section)\n"
        "sys.stdout.write(' '.join(d.hash for d in build_graph_datasets(p).values()))\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "123", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == " ".join(dataset.hash for dataset in make("er100").values())


def test_saved_graph_dataset_loads_equal(tmp_path, datasets):
    datasets["test"].save(tmp_path)
    assert TensorDictDataset.load(tmp_path) == datasets["test"]


def test_what_concerns_one_set_leaves_the_others_alone():
    plain = make("er200")
    mixed = make("er200", train_prop_score_1=0.5, train_prop_score_2=0.5)
    assert mixed["test"].hash == plain["test"].hash
    assert mixed["train"].hash != plain["train"].hash
    assert mixed["train"]["wl_score"].max() == 2
    cut = make("er200", dataset_options={"max_train_size": 30})
    assert len(cut["train"]) == 30
    assert torch.equal(cut["train"]["adjacency"], plain["train"]["adjacency"][:30])
    assert cut["test"].hash == plain["test"].hash


def test_extra_test_sets_have_their_own_mix():
    easy = {"num_pairs": 60, "prop_score_1": 0.4, "prop_score_2": 0.6}
    made = make("er100", extra_test_sets={"easy": easy})
    assert list(made) == ["train", "test", "easy"]
    counts = torch.bincount(made["easy"]["wl_score"])
    assert counts.tolist() == [30, 12, 18]


def test_section_decides_for_generated():
    made = make(num_pairs=120, test_size=0.25, prop_non_isomorphic=0.25, max_wl_rounds=3)
    assert [len(made[name]) for name in ("train", "test")] == [90, 30]
    assert made["train"]["y"].sum() == 90 - round(90 * 0.25)
    assert made["train"]["wl_score"].max() == 3


def test_bad_requests_say_what_to_do():
    with pytest.raises(ParameterError, match="er1000"):
        make("erx")
    with pytest.raises(ParameterError, match="test_size"):
        make("er3", test_size=0.01)
    with pytest.raises(DataError, match="larger"):
        make("er100", graph_sizes=(4,))
    for section in (
        {"prop_score_1": 0.7, "prop_score_2": 0.7},
        {"graph_sizes": ()},
        {"graph_sizes": (7, 7)},
        {"edge_probabilities": (1.0,)},
        {"extra_test_sets": {"train": {}}},
        {"train_prop_score_1": 0.9},
        {"balanced": True, "prop_non_isomorphic": 0.4},
    ):
        with pytest.raises(ParameterError, match="graph_isomorphism"):
            make(**section)


def test_more_pairs_than_the_memory_holds_are_refused_before_any_is_made():
    hyper_params = HyperParameters(
        scenario="graph_isomorphism",
        trainer="vanilla_ppo",
        dataset="generated",
        graph_isomorphism={"num_pairs": 10**11},
    )
    with pytest.raises(OutOfMemoryError, match=r"GiB, but this machine has .* Lower num_pairs"):
        build_graph_datasets(hyper_params)


def test_a_wrong_label_is_found():
    path = nx.to_numpy_array(nx.path_graph(4), dtype=np.uint8)
    star = nx.to_numpy_array(nx.star_graph(3), dtype=np.uint8)
    pairs = GraphPairs(np.stack([path, star])[None], np.array([4]), np.array([0.5]), np.array([0]))
    with pytest.raises(DataError, match="refinement says 1"):
        pairs_to_dataset(pairs, max_wl_rounds=5)


@pytest.mark.slow
def test_ten_thousand_pairs_take_seconds():
    import time

    start = time.process_time()
    build_graph_datasets(HyperParameters(**REQUIRED, dataset="eru10000"))
    assert time.process_time() - start < 40
