"""Standards: what the folder says of scaling and statistics counts, without an import of TerraTorch."""

import subprocess
import sys
from pathlib import Path

import pytest
import terratorch_configs
from terratorch_configs import flood_config, radar_config

from vllm_mmout.errors import ModelError, OptionError
from vllm_mmout.wings.terratorch.config import TerratorchConfig
from vllm_mmout.wings.terratorch.standards import standards_of

pytestmark = pytest.mark.engine
MEANS, STDS = [float(number) for number in range(300, 306)], [2.0] * 6


def flood_standard(data, said=None):
    """The standard of a folder with one image."""
    config = flood_config(**({} if said is None else {"mmout": {"input": said}}))
    if data is None:
        del config["pretrained_cfg"]["data"]
    else:
        config["pretrained_cfg"]["data"] = data
    (standard,) = standards_of(TerratorchConfig.of(config)).values()
    return standard


@pytest.mark.parametrize(
    "class_path",
    [
        "impactmesh.impactmesh_datamodule.ImpactMeshDataModule",
        "terratorch.datamodules.GenericNonGeoSegmentationDataModule",
        "GenericNonGeoSegmentationDataModule",
    ],
)
@pytest.mark.parametrize("scale", [None, 1e-4])
def test_statistics_of_the_arguments_need_no_class(class_path, scale):
    """Of whatever package it is; the class is not looked at."""
    arguments = {"means": MEANS, "stds": STDS} | ({} if scale is None else {"constant_scale": scale})
    found = flood_standard({"class_path": class_path, "init_args": arguments})
    assert (found.scale, found.mean.tolist(), found.std.tolist()) == (scale or 1.0, [MEANS], [STDS])


@pytest.mark.parametrize("data", [None, {"class_path": "elsewhere.Module", "init_args": {"bands": ["a"] * 6}}])
def test_statistics_of_the_table_need_no_class(data):
    """Nor a data module at all; without constant_scale integers are taken as they are."""
    found = flood_standard(data, {"means": MEANS, "stds": STDS})
    assert (found.scale, found.mean.tolist(), found.std.tolist()) == (1.0, [MEANS], [STDS])


def test_the_table_counts_before_the_arguments():
    """Each of the three for itself."""
    data = {"class_path": "Any", "init_args": {"means": MEANS, "stds": STDS, "constant_scale": 1e-4}}
    assert flood_standard(data, {"constant_scale": 0.5}).scale == 0.5
    assert flood_standard(data, {"stds": [4.0]}).std.tolist() == [[4.0] * 6]
    assert flood_standard(data, {"stds": [4.0]}).mean.tolist() == [MEANS]


@pytest.mark.slow
def test_nothing_of_terratorch_is_imported():
    """Where all is said, a broken installation of it would not be noticed."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(terratorch_configs.__file__).parent)!r})\n"
        "sys.modules['terratorch'] = None\n"
        "from terratorch_configs import flood_config\n"
        "from vllm_mmout.wings.terratorch.config import TerratorchConfig\n"
        "from vllm_mmout.wings.terratorch.standards import standards_of\n"
        "config = flood_config()\n"
        "config['pretrained_cfg']['data']['init_args'].update(means=[1.0] * 6, stds=[2.0] * 6)\n"
        "print(standards_of(TerratorchConfig.of(config))['pixel_values'].scale)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "0.0001", done.stderr


def test_each_image_has_its_own():
    """By its name, in all three."""
    config = radar_config()
    config["pretrained_cfg"]["data"]["init_args"] |= {
        "means": {"S2L2A": [1000.0, 1100.0, 1200.0], "S1GRD": [-12.0, -20.0]},
        "stds": {"S2L2A": [500.0, 600.0, 700.0], "S1GRD": [5.0, 6.0]},
        "constant_scale": {"S2L2A": 0.5},
    }
    found = standards_of(TerratorchConfig.of(config))
    assert {name: one.scale for name, one in found.items()} == {"S2L2A": 0.5, "S1GRD": 1.0}
    assert found["S1GRD"].mean.tolist() == [[-12.0, -20.0]]
    assert found["S2L2A"].std.tolist() == [[500.0, 600.0, 700.0]]


@pytest.mark.parametrize(
    ("means", "stds", "scale", "lacks"),
    [
        ([0.03] * 6, [0.02] * 6, 1, True),
        ([0.03] * 6, [0.02] * 6, 1e-4, False),
        (MEANS, STDS, 1, False),
        ([0.0], [1.0], 1, False),
    ],
)
def test_reflectance_without_a_scale_is_seen(means, stds, scale, lacks):
    """By the model too, which knows statistics that only the data module says; 1 in the ``mmout`` table is meant."""
    arguments = {"means": means, "stds": stds, "constant_scale": scale}
    assert flood_standard({"class_path": "Any", "init_args": arguments}).lacks_scale is lacks
    assert not flood_standard(None, arguments).lacks_scale


def test_data_modules_of_others_are_not_imported():
    """Where their statistics are needed, it is said where else they may stand."""
    with pytest.raises(ModelError, match=r'is .os\.path.; .* "mmout": {"input": {"means"'):
        flood_standard({"class_path": "os.path", "init_args": {}})


@pytest.mark.parametrize("value", ["much", [1], {"pixel_values": "much"}])
def test_a_scale_that_is_no_number(value):
    """Is named before an engine is started."""
    config = flood_config(mmout={"input": {"constant_scale": value}})
    with pytest.raises(OptionError, match=r'"constant_scale" in config\.json must be a number'):
        TerratorchConfig.of(config)
