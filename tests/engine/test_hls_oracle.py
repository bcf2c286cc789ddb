"""A real scene through the real engine, against the same network computed with rasterio and numpy."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_mmout import OutputParams

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = pytest.mark.engine

BANDS = (2, 3, 4, 5, 6, 7)
"""Blue, green, red, NIR, SWIR 1, SWIR 2 of the ten bands of the file, from 1."""

GREEN, SWIR_1 = 3, 6


def logits(source):
    """The embedded network's two logits, float32 [2, height, width]: 8 times the index of water, and its negative."""
    green, swir_1 = (np.maximum(source.read(band).astype(np.float32), 0) for band in (GREEN, SWIR_1))
    index = (green - swir_1) / np.maximum(green + swir_1, np.float32(1e-6))
    return np.stack([np.float32(-8) * index, np.float32(8) * index])


def probabilities(source):
    """Softmax of the logits, in float64."""
    powers = np.exp(logits(source).astype(np.float64))
    return powers / powers.sum(axis=0)


@pytest.fixture(scope="module")
def expected(hls):
    """Class ids, uint8 [height, width]; the scene has both classes and no gap."""
    with rasterio.open(hls) as source:
        assert (source.read(BANDS) != source.nodata).all()
        classes = logits(source).argmax(axis=0).astype(np.uint8)
    assert 0 < classes.mean() < 1
    return classes


def generate(llm, scene, **options):
    (result,) = llm.generate(scene, OutputParams(bands=BANDS, **options), use_tqdm=False)
    return result.outputs


@pytest.mark.parametrize("engine", ["llm", "mp_llm"])
def test_the_mask_equals_the_oracles(engine, request, hls, expected, tmp_path):
    """Pixel for pixel; rasterio reads from the written file the CRS and the transform of the input, and the mask."""
    mask = generate(request.getfixturevalue(engine), hls)
    np.testing.assert_array_equal(mask.array, expected[None])
    with rasterio.open(hls) as source, rasterio.open(mask.save(tmp_path / "mask.tif")) as written:
        assert written.crs == source.crs
        assert written.crs.to_epsg() == 32614
        assert written.transform == source.transform
        assert written.shape == source.shape
        assert written.dtypes == ("uint8",)
        assert written.nodata == 255
        np.testing.assert_array_equal(written.read(1), expected)
    assert mask.crs == "EPSG:32614"
    assert mask.transform == (30, 0, 440280, 0, -30, 3159720)


def test_probabilities_are_the_softmax(llm, hls, expected, tmp_path):
    """Both classes' probabilities are the oracle's up to float32, and the larger one is the mask's."""
    found = generate(llm, hls, output="probabilities", path=str(tmp_path / "probabilities.tif"))
    with rasterio.open(hls) as source, rasterio.open(found.path) as written:
        np.testing.assert_allclose(written.read(), probabilities(source), rtol=0, atol=3e-7)
        assert written.descriptions == ("land", "water")
        assert written.transform == source.transform
        assert np.isnan(written.nodata)
    np.testing.assert_array_equal(found.array.argmax(axis=0), expected)


def test_confidence_is_the_best_probability(llm, hls):
    """One band, the probability of the class that the mask shows."""
    found = generate(llm, hls, output="confidence")
    with rasterio.open(hls) as source:
        np.testing.assert_allclose(found.array[0], probabilities(source).max(axis=0), rtol=0, atol=3e-7)


def test_indices_count_from_zero(llm, hls, expected):
    """``indices`` names the bands that ``bands`` names by one more; a wrong count gives another mask."""
    from_zero = OutputParams(indices=[band - 1 for band in BANDS])
    shifted = OutputParams(indices=BANDS)
    right, wrong = llm.generate([hls, hls], [from_zero, shifted], use_tqdm=False)
    np.testing.assert_array_equal(right.outputs.array[0], expected)
    assert (wrong.outputs.array[0] != expected).any()


def test_bands_go_by_description_too(llm, hls, expected, tmp_path):
    """Names of a file that has them choose what numbers choose, also out of the file's order."""
    names = [f"band {number}" for number in range(1, 11)]
    path = variant(hls, tmp_path / "named.tif", descriptions=names)
    params = OutputParams(bands=[names[band - 1] for band in BANDS])
    np.testing.assert_array_equal(llm.generate(path, params, use_tqdm=False)[0].outputs.array[0], expected)


def variant(hls, path, *, change=None, descriptions=(), tags=None, **profile):
    """A copy of the scene with some things otherwise."""
    with rasterio.open(hls) as source:
        pixels = source.read()
        if change is not None:
            change(pixels)
        with rasterio.open(path, "w", **{**source.profile, **profile}) as target:
            target.write(pixels)
            target.update_tags(**(tags or {}))
            if descriptions:
                target.descriptions = descriptions
    return path


@pytest.fixture(scope="module")
def holes():
    """Pixels without an observation, [224, 224]: a block and single ones."""
    holes = np.random.default_rng(3).random((224, 224)) < 0.03
    holes[40:70, 100:140] = True
    return holes


@pytest.mark.parametrize("band", BANDS)
def test_nodata_in_any_band_masks_the_pixel_alone(llm, hls, expected, holes, tmp_path, band):
    """A pixel of which the model would see a gap is nodata; its neighbours are as they are without gaps."""

    def dig(pixels):
        pixels[band - 1][holes] = -9999

    mask = generate(llm, variant(hls, tmp_path / "holes.tif", change=dig), path=str(tmp_path / "mask.tif"))
    wanted = np.where(holes, 255, expected)
    np.testing.assert_array_equal(mask.array[0], wanted)
    with rasterio.open(mask.path) as written:
        np.testing.assert_array_equal(written.read(1), wanted)
        np.testing.assert_array_equal(written.dataset_mask() == 0, holes)


def test_nodata_in_a_band_that_is_not_fed_masks_nothing(llm, hls, expected, holes, tmp_path):
    """What the model does not see cannot make its answer void."""

    def dig(pixels):
        pixels[0][holes] = -9999
        pixels[7:, holes] = -9999

    mask = generate(llm, variant(hls, tmp_path / "holes.tif", change=dig))
    np.testing.assert_array_equal(mask.array[0], expected)


@pytest.mark.parametrize(
    ("nodata", "value", "options"),
    [(-9999, np.nan, {}), (None, np.nan, {}), (-9999, 77, {"nodata": 77}), (None, 77, {"nodata": 77})],
    ids=["NaN beside a nodata", "NaN without one", "the request's beside the file's", "the request's alone"],
)
def test_a_gap_may_be_nan_or_what_the_request_says(llm, hls, expected, holes, tmp_path, nodata, value, options):
    """NaN is a gap without being told; ``nodata`` of the request stands for the file's own."""

    def dig(pixels):
        pixels[GREEN - 1][holes] = value

    mask = generate(llm, variant(hls, tmp_path / "holes.tif", change=dig, nodata=nodata), **options)
    np.testing.assert_array_equal(mask.array[0], np.where(holes, 255, expected))


def test_gaps_of_probabilities_are_nan(llm, hls, holes, tmp_path):
    """Floats say nodata by NaN, in every band."""

    def dig(pixels):
        pixels[SWIR_1 - 1][holes] = -9999

    found = generate(llm, variant(hls, tmp_path / "holes.tif", change=dig), output="probabilities")
    np.testing.assert_array_equal(np.isnan(found.array), np.stack([holes, holes]))


PLACES = {
    "rotated": {"transform": (25.98, 15, 440280, 15, -25.98, 3159720)},
    "south up": {"transform": (30, 0, 440280, 0, 30, 3153000)},
    "not square": {"transform": (30, 0, 440280, 0, -20.5, 3159720)},
    "another CRS": {"crs": "EPSG:3035"},
    "degrees": {"crs": "EPSG:4326", "transform": (0.0003, 0, 9.5, 0, -0.0003, 28.5)},
    "pixels are points": {"tags": {"AREA_OR_POINT": "Point"}},
    "tiled": {"tiled": True, "blockxsize": 64, "blockysize": 64, "interleave": "band", "compress": "deflate"},
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_place_stays(llm, hls, expected, tmp_path, place):
    """Whatever the grid of the input, rasterio reads the same one from the mask."""
    place = dict(place)
    if "transform" in place:
        place["transform"] = rasterio.Affine(*place["transform"])
    path = variant(hls, tmp_path / "in.tif", **place)
    mask = generate(llm, path, path=str(tmp_path / "mask.tif"))
    np.testing.assert_array_equal(mask.array[0], expected)
    with rasterio.open(path) as source, rasterio.open(mask.path) as written:
        assert written.crs == source.crs
        assert written.transform == source.transform
        assert written.tags().get("AREA_OR_POINT") == source.tags().get("AREA_OR_POINT")


def test_ground_control_points_stay(llm, hls, expected, tmp_path):
    """A scene that is placed by points gives a mask that is placed by the same points."""
    from rasterio.control import GroundControlPoint

    points = [
        GroundControlPoint(row=row, col=col, x=440280 + 30 * col + row, y=3159720 - 30 * row + col / 2, z=5, id=str(n))
        for n, (row, col) in enumerate([(0, 0), (0, 223.5), (223.5, 0), (100, 120.25), (223.5, 223.5)])
    ]
    path = tmp_path / "in.tif"
    with rasterio.open(hls) as source:
        profile = {key: value for key, value in source.profile.items() if key not in ("transform", "crs")}
        with rasterio.open(path, "w", **profile, gcps=points, crs=source.crs) as target:
            target.write(source.read())
    mask = generate(llm, path, path=str(tmp_path / "mask.tif"))
    np.testing.assert_array_equal(mask.array[0], expected)
    with rasterio.open(path) as source, rasterio.open(mask.path) as written:
        (before, crs_before), (after, crs_after) = source.gcps, written.gcps
        assert len(before) == 5
        assert [(p.row, p.col, p.x, p.y, p.z) for p in after] == [(p.row, p.col, p.x, p.y, p.z) for p in before]
        assert crs_after == crs_before


def test_items_of_the_input_are_carried_on(llm, hls, tmp_path):
    """Date and sensor of a scene stand in its mask too."""
    tags = {"TIFFTAG_DATETIME": "2021:09:01 17:03:00", "SENSOR": "OLI", "CLOUD_COVER": "3"}
    path = variant(hls, tmp_path / "in.tif", tags=tags)
    mask = generate(llm, path, path=str(tmp_path / "mask.tif"))
    with rasterio.open(mask.path) as written:
        assert {name: written.tags().get(name) for name in tags} == tags
