from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scene_generator import NODATA, generate, make_scene

from vllm_mmout.errors import OptionError
from vllm_mmout.models.embedded.scene import LAND, UNOBSERVED, WATER, water_iou

GREEN, SWIR_1 = 1, 4


@pytest.fixture
def scene(demo_scene):
    """The scene of the demo."""
    return demo_scene


def by_index(scene):
    """Water where green is brighter than SWIR 1, which is where the water index is above 0."""
    bands = np.maximum(scene.array, 0)
    return (bands[GREEN] > bands[SWIR_1]).astype(np.uint8)


@pytest.mark.heavy
def test_a_scene_is_the_same_each_time(scene):
    """The same arguments give the same scene, another seed another one."""
    again, other = make_scene(128, 96, seed=3), make_scene(128, 96, seed=4)
    np.testing.assert_array_equal(make_scene(128, 96, seed=3).array, again.array)
    np.testing.assert_array_equal(make_scene(128, 96, seed=3).truth, again.truth)
    assert (again.truth != other.truth).any()


def test_a_scene_is_what_it_says(scene):
    """Six bands of int16, a truth of uint8, both of the size asked for."""
    wide = make_scene(96, 131)
    assert (wide.array.dtype, wide.array.shape) == (np.int16, (6, 96, 131))
    assert (wide.truth.dtype, wide.truth.shape) == (np.uint8, (96, 131))
    assert scene.array.shape == (6, 512, 512)
    assert set(np.unique(scene.truth)) == {LAND, WATER, UNOBSERVED}


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [None, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_the_index_finds_the_water_but_not_all_of_it(seed, scene):
    """A water index reaches an IoU of 0.9 on any seed, and is wrong somewhere: the truth is not made of the pixels."""
    made = scene if seed is None else make_scene(seed=seed)
    assert 0.9 <= water_iou(by_index(made), made.truth) <= 0.98


def test_the_truth_is_drawn_before_the_light(monkeypatch):
    """Whatever the surfaces reflect, the truth stays."""
    before = make_scene(128, 128)
    monkeypatch.setattr(generate, "reflectance", lambda rng, drawn, size: np.zeros((6, *drawn.water.shape), np.float32))
    after = make_scene(128, 128)
    seen = (before.truth != UNOBSERVED) & (after.truth != UNOBSERVED)
    assert (before.array != after.array).any()
    assert seen.mean() > 0.8
    np.testing.assert_array_equal(before.truth[seen], after.truth[seen])


def test_there_is_something_of_everything(scene):
    """A good part of the scene is water, most is land, some is not observed."""
    shares = [(scene.truth == kind).mean() for kind in (LAND, WATER, UNOBSERVED)]
    assert shares[0] > 0.5
    assert 0.1 < shares[1] < 0.4
    assert 0.02 < shares[2] < 0.15


def test_nodata_is_a_wedge_in_all_bands_that_is_not_evaluated(scene):
    """Beyond the swath every band is nodata and the truth says unobserved; nodata is nowhere else."""
    missing = scene.array == NODATA
    assert missing[0].any()
    assert (missing == missing[0]).all()
    assert (scene.truth[missing[0]] == UNOBSERVED).all()
    assert missing[0][0, 0]
    assert not missing[0][:, 100:].any()


def test_clouds_are_bright_and_not_evaluated(scene):
    """What is not observed though it is in the swath is brighter than the rest; no bright blue is left to evaluate."""
    cloudy = (scene.truth == UNOBSERVED) & (scene.array[0] != NODATA)
    assert scene.array[0][cloudy].mean() > 3 * scene.array[0][scene.truth != UNOBSERVED].mean()
    assert scene.array[0][scene.truth != UNOBSERVED].max() < 4500


def test_reflectance_is_physical(scene):
    """Reflectances lie within 0 and 1, but for the noise of the darkest water."""
    seen = scene.array[:, scene.array[0] != NODATA]
    assert seen.min() > -300
    assert seen.max() < 10_000


def test_water_is_dark_in_the_infrared(scene):
    """Band by band, water and land differ as they do in nature: in SWIR 1 land is several times brighter."""
    means = {kind: scene.array[:, scene.truth == kind].mean(axis=1) for kind in (LAND, WATER)}
    assert means[LAND][SWIR_1] > 4 * means[WATER][SWIR_1]
    assert means[WATER][GREEN] > means[WATER][SWIR_1]


@pytest.mark.parametrize(("height", "width"), [(63, 512), (512, 10)])
def test_a_scene_needs_room(height, width):
    """A scene too small for a valley is refused."""
    with pytest.raises(OptionError, match=f"64 pixels or more either way, got {height} x {width}"):
        make_scene(height, width)


@pytest.mark.parametrize(
    ("classes", "truth", "iou"),
    [
        ([[1, 1], [0, 0]], [[1, 1], [0, 0]], 1.0),
        ([[0, 0], [1, 1]], [[1, 1], [0, 0]], 0.0),
        ([[1, 1], [1, 0]], [[1, 0], [1, 1]], 0.5),
        ([[1, 1], [0, 1]], [[1, 255], [0, 255]], 1.0),
        ([[255, 1], [0, 0]], [[1, 1], [0, 0]], 0.5),
        ([[0, 0], [0, 0]], [[0, 0], [0, 255]], 1.0),
    ],
    ids=["equal", "disjoint", "half", "unobserved is left out", "nodata is not water", "no water at all"],
)
def test_iou_counts_observed_water(classes, truth, iou):
    """Intersection over union of water, by hand."""
    assert water_iou(np.array(classes, np.uint8), np.array(truth, np.uint8)) == iou


def test_iou_with_clouds_counts_them_as_no_water():
    """A cloud that is taken for water is an error; a cloud that is not is none."""
    classes, truth = np.array([[1, 1], [0, 0]], np.uint8), np.array([[1, 255], [255, 0]], np.uint8)
    assert water_iou(classes, truth) == 1.0
    assert water_iou(classes, truth, clouds=True) == 0.5


def test_iou_needs_equal_shapes():
    """Masks of other sizes are not stretched."""
    with pytest.raises(OptionError, match=r"\(2, 2\), got \(1, 2, 2\)"):
        water_iou(np.zeros((1, 2, 2), np.uint8), np.zeros((2, 2), np.uint8))


@pytest.mark.heavy
def test_the_embedded_scene_is_that_of_the_generator(scene):
    """Another processor may round a few values differently, by one."""
    made = make_scene()
    assert np.abs(made.array.astype(int) - scene.array).max() <= 1
    assert (made.truth != scene.truth).mean() <= 1e-4


@pytest.mark.heavy
def test_the_scene_is_read_without_torch():
    """The module of the scene needs neither torch nor vLLM."""
    code = (
        "import sys; sys.modules['torch'] = sys.modules['vllm'] = None;"
        "from vllm_mmout.models.embedded.scene import embedded_truth; embedded_truth()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
