"""TerratorchConfig: what a folder of TerraTorch says of its model, without TerraTorch."""

import copy

import pytest
from terratorch_configs import BANDS, flood_config, radar_config

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.terratorch.config import TerratorchConfig, completed, is_terratorch


def arguments(config):
    return config["pretrained_cfg"]["model"]["init_args"]


def test_a_flood_model_is_read():
    """Bands, size, and what is taken beside the image."""
    found = TerratorchConfig.of(flood_config())
    (image,) = found.modalities
    assert (image.name, image.bands, image.frames, image.size) == ("pixel_values", tuple(BANDS), None, (64, 64))
    assert (found.target, found.crop) == ("pixel_values", (64, 64))
    assert found.extras == ("location_coords", "temporal_coords")
    assert found.keywords == (
        "pixel_values_raw", "pixel_values", "location_coords", "temporal_coords", "means", "stds"
    )  # fmt: skip


def test_several_dates_are_frames():
    """[bands, frames, height, width]."""
    (image,) = TerratorchConfig.of(flood_config(size=(6, 3, 32, 48))).modalities
    assert (image.frames, image.size) == (3, (32, 48))


@pytest.mark.parametrize(
    ("tiled", "crop"),
    [
        ({"h_crop": 32, "w_crop": 48, "h_stride": 16, "w_stride": 16}, (32, 48)),
        ({"crop": 128, "stride": 100}, (128, 128)),
        ({"h_crop": 32}, (32, 64)),
        ({}, (64, 64)),
    ],
)
def test_the_crop_is_that_of_tiled_inference(tiled, crop):
    """Else the input's size."""
    config = flood_config()
    arguments(config)["tiled_inference_parameters"] = tiled
    assert TerratorchConfig.of(config).crop == crop


def test_several_images_have_bands_of_their_own():
    """By the entries of the data module."""
    found = TerratorchConfig.of(radar_config())
    assert [(one.name, one.bands) for one in found.modalities] == [
        ("S2L2A", ("BLUE", "GREEN", "RED")),
        ("S1GRD", ("VV", "VH")),
    ]
    assert found.target is None


def test_bands_without_names_are_numbered():
    """A folder need not say them."""
    config = flood_config()
    del config["pretrained_cfg"]["data"]["init_args"]["bands"], arguments(config)["model_args"]["backbone_bands"]
    assert TerratorchConfig.of(config).modalities[0].bands[:2] == ("band 1", "band 2")


def test_the_mmout_table_names_bands():
    """Before all others."""
    config = flood_config(mmout={"input": {"bands": ["a", "b", "c", "d", "e", "f"]}})
    assert TerratorchConfig.of(config).modalities[0].bands == ("a", "b", "c", "d", "e", "f")


@pytest.mark.parametrize(
    ("bands", "names"),
    [
        ([[1, 6]], ["1", "2", "3", "4", "5", "6"]),
        (["BLUE", [2, 5], "RED"], ["BLUE", "2", "3", "4", "5", "RED"]),
        ([0, [7, 11]], ["0", "7", "8", "9", "10", "11"]),
    ],
)
def test_intervals_are_all_bands_in_them(bands, names):
    """Both ends among them, as TerraTorch has it."""
    config = flood_config()
    config["pretrained_cfg"]["data"]["init_args"]["output_bands"] = bands
    assert TerratorchConfig.of(config).modalities[0].bands == tuple(names)


@pytest.mark.parametrize("interval", [[1], [1, 3, 6], [6, 1], ["1", "6"]])
def test_intervals_that_are_none_are_refused(interval):
    """What is written there is shown."""
    config = flood_config(mmout={"input": {"bands": [interval]}})
    with pytest.raises(OptionError, match=r"must be an interval \[first, last\], got"):
        TerratorchConfig.of(config)


@pytest.mark.parametrize(
    ("task", "processor"),
    [
        ("SemanticSegmentationTask", "segmentation"),
        ("PixelwiseRegressionTask", "regression"),
        ("ClassificationTask", "classification"),
        ("MultiLabelClassificationTask", "classification"),
        ("ScalarRegressionTask", "tensor"),
        ("EmbeddingGenerationTask", "embedding"),
    ],
)
def test_the_task_chooses_the_processor(task, processor):
    """And what the folder names itself stays."""
    config = flood_config()
    config["pretrained_cfg"]["model"]["class_path"] = f"terratorch.tasks.{task}"
    arguments(config)["class_names"] = ["land", "water"]
    before = copy.deepcopy(config)
    table = completed(config)["mmout"]
    assert table["output_processor"] == processor
    assert table.get("class_names") == (["land", "water"] if processor in ("segmentation", "classification") else None)
    assert table.get("multi_label", False) is (task == "MultiLabelClassificationTask")
    assert config == before


@pytest.mark.parametrize(
    ("entries", "patches"),
    [
        ({"model_args": {"backbone": "prithvi_eo_v2_300_tl"}, "has_cls": True}, (16, 1)),
        ({"model_args": {"backbone": "terratorch_prithvi_eo_v2_600"}}, (14, 1)),
        ({"model_args": {"backbone": "prithvi_eo_v2_300", "backbone_patch_size": [1, 8, 8]}}, (8, 1)),
        ({"model_args": {"backbone": "terramind_v1_base"}, "has_cls": False}, (16, 0)),
        ({"model": "prithvi_eo_v1_100", "model_args": {}}, (16, 1)),
        ({"model_args": {"backbone": "timm_resnet50"}}, (None, None)),
    ],
)
def test_the_patches_of_known_backbones_need_no_option(entries, patches):
    """Their size and the number of class tokens are found by the backbone's name, and what the folder sets wins."""
    config = flood_config(output_processor="embedding_grid")
    config["pretrained_cfg"]["model"] = {"class_path": "terratorch.tasks.EmbeddingGenerationTask", "init_args": entries}
    described = completed(config)
    assert (described.get("patch_size"), described.get("prefix_tokens")) == patches


@pytest.mark.parametrize(
    ("network", "dates"),
    [
        ({"backbone": "prithvi_eo_v2_300_tl"}, 4),
        ({"backbone": "prithvi_eo_v2_300_tl", "backbone_patch_size": [2, 16, 16]}, 2),
        ({"backbone": "prithvi_eo_v2_300_tl", "backbone_use_temporal": True}, None),
        ({"backbone": "terramind_v1_base"}, None),
    ],
)
def test_the_dates_of_prithvis_tokens_are_known(network, dates):
    """Prithvi keeps the tokens of each date, or of several dates together, unless TerraTorch joins them."""
    config = flood_config(size=(6, 4, 64, 64))
    arguments = {"model_args": network}
    config["pretrained_cfg"]["model"] = {
        "class_path": "terratorch.tasks.EmbeddingGenerationTask",
        "init_args": arguments,
    }
    assert completed(config).get("token_dates") == dates


@pytest.mark.parametrize(
    "said",
    [
        {"output_processor": "none"},
        {"output_processor": "tensor"},
        {"mmout": {"output_processor": "tensor"}},
    ],
)
def test_a_folder_that_names_a_processor_keeps_it(said):
    """Nothing is added."""
    config = flood_config(**said)
    assert completed(config) == config


def test_options_of_the_folder_stand_beside_the_processor():
    """Class names of the table are before those of the model."""
    config = flood_config(mmout={"class_names": ["a", "b"]})
    arguments(config)["class_names"] = ["land", "water"]
    assert completed(config)["mmout"] == {"output_processor": "segmentation", "class_names": ["a", "b"]}


def test_other_folders_are_left_alone():
    """A text model's configuration passes as it is."""
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8}
    assert not is_terratorch(config)
    assert completed(config) is config


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["pretrained_cfg"].pop("model"), '"pretrained_cfg.model" in config.json must be a table'),
        (lambda c: c["pretrained_cfg"].pop("input"), '"pretrained_cfg.input" in config.json must be a table'),
        (
            lambda c: c["pretrained_cfg"]["model"].update(class_path="terratorch.tasks.ObjectDetectionTask"),
            "ObjectDetectionTask'; models of SemanticSegmentationTask, ",
        ),
        (lambda c: c["pretrained_cfg"]["input"].update(target="x"), "is 'x', which is not among its data"),
        (
            lambda c: c["pretrained_cfg"]["input"]["data"]["pixel_values"].update(shape=[6, 64]),
            r"must be \[bands, height, width\] or",
        ),
        (
            lambda c: c["pretrained_cfg"]["input"]["data"]["pixel_values"].update(shape="6"),
            "must be sizes, got '6'",
        ),
        (
            lambda c: c["pretrained_cfg"]["input"]["data"]["pixel_values"].update(shape=[5, 64, 64]),
            "names 6 bands of pixel_values .* and its shape has 5",
        ),
        (
            lambda c: arguments(c).update(tiled_inference_parameters={"h_crop": "large"}),
            "must have a crop in pixels",
        ),
        (lambda c: c.update(mmout={"input": {"mean": [1]}}), "must be a table of bands, means, stds, constant_scale"),
    ],
)
def test_what_is_wrong_is_named(change, words):
    """Fact and remedy, before any engine is started."""
    config = flood_config()
    change(config)
    with pytest.raises(OptionError, match=words):
        TerratorchConfig.of(config)
