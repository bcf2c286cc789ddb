"""Mosaics: scenes of two zones, two dates and a turned grid become one map. rasterio says where pixels lie."""

from __future__ import annotations

import json
from contextlib import nullcontext

import numpy as np
import pytest
from scenes_for_tests import classes, pixels, probabilities, write

from vllm_mmout import Mosaic, OutputParams
from vllm_mmout.cli import main
from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.outputs.stored import StoredRaster

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
from rasterio.features import geometry_mask  # noqa: E402 - rasterio may be absent
from rasterio.transform import Affine  # noqa: E402 - rasterio may be absent
from rasterio.warp import transform, transform_bounds  # noqa: E402

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # rasterio's own use of affine
]
ALONG, ACROSS = 30 * np.cos(np.radians(25)), 30 * np.sin(np.radians(25))
PLACES = {
    "west_2024-05-01": {"crs": "EPSG:32632", "transform": Affine(30, 0, 730_000, 0, -30, 5_099_000)},
    "east_2024-06-01": {"crs": "EPSG:32633", "transform": Affine(30, 0, 268_000, 0, -30, 5_099_000)},
    "turned_2024-05-01": {
        "crs": "EPSG:32632",
        "transform": Affine(ALONG, -ACROSS, 731_000, -ACROSS, -ALONG, 5_097_500),
    },
}
"""Scenes that overlap near the border of two zones: the names, with dates, and the places of 75 x 90 pixels."""


def scene_arrays():
    """The pixels of each scene by name; the newest has a hole, where others show."""
    arrays = {name: pixels(seed, 75, 90) for seed, name in enumerate(PLACES)}
    arrays["east_2024-06-01"][:, 20:60, 5:70] = 0
    return arrays


@pytest.fixture
def scenes(tmp_path):
    """The files of the scenes."""
    return [write(tmp_path / f"{name}.tif", array, nodata=0, **PLACES[name]) for name, array in scene_arrays().items()]


def warped(name, array, file, nodata):
    """A scene's result on the grid of a file: of each pixel's centre, by PROJ, the pixel that it lies in."""
    place = PLACES[name]
    cols, rows = np.meshgrid(np.arange(file.width) + 0.5, np.arange(file.height) + 0.5)
    x, y = transform(file.crs, place["crs"], *(along.ravel() for along in file.transform * (cols, rows)))
    col, row = (
        np.floor(along).astype(int).reshape(file.shape) for along in ~place["transform"] * (np.array(x), np.array(y))
    )
    inside = (col >= 0) & (col < 90) & (row >= 0) & (row < 75)
    return np.where(inside, array[:, row.clip(0, 74), col.clip(0, 89)], array.dtype.type(nodata))


def expected(file, order):
    """The classes of the scenes on the grid of a file; ``order`` has the names, the preferred first."""
    arrays = scene_arrays()
    joined = np.full((1, *file.shape), 255, np.uint8)
    for name in order:
        made = classes(arrays[name], arrays[name].all(axis=0))
        there = warped(name, made, file, 255)
        joined = np.where(joined == 255, there, joined)
    return joined


def outer_box(crs):
    """The box around all scenes in a coordinate system, from the corners and edges of each."""
    xs, ys = [], []
    for place in PLACES.values():
        edges = [(col, row) for col in np.linspace(0, 90, 400) for row in (0, 75)]
        edges += [(col, row) for row in np.linspace(0, 75, 400) for col in (0, 90)]
        x, y = transform(place["crs"], crs, *zip(*(place["transform"] * edge for edge in edges), strict=True))
        xs, ys = [*xs, *x], [*ys, *y]
    return min(xs), min(ys), max(xs), max(ys)


def run(llm, mosaic, /, **options):
    """The result of a mosaic, with its scenes in tiles."""
    (result,) = llm.generate(mosaic, OutputParams(tile=32, **options), use_tqdm=False)
    return result


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("newest", ["east_2024-06-01", "west_2024-05-01", "turned_2024-05-01"]),
        ("first", ["west_2024-05-01", "east_2024-06-01", "turned_2024-05-01"]),
        ("clear", ["west_2024-05-01", "turned_2024-05-01", "east_2024-06-01"]),
    ],
)
def test_scenes_of_two_zones_become_one_map(llm, scenes, tmp_path, order, names):
    """Each pixel is that of the preferred scene with data there, on the first scene's grid around all scenes."""
    output = run(llm, Mosaic(scenes, order), path=str(tmp_path / "map.tif")).outputs
    assert isinstance(output, StoredRaster)
    with rasterio.open(tmp_path / "map.tif") as file:
        np.testing.assert_array_equal(file.read(), expected(file, names), strict=True)
        first = PLACES["west_2024-05-01"]
        west, south, east, north = outer_box(first["crs"])
        left, upper = ~first["transform"] * (west, north)
        right, lower = ~first["transform"] * (east, south)
        offset = Affine.translation(np.floor(left + 1e-3), np.floor(upper + 1e-3))
        assert (file.crs, file.transform) == (first["crs"], first["transform"] * offset)
        assert file.shape == (
            np.ceil(lower - 1e-3) - np.floor(upper + 1e-3),
            np.ceil(right - 1e-3) - np.floor(left + 1e-3),
        )
        assert file.tags()["MMOUT_INPUTS"].split("\n") == [path.name for path in scenes]
        assert file.tags()["MMOUT_MOSAIC"] == order
        moments = [f"{day}T{time}Z" for day in ("2024-05-01", "2024-06-01") for time in ("00:00:00", "23:59:59")]
        assert file.tags()["MMOUT_DATES"].split("\n") == moments
        assert file.colormap(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["map.tif", "map.tif.aux.xml", "map.qml", *(path.name for path in scenes)]
    )


def test_the_picture_below_a_figure_is_that_of_the_scenes(llm, scenes, tmp_path):
    """Each pixel has the stretched red, green and blue of the scene that the map uses there; gaps are transparent."""
    output = run(llm, Mosaic(scenes), path=str(tmp_path / "map.tif")).outputs
    picture = np.moveaxis(np.asarray(output.input_picture()), 2, 0).astype(int)
    oracle = np.zeros(picture.shape, int)
    with rasterio.open(tmp_path / "map.tif") as file:
        for name in ("east_2024-06-01", "west_2024-05-01", "turned_2024-05-01"):
            rgb = scene_arrays()[name][[2, 1, 0]].astype(float)
            alpha = 255 * (rgb != 0).all(axis=0, keepdims=True)
            low, high = np.percentile(rgb[:, alpha[0] > 0], (2, 98))
            shown = np.rint((rgb.clip(low, high) - low) / (high - low) * 255)
            oracle = np.where(oracle[3] == 0, warped(name, np.concatenate([shown, alpha]).astype(int), file, 0), oracle)
    np.testing.assert_array_equal(picture[3], oracle[3])
    np.testing.assert_allclose(picture * (oracle[3] > 0), oracle * (oracle[3] > 0), atol=1)
    assert set(np.unique(oracle[3])) == {0, 255}


def test_the_most_confident_scene_wins_pixel_by_pixel(llm, scenes, tmp_path):
    """Where scenes overlap, the class with the highest probability of all is used."""
    run(llm, Mosaic(scenes, "confident"), path=str(tmp_path / "map.tif"))
    arrays = scene_arrays()
    with rasterio.open(tmp_path / "map.tif") as file:
        layers = []
        for name, array in arrays.items():
            made = np.where(array.all(axis=0), probabilities(array), np.nan).astype(np.float32)
            layers.append(warped(name, made, file, np.nan))
        highest = np.nan_to_num(np.fmax.reduce(layers), nan=-1)
        oracle = np.where(highest.max(axis=0) < 0, 255, highest.argmax(axis=0)).astype(np.uint8)
        np.testing.assert_array_equal(file.read(1), oracle, strict=True)
        assert len(np.unique(oracle)) == 3


def test_a_map_on_a_grid_of_its_own(llm, scenes, tmp_path):
    """The grid of a file, or a system and a pixel size, replaces that of the first scene; areas are of the map."""
    system = run(llm, Mosaic(scenes, "first", grid=("EPSG:3035", 60)), path=str(tmp_path / "laea.tif")).outputs
    with rasterio.open(tmp_path / "laea.tif") as file:
        assert file.crs == "EPSG:3035"
        assert file.transform[0] == 60
        assert file.transform[2] % 60 == file.transform[5] % 60 == 0
        np.testing.assert_array_equal(file.read(), expected(file, PLACES), strict=True)
        counts = np.bincount(file.read(1).ravel(), minlength=256)
    grid = Mosaic(scenes, "first", grid=tmp_path / "laea.tif")
    areas = run(llm, grid, output="areas", path=str(tmp_path / "areas.json"))
    assert [area.pixels for area in areas.outputs.classes] == [*counts[:2]]
    assert areas.outputs.classes[1].area_m2 == counts[1] * 3600
    assert json.loads((tmp_path / "areas.json").read_text())
    polygons = run(llm, grid, output="polygons").outputs
    np.testing.assert_array_equal(polygons.classes.array, system.array)
    polygons.close()


@pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning")
def test_a_bounding_box_cuts_the_map_and_leaves_out_scenes(llm, scenes, tmp_path):
    """Only the part of the map that the box touches is made, and scenes that it misses are named in `assumed`."""
    west, south, east, north = transform_bounds("EPSG:32632", "EPSG:4326", 730_100, 5_098_700, 730_700, 5_098_950)
    (far,) = [path for path in scenes if path.name.startswith("turned")]
    result = run(
        llm, Mosaic(scenes), bbox=(west, south, east, north), bbox_crs="EPSG:4326", path=str(tmp_path / "m.tif")
    )
    assert any(far.name in text and "bbox" in text for text in result.assumed)
    with rasterio.open(tmp_path / "m.tif") as file:
        assert file.shape[0] <= 12
        assert file.shape[1] <= 25
        np.testing.assert_array_equal(file.read(), expected(file, ["east_2024-06-01", "west_2024-05-01"]), strict=True)
    with pytest.raises(OptionError, match="needs bbox_crs"):
        run(llm, Mosaic(scenes), bbox=(730_100, 5_098_700, 730_700, 5_098_950))


@pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning")
def test_an_area_of_interest_masks_the_map(llm, scenes, tmp_path):
    """The map is that of all scenes inside the area, as rasterio burns it, and areas are counted for each feature."""
    whole = run(llm, Mosaic(scenes), path=str(tmp_path / "whole.tif")).outputs
    corners = [
        [(730_200, 5_098_800), (732_300, 5_098_300), (731_100, 5_097_100)],
        [(733_000, 5_097_000), (733_500, 5_097_000), (733_200, 5_097_600)],
    ]
    shapes = [{"type": "Polygon", "coordinates": [[*ring, ring[0]]]} for ring in corners]
    features = [
        {"type": "Feature", "id": name, "properties": {}, "geometry": shape}
        for name, shape in zip("ab", shapes, strict=True)
    ]
    aoi = {"aoi": {"type": "FeatureCollection", "features": features}, "aoi_crs": "EPSG:32632"}
    run(llm, Mosaic(scenes), path=str(tmp_path / "part.tif"), **aoi)
    with rasterio.open(tmp_path / "whole.tif") as file:
        inside = [~geometry_mask([shape], file.shape, file.transform) for shape in shapes]
        masked = np.where(inside[0] | inside[1], file.read(1), 255)
        with rasterio.open(tmp_path / "part.tif") as part:
            (row, col), size = file.index(part.transform.c + 1, part.transform.f - 1), part.shape
            np.testing.assert_array_equal(part.read(1), masked[row : row + size[0], col : col + size[1]], strict=True)
            assert (part.read(1) != 255).sum() == (masked != 255).sum() > 0
        counts = [np.bincount(file.read(1)[mask], minlength=2)[:2] for mask in inside]
    areas = run(llm, Mosaic(scenes), output="areas", path=str(tmp_path / "areas.geojson"), **aoi).outputs
    assert [[one.pixels for one in areas.features[name].classes] for name in "ab"] == [[*count] for count in counts]
    assert len(json.loads((tmp_path / "areas.geojson").read_text())["features"]) == 2
    whole.close()


@pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning")
def test_a_scene_that_fails_is_named_or_left_out(llm, scenes, tmp_path):
    """A damaged scene fails the request, unless failed scenes are skipped; in a list it is its own result's error."""
    damaged = tmp_path / "damaged_2024-07-01.tif"
    damaged.write_bytes(scenes[1].read_bytes()[:-2000])
    with pytest.raises(InputError, match=r"damaged_2024-07-01\.tif") as raised:
        run(llm, Mosaic([*scenes, damaged]))
    assert raised.value.__cause__ is not raised.value
    with pytest.raises(InputError, match=r"none\.tif") as raised:
        run(llm, Mosaic([*scenes, tmp_path / "none.tif"]))
    assert raised.value.__cause__ is not raised.value
    result = run(llm, Mosaic([*scenes, damaged], skip_failed=True))
    assert any("damaged_2024-07-01.tif was left out" in text for text in result.assumed)
    failed, alone = llm.generate([Mosaic([damaged]), scenes[0]], OutputParams(tile=32), use_tqdm=False)
    assert "damaged_2024-07-01.tif" in str(failed.error)
    np.testing.assert_array_equal(alone.outputs.array, classes(scene_arrays()["west_2024-05-01"]))


@pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning")
@pytest.mark.parametrize("tile", [32, None])
def test_a_scene_without_valid_pixels_adds_nothing(llm, scenes, tmp_path, tile):
    """The map is on the empty scene's grid, other scenes fill it, and `assumed` names the empty one; alone it fails."""
    place = {"crs": "EPSG:32632", "transform": Affine(30, 0, 729_400, 0, -30, 5_099_010)}
    empty = write(tmp_path / "empty_2024-07-01.tif", np.zeros((6, 40, 50), np.uint16), nodata=0, **place)
    (result,) = llm.generate(
        Mosaic([empty, scenes[0]]), OutputParams(tile=tile, path=str(tmp_path / "map.tif")), use_tqdm=False
    )
    assert [text for text in result.assumed if "empty_2024-07-01.tif adds nothing" in text]
    assert not [text for text in result.assumed if scenes[0].name in text]
    with rasterio.open(tmp_path / "map.tif") as file:
        assert file.transform == place["transform"]
        np.testing.assert_array_equal(file.read(), expected(file, ["west_2024-05-01"]), strict=True)
    with pytest.raises(InputError, match="no pixel of the input holds an observation"):
        llm.generate(str(empty), OutputParams(), use_tqdm=False)


def test_a_mosaic_that_cannot_be_made_is_refused(llm, scenes, tmp_path):
    """Undated scenes, contradicting orders, scenes without a place and outputs that are no rasters are refused."""
    undated = write(tmp_path / "undated.tif", pixels(1), **PLACES["west_2024-05-01"])
    nowhere = write(tmp_path / "nowhere_2024-05-01.tif", pixels(1), transform=Affine(30, 0, 730_000, 0, -30, 5_099_000))
    for mosaic, options, error, words in [
        (Mosaic([scenes[0], undated]), {}, OptionError, r"undated.tif has no date.*\"first\""),
        (Mosaic(scenes, "first"), {"mosaic": "newest"}, OptionError, "'first' in the Mosaic and 'newest'"),
        (Mosaic([scenes[0], nowhere]), {}, InputError, "nowhere_2024-05-01.tif has no coordinate system"),
        (Mosaic(scenes), {"window": (0, 0, 9, 9)}, OptionError, "window is set beside mosaic"),
        (Mosaic(scenes), {"processor": "tensor"}, OptionError, "a mosaic joins rasters"),
        (Mosaic(scenes, grid=("EPSG:3035", -1)), {}, OptionError, "grid of the mosaic: .*1e-09 to"),
        (Mosaic(scenes), {"mosaic": "first", "mosaic_grid": ("EPSG:3035", -1)}, OptionError, "pixel size of 1e-09 to"),
        (
            Mosaic(scenes),
            {"mosaic": "first", "mosaic_grid": ("nowhere", 9)},
            OptionError,
            "grid of the mosaic: .*nowhere",
        ),
        (Mosaic(scenes), {"mosaic_grid": ("EPSG:3035", 9)}, OptionError, "mosaic_grid is set without mosaic"),
        (scenes[0], {"mosaic": "first"}, OptionError, "is for a list of inputs"),
    ]:
        with pytest.raises(error, match=words):
            run(llm, mosaic, **options)
    with pytest.raises(InputError, match="1 to 1000 inputs, got 0"):
        Mosaic([])


def test_scenes_of_the_same_name_make_one_map(llm, scenes, tmp_path, monkeypatch):
    """`run --mosaic` takes files of the same name from several folders, and the map's metadata tells them apart."""
    monkeypatch.setattr("vllm_mmout.commands.engine.engine", lambda *_, **__: nullcontext(llm))
    files = []
    for scene in scenes[:2]:
        (tmp_path / scene.stem).mkdir()
        files.append(str(scene.rename(tmp_path / scene.stem / "scene.tif")))
    assert main(["run", "water-index", *files, "--mosaic=first", "-o", str(tmp_path / "map.tif")]) == 0
    with rasterio.open(tmp_path / "map.tif") as file:
        assert file.tags()["MMOUT_INPUTS"].split("\n") == ["scene.tif (input 1)", "scene.tif (input 2)"]
        np.testing.assert_array_equal(file.read(), expected(file, list(PLACES)[:2]))


def test_the_command_line_makes_a_map(llm, scenes, tmp_path, monkeypatch, capsys):
    """`run --mosaic` writes one file, on the grid of another file, and its flags are for mosaics alone."""
    monkeypatch.setattr("vllm_mmout.commands.engine.engine", lambda *_, **__: nullcontext(llm))
    run(llm, Mosaic(scenes, grid=("EPSG:3035", 60)), path=str(tmp_path / "made.tif"))
    grid = ["--grid", str(tmp_path / "made.tif")]
    files, out = [str(path) for path in scenes], ["-o", str(tmp_path / "map.tif"), "--tile", "32"]
    assert main(["run", "water-index", *files, "--mosaic", *out, *grid, "--skip-failed"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'map.tif'}\n"
    here = ["-o", str(tmp_path / "other.tif"), "--tile", "32", "--grid", "EPSG:3035,60"]
    figure = ["--figure", str(tmp_path / "map.svg"), "--figure-title", "Lagoon in spring"]
    assert main(["run", "water-index", *files, "--mosaic", *here, *figure]) == 0
    assert (tmp_path / "other.tif").read_bytes() == (tmp_path / "map.tif").read_bytes()
    assert "Lagoon in spring" in (tmp_path / "map.svg").read_text()
    with rasterio.open(tmp_path / "map.tif") as one, rasterio.open(tmp_path / "made.tif") as other:
        np.testing.assert_array_equal(one.read(), other.read())
        assert one.profile == other.profile
    assert main(["run", "water-index", *files, *out, *grid]) == 2
    assert "--skip-failed are for a mosaic; add --mosaic" in capsys.readouterr().err
