"""Images and labels are the source's, split, reduced to two classes and balanced as configured."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from ratchet.errors import DataError, ParameterError
from ratchet.scenarios.image_classification.agents import ImagePerception
from ratchet.scenarios.image_classification.dataset import (
    SOURCES,
    build_image_datasets,
    latent_grid,
)
from ratchet.scenarios.image_classification.scenario import ImageClassificationScenario
from tasks.tensordict.keys import ArmKeys

OPTIONS = "dataset_options__"


def rows_of(data):
    return [image.numpy().tobytes() for image in data["image"]]


def test_digits_are_scikit_learns_and_each_is_on_one_side(image_parameters):
    made = build_image_datasets(image_parameters(**{OPTIONS + "make_balanced": False}))
    assert {side: len(data) for side, data in made.items()} == {"train": 1438, "test": 359}
    images, classes = load_digits(return_X_y=True)
    known = {
        np.rint(image * 255 / 16).astype(np.uint8).tobytes(): label
        for image, label in zip(images, classes, strict=True)
    }
    found = rows_of(made["train"]) + rows_of(made["test"])
    labels = torch.cat([made[side]["original_class"] for side in ("train", "test")]).tolist()
    assert sorted(found) == sorted(known)
    assert [known[row] for row in found] == labels


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [0] * 5 + [1] * 5),
        ({"binarification_method": "select_two"}, [0, 1] + [None] * 8),
        (
            {"binarification_method": "select_two", "selected_classes": (7, 2)},
            [None, None, 1, None, None, None, None, 0, None, None],
        ),
    ],
)
def test_classes_become_labels(image_parameters, changes, expected):
    made = build_image_datasets(image_parameters(**{OPTIONS + k: v for k, v in changes.items()}))
    for data in made.values():
        labels = {int(c): int(y) for c, y in zip(data["original_class"], data["y"], strict=True)}
        assert [labels.get(c) for c in range(10)] == expected
        assert data["y"].float().mean() == 0.5


def test_random_labels_come_from_their_own_seed(image_parameters):
    def labels(**changes):
        changes = {OPTIONS + k: v for k, v in changes.items() if k != "seed"} | {
            k: v for k, v in changes.items() if k == "seed"
        }
        changes[OPTIONS + "binarification_method"] = "random"
        data = build_image_datasets(image_parameters(**changes))["train"]
        by_class = dict(zip(data["original_class"].tolist(), data["y"].tolist(), strict=True))
        return tuple(by_class[c] for c in range(10))

    one = labels(binarification_seed=1)
    assert sum(one) == 5
    assert one == labels(binarification_seed=1, seed=99)
    assert len({labels(binarification_seed=s) for s in range(5)}) > 1
    assert labels(seed=1) == one


def test_balance_leaves_out_the_surplus_only(image_parameters):
    loose = build_image_datasets(image_parameters(**{OPTIONS + "make_balanced": False}))
    even = build_image_datasets(image_parameters())
    for side in ("train", "test"):
        counts = loose[side]["y"].bincount()
        assert counts[0] != counts[1]
        assert even[side]["y"].bincount().tolist() == [counts.min()] * 2
        assert set(rows_of(even[side])) <= set(rows_of(loose[side]))


def test_training_images_have_mean_0_and_standard_deviation_1_and_test_images_their_scale(
    image_parameters,
):
    made = build_image_datasets(image_parameters(**{OPTIONS + "max_train_size": 300}))
    assert len(made["train"]) == 300
    prepare = ImagePerception(16).prepare
    pixels = prepare(made["train"].td)["image"]
    assert float(pixels.mean()) == pytest.approx(0, abs=1e-5)
    assert float(pixels.std(correction=0)) == pytest.approx(1, abs=1e-5)
    scale = made["train"]["pixel_mean"][0], made["train"]["pixel_std"][0]
    expected = (made["test"]["image"] / 255 - scale[0]) / scale[1]
    assert torch.allclose(prepare(made["test"].td)["image"], expected)


def test_data_depend_on_their_seed_and_options_alone(image_parameters):
    base = build_image_datasets(image_parameters())
    assert build_image_datasets(image_parameters()) == base
    assert build_image_datasets(image_parameters(seed=1)) != base
    fixed = {"image_classification__dataset_seed": 6198}
    assert build_image_datasets(image_parameters(seed=1, **fixed)) == base
    smaller = build_image_datasets(image_parameters(**{OPTIONS + "max_train_size": 50}))
    assert torch.equal(smaller["train"]["image"], base["train"]["image"][:50])
    assert torch.equal(smaller["test"]["image"], base["test"]["image"])


LAYOUTS = {
    "mnist": {},
    "fashion_mnist": {},
    "kmnist": {"config": "kmnist"},
    "cifar10": {"image": "img"},
    "cifar100": {"image": "img", "labels": ("fine_label", "coarse_label")},
    "svhn": {"config": "cropped_digits"},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_local_copy_in_the_hubs_layout_is_read(image_parameters, image_folder, name):
    source = SOURCES[name]
    folder = image_folder(source.shape, source.num_classes, **LAYOUTS[name])
    hyper_params = image_parameters(
        dataset=f"{name}:{folder}",
        **{OPTIONS + "make_balanced": False, OPTIONS + "max_train_size": 30},
    )
    made = build_image_datasets(hyper_params)
    assert {side: len(data) for side, data in made.items()} == {"train": 30, "test": 20}
    for data in made.values():
        assert data["image"].shape[1:] == source.shape
        assert torch.equal(data["image"][:, 0, 0, 0].long(), data["original_class"])
        assert torch.equal(data["y"], (data["original_class"] >= source.num_classes // 2).long())
    hashes = ImageClassificationScenario().data_files(hyper_params)
    assert sum(file.endswith(".parquet") for file in hashes) == 2


def test_keys_hold_a_copys_content_and_not_its_place(image_parameters, image_folder):
    folder = image_folder()

    def keys_of(place):
        keys = ArmKeys("arm", image_parameters(dataset=f"mnist:{place}"))
        return [keys.build_scenario().key, keys.initial_state().key, keys.train(0, 2).key]

    before = keys_of(folder)
    assert keys_of(folder.rename(folder.with_name("elsewhere"))) == before
    with (folder.with_name("elsewhere") / "more").open("w") as file:
        file.write("content")
    assert not set(keys_of(folder.with_name("elsewhere"))) & set(before)


def test_a_saved_copy_is_read_and_one_without_a_test_set_is_split(
    image_parameters, image_folder, tmp_path
):
    import datasets

    loaded = datasets.load_dataset(str(image_folder()), cache_dir=str(tmp_path / "cache"))
    loaded.save_to_disk(str(tmp_path / "saved"))
    loaded["train"].save_to_disk(str(tmp_path / "half"))
    loose = {OPTIONS + "make_balanced": False}
    made = build_image_datasets(image_parameters(dataset=f"mnist:{tmp_path / 'saved'}", **loose))
    assert (len(made["train"]), len(made["test"])) == (40, 20)
    half = build_image_datasets(image_parameters(dataset=f"mnist:{tmp_path / 'half'}", **loose))
    assert (len(half["train"]), len(half["test"])) == (32, 8)
    assert set(rows_of(half["train"]) + rows_of(half["test"])) == set(rows_of(made["train"]))


def test_images_and_labels_that_are_not_the_datasets_are_refused(image_parameters, image_folder):
    folder = image_folder((1, 27, 28), 12)
    with pytest.raises(DataError, match=r"row 0: got an image of 28 x 27 pixels, expected 28 x 28"):
        build_image_datasets(image_parameters(dataset=f"mnist:{folder}"))
    with pytest.raises(DataError, match=r"columns \['image', 'label'\].*labels in 'fine_label'"):
        build_image_datasets(image_parameters(dataset=f"cifar100:{folder}"))


def test_labels_out_of_range_are_refused(image_parameters, image_folder):
    folder = image_folder((1, 28, 28), 12)
    with pytest.raises(DataError, match="labels from 0 to 11, expected some from 0 to 9"):
        build_image_datasets(image_parameters(dataset=f"mnist:{folder}"))


def test_what_can_not_be_had_says_the_command_that_gets_it(image_parameters, monkeypatch):
    command = r"hf download --repo-type dataset ylecun/mnist --local-dir FOLDER.*dataset=mnist:"
    with pytest.raises(DataError, match=command):
        build_image_datasets(image_parameters(dataset="mnist"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'ratchet-experiments\[hub\]'"):
        build_image_datasets(image_parameters(dataset="mnist"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "minst"}, "got 'minst'.*mean 'mnist'"),
        ({"dataset": "digits:folder"}, "got 'digits:folder', expected 'digits'"),
        (
            {OPTIONS + "selected_classes": (1, 2)},
            "with binarification_method='merge', expected them with 'select_two' only",
        ),
        (
            {
                OPTIONS + "binarification_method": "select_two",
                OPTIONS + "selected_classes": (1, 10),
            },
            "expected two different classes from 0 to 9",
        ),
    ],
)
def test_wrong_names_and_classes_are_refused(image_parameters, changes, message):
    with pytest.raises(ParameterError, match=message):
        build_image_datasets(image_parameters(**changes))


def test_too_many_groups_leave_no_latent_pixel(image_parameters):
    assert latent_grid(image_parameters(image_classification__num_block_groups=3)) == (1, 1)
    with pytest.raises(ParameterError, match=r"num_block_groups: got 4.* expected at most 3"):
        latent_grid(image_parameters(image_classification__num_block_groups=4))
    mnist = image_parameters(dataset="mnist", image_classification__num_block_groups=2)
    assert latent_grid(mnist) == (7, 7)
