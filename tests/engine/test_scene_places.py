"""Where the results of scenes lie and what is said of them: rasterio reads from the result what the input says."""

from __future__ import annotations

import numpy as np
import pytest
from scenes_for_tests import classes, generate, pixels, write

from vllm_mmout import OutputParams
from vllm_mmout.geo.raster.raster import Window

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # rasterio's own use of affine
]
ARRAY = pixels(1)
WINDOW = Window(13, 7, 41, 70)

NORTH_UP = rasterio.Affine(30, 0, 440280, 0, -30, 3159720)
ROTATED = rasterio.Affine.translation(440280, 3159720) @ rasterio.Affine.rotation(30) @ rasterio.Affine.scale(30, -30)
POINTS = [
    rasterio.control.GroundControlPoint(
        row=row, col=col, x=440280 + 30 * col + row, y=3159720 - 30 * row, z=5, id=str(n)
    )
    for n, (row, col) in enumerate([(0, 0), (0, 89.5), (74.5, 0), (20, 30.25), (74.5, 89.5)])
]
RPCS = rasterio.rpc.RPC(
    height_off=120.0, height_scale=500.0, lat_off=28.5, lat_scale=0.1, line_off=37.5, line_scale=38.0, long_off=-99.5,
    long_scale=0.2, samp_off=45.25, samp_scale=46.0, line_num_coeff=[0.5] * 20, line_den_coeff=[1.5] * 20,
    samp_num_coeff=[2.5] * 20, samp_den_coeff=[3.5] * 20, err_bias=0.25, err_rand=0.75,
)  # fmt: skip
SINUSOIDAL = "+proj=sinu +lon_0=0 +x_0=0 +y_0=0 +R=6371007.181 +units=m +no_defs"

PLACES = {
    "north up": {"crs": "EPSG:32614", "transform": NORTH_UP},
    "south up": {"crs": "EPSG:32614", "transform": rasterio.Affine(30, 0, 440280, 0, 30, 3153000)},
    "rotated": {"crs": "EPSG:32614", "transform": ROTATED},
    "sheared, not square": {"crs": "EPSG:3035", "transform": rasterio.Affine(20, 3, 4321000, -1.5, -30, 3210000)},
    "across the antimeridian": {"crs": "EPSG:4326", "transform": rasterio.Affine(0.01, 0, 179.61, 0, -0.01, -16.2)},
    "in UTM beside it": {"crs": "EPSG:32701", "transform": rasterio.Affine(30, 0, 173000, 0, -30, 8_200_000)},
    "from 0 to 360 degrees": {"crs": "EPSG:4326", "transform": rasterio.Affine(4, 0, 0, 0, -2, 75)},
    "a CRS without a code": {
        "crs": SINUSOIDAL,
        "transform": rasterio.Affine(463.3, 0, -8_895_604, 0, -463.3, 4_447_802),
    },
    "pixels are points": {"crs": "EPSG:32614", "transform": NORTH_UP, "tags": {"AREA_OR_POINT": "Point"}},
    "GCPs alone": {"gcps": POINTS, "crs": "EPSG:32614"},
    "GCPs in degrees across the antimeridian": {
        "gcps": [
            rasterio.control.GroundControlPoint(row=row, col=col, x=x, y=-16 - row / 100, z=0, id=str(x))
            for row, col, x in [(0, 0, 179.5), (0, 90, 180.4), (75, 0, 179.51), (75, 90, 180.41)]
        ],
        "crs": "EPSG:4326",
    },
    "RPCs alone": {"rpcs": RPCS},
    "a transform without a CRS": {"transform": NORTH_UP},
    "nothing": {},
}


def place(path):
    """All that rasterio says of where a file lies; the coordinates of its corners too."""
    with rasterio.open(path) as file:
        points, points_crs = file.gcps
        return {
            "shape": file.shape,
            "crs": file.crs,
            "transform": file.transform,
            "bounds": file.bounds,
            "centres": [file.xy(row, col) for row in (0, file.height - 1) for col in (0, file.width - 1)],
            "points": [(point.row, point.col, point.x, point.y, point.z) for point in points],
            "crs of the points": points_crs,
            "RPCs": file.rpcs,
            "AREA_OR_POINT": file.tags().get("AREA_OR_POINT"),
        }


@pytest.mark.parametrize("where", PLACES.values(), ids=PLACES)
def test_a_scene_keeps_its_place(llm, tmp_path, where):
    """The result of twelve tiles lies exactly on its input, of whatever grid, and each pixel on its own."""
    path = write(tmp_path / "in.tif", ARRAY, **where)
    result = generate(llm, path, path=str(tmp_path / "out.tif"), overlap=4)
    assert place(result.path) == place(path)
    with rasterio.open(result.path) as file:
        np.testing.assert_array_equal(file.read(), classes(ARRAY))


def test_the_places_of_these_tests_are_what_they_say(tmp_path):
    """The grids cross 180 degrees, stand on their heads and are turned, as rasterio sees them."""
    found = {name: place(write(tmp_path / "in.tif", ARRAY, **where)) for name, where in PLACES.items()}
    assert found["across the antimeridian"]["bounds"].left < 180 < found["across the antimeridian"]["bounds"].right
    assert found["south up"]["transform"].e > 0
    assert found["rotated"]["transform"].b != 0
    assert len(found["GCPs alone"]["points"]) == len(POINTS)
    assert found["GCPs alone"]["transform"] == rasterio.Affine.identity()
    assert found["RPCs alone"]["RPCs"] == RPCS
    assert found["nothing"]["transform"] == rasterio.Affine.identity()
    assert found["nothing"]["crs"] is None


@pytest.mark.parametrize("where", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("tile", [32, 512], ids=["a scene", "one forward"])
def test_a_window_lies_where_it_was_cut_out(llm, tmp_path, where, tile):
    """The result of a window is that part of the input: pixels, and rasterio's own transform of the window."""
    path = write(tmp_path / "in.tif", ARRAY, **where)
    result = generate(llm, path, window=WINDOW, tile=tile, path=str(tmp_path / "out.tif"))
    before, after = place(path), place(result.path)
    with rasterio.open(path) as file:
        window = rasterio.windows.Window(WINDOW.col, WINDOW.row, WINDOW.width, WINDOW.height)
        moved = file.window_transform(window)
    assert after["shape"] == (WINDOW.height, WINDOW.width)
    assert after["crs"] == before["crs"]
    if "transform" in where:
        assert after["transform"].almost_equals(moved, precision=1e-9)
        assert after["transform"] != before["transform"]
    assert after["points"] == [(row - 13, col - 7, x, y, z) for row, col, x, y, z in before["points"]]
    assert after["crs of the points"] == before["crs of the points"]
    if "rpcs" in where:
        assert (after["RPCs"].line_off, after["RPCs"].samp_off) == (37.5 - 13, 45.25 - 7)
        kept = {"line_off": 37.5, "samp_off": 45.25}
        assert {**after["RPCs"].to_dict(), **kept} == {**before["RPCs"].to_dict(), **kept}
    with rasterio.open(result.path) as file:
        np.testing.assert_array_equal(file.read(), classes(ARRAY[:, WINDOW.rows, WINDOW.cols]))


TAGS = {"TIFFTAG_DATETIME": "2021:09:01 17:03:00", "SENSOR": "OLI", "CLOUD_COVER": "3 %", "NAME": "Überflutung <&>"}


def test_what_is_known_of_a_scene_is_carried_on(llm, tmp_path):
    """Date and items of the input, then model and processor, class names and the table of colours."""
    path = write(tmp_path / "in.tif", ARRAY, tags=TAGS, **PLACES["north up"])
    result = generate(llm, path, path=str(tmp_path / "out.tif"))
    expected = {**TAGS, "MMOUT_MODEL": "water-index", "MMOUT_PROCESSOR": "segmentation", "AREA_OR_POINT": "Area"}
    with rasterio.open(result.path) as file:
        assert {name: file.tags().get(name) for name in expected} == expected
        assert {"land", "water"} <= {*file.tags().values(), *file.tags(1).values()}
        assert [file.colormap(1)[number][:3] for number in (0, 1)] == [(0xD9, 0xCF, 0xB4), (0, 0x72, 0xB2)]
        assert file.colorinterp == (rasterio.enums.ColorInterp.palette,)
        assert (file.dtypes, file.nodata, file.count) == (("uint8",), 255, 1)
    assert result.class_names == ("land", "water")
    assert result.metadata.items() >= {**TAGS, "MMOUT_MODEL": "water-index", "MMOUT_PROCESSOR": "segmentation"}.items()


def test_a_scene_says_what_an_input_of_one_forward_says(llm, tmp_path):
    """The files differ in nothing that rasterio reads, whether or not the input was cut."""
    path = write(tmp_path / "in.tif", ARRAY, tags=TAGS, nodata=5, **PLACES["rotated"])
    said = []
    for name, tile in (("whole", 512), ("cut", 32)):
        result = generate(llm, path, tile=tile, path=str(tmp_path / f"{name}.tif"))
        with rasterio.open(result.path) as file:
            keys = ("profile", "descriptions", "units", "nodatavals", "colorinterp", "block_shapes")
            described = {key: getattr(file, key) for key in keys}
            bytes_read = file.read().tobytes()
            said.append({**described, "tags": file.tags(), "band": file.tags(1), "pixels": bytes_read})
    assert said[0] == said[1]


def test_probabilities_say_their_bands(llm, tmp_path):
    """One band a class, float32, named, nodata NaN."""
    result = generate(llm, ARRAY, output="probabilities", path=str(tmp_path / "out.tif"))
    with rasterio.open(result.path) as file:
        assert (file.dtypes, file.descriptions) == (("float32", "float32"), ("land", "water"))
        assert np.isnan(file.nodata)
        assert file.tags()["MMOUT_PROCESSOR"] == "segmentation"


@pytest.mark.parametrize("output", ["classes", "probabilities"])
def test_the_file_is_made_of_compressed_blocks(llm, tmp_path, output):
    """Blocks of 512 pixels, deflate, whatever the size of the tiles; more than one of them is written right."""
    array = pixels(2, 530, 1040)
    result = generate(llm, array, tile=260, output=output, path=str(tmp_path / "out.tif"))
    with rasterio.open(result.path) as file:
        assert set(file.block_shapes) == {(512, 512)}
        assert file.compression is rasterio.enums.Compression.deflate
        best = file.read().argmax(axis=0)[np.newaxis] if output == "probabilities" else file.read()
    np.testing.assert_array_equal(best, classes(array))


def test_params_may_name_a_window_by_four_numbers(llm):
    """A tuple is a `Window`."""
    found = generate(llm, ARRAY, window=(13, 7, 41, 70))
    np.testing.assert_array_equal(found.array, generate(llm, ARRAY, window=WINDOW).array)
    assert OutputParams(window=(13, 7, 41, 70)).window == WINDOW
