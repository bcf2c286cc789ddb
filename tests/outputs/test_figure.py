"""Figures of results: legend, scale bar, north arrow and the picture below."""

from __future__ import annotations

import io
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from rasterio.transform import Affine
from rasterio.warp import transform

from vllm_mmout.cli import main
from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import Georeference, ground_steps
from vllm_mmout.outputs import PolygonsOutput, RasterOutput
from vllm_mmout.outputs.input_picture import InputPicture
from vllm_mmout.outputs.placed_pictures import given_picture
from vllm_mmout.outputs.saved import open_result

pytest.importorskip("matplotlib", reason="a figure is one of matplotlib")
from vllm_mmout.outputs.map_furniture import length_text, north_on_page, round_length

UTM = Affine(10, 0, 600000, 0, -10, 5300000)


def classes(affine=UTM, dtype=np.uint8, **described):
    ids = np.zeros((1, 60, 80), dtype)
    ids[0, :, 60:], ids[0, :6] = 1, 255
    place = Georeference(crs="EPSG:32632", transform=tuple(affine)[:6])
    palette = np.array([[9, 9, 9], [0, 0, 255]], np.uint8)
    described = {"class_names": ["land", "$\\frac water"], "palette": palette} | described
    return RasterOutput(ids, nodata=255, georeference=place, metadata={"MMOUT_MODEL": "river"}, **described)


def texts(figure):
    """All texts of a figure."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def drawn(figure):
    """The pixels of a saved figure."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return np.asarray(Image.open(file).convert("RGB"))


def test_a_figure_names_classes_with_their_areas():
    """The legend has names, shares and areas; around the map are scale bar, north, model and assumptions."""
    raster = classes()
    raster.assumed = ("The values were taken as reflectance.",)
    said = "\n".join(texts(raster.figure()))
    for text in ("land\n75.0%, 0.324 km²", "$\\frac water\n25.0%, 0.108 km²", "200 m", "N", "river", "EPSG:32632"):
        assert text in said
    assert "Assumed: The values were taken as reflectance." in said
    assert drawn(raster.figure(title="Flood $")).std() > 10  # a "$" is no formula


def test_assumptions_do_not_shrink_the_map():
    """With twenty assumptions the map is as wide as without any; the footer has five and counts the others."""
    raster = classes()
    shorter = drawn(raster.figure())
    raster.assumed = tuple(f"The scale of band {number} was taken from the file's metadata." for number in range(20))
    figure = raster.figure()
    assert "15 more in the metadata of the result, MMOUT_ASSUMED" in "\n".join(texts(figure))
    longer = drawn(figure)
    assert longer.shape[1] == shorter.shape[1]
    width = (longer == (0, 0, 255)).all(axis=2).any(axis=0).sum()
    assert width >= (shorter == (0, 0, 255)).all(axis=2).any(axis=0).sum() - 2


def test_classes_lie_over_the_picture_of_the_input():
    """The colour of a pixel is that of its class over the picture's; nodata shows the picture alone."""
    raster = classes()
    raster.input_picture = InputPicture(lambda: Image.new("RGB", (80, 60), (200, 100, 0)))
    over, alone = drawn(raster.figure()).astype(int), drawn(raster.figure(picture=False)).astype(int)
    for pixels, colour in ((over, (200, 100, 0)), (over, (80, 40, 153)), (alone, (0, 0, 255))):  # 0.6 of blue is 153
        assert (abs(pixels - colour).max(axis=2) <= 1).any()
    assert pickle.loads(pickle.dumps(raster)).input_picture() is None  # noqa: S301 - our own


def test_a_saved_map_has_the_figure_of_its_result(tmp_path):
    """A GeoTIFF is drawn as the result was, with the names, colours and model in the file."""
    classes().save(tmp_path / "map.tif")
    assert main(["figure", str(tmp_path / "map.tif"), "-o", str(tmp_path / "map.png"), "--title", "Flood"]) == 0
    with Image.open(tmp_path / "map.png") as file:
        np.testing.assert_array_equal(np.asarray(file.convert("RGB")), drawn(classes().figure(title="Flood")))


def test_a_saved_map_of_more_than_8_bits_has_the_colours_of_its_style(tmp_path):
    """The GeoTIFF has no colour table, so the colours are those of the QGIS style beside it."""
    classes(dtype=np.uint16, units=["class"]).save(tmp_path / "map.tif")
    opened = open_result(tmp_path / "map.tif")
    assert opened.palette.tolist() == [[9, 9, 9], [0, 0, 255]]
    assert (opened.class_names, opened.units) == (("land", "$\\frac water"), ("class",))
    (tmp_path / "map.qml").unlink()
    assert open_result(tmp_path / "map.tif").palette is None
    Image.new("L", (4, 4)).save(tmp_path / "map.png")
    with pytest.raises(InputError, match="is no GeoTIFF"):
        open_result(tmp_path / "map.png")


def test_scenes_of_another_zone_are_drawn_below_a_saved_map(tmp_path, capsys):
    """A scene of zone 33 is drawn at the pixels whose centres it covers, by PROJ. A scene elsewhere is refused."""
    affine = Affine(10, 0, 730_000, 0, -10, 5_100_000)
    classes(affine).save(tmp_path / "map.tif")
    cols, rows = (along.ravel() + 0.5 for along in np.meshgrid(np.arange(80), np.arange(60)))
    x, y = (np.reshape(along, (60, 80)) for along in transform("EPSG:32632", "EPSG:32633", *(affine @ (cols, rows))))
    red = np.array([200, 0, 0], np.uint8)[:, None, None].repeat(200, axis=1).repeat(100, axis=2)
    east = x[30, 40] + 3
    corners = ((east - 1000, y[30, 40] + 1000), (0, 0))
    near, far = (Georeference(crs="EPSG:32633", transform=(10, 0, west, 0, -10, north)) for west, north in corners)
    RasterOutput(red, georeference=near).save(tmp_path / "near.tif")
    RasterOutput(red, georeference=far).save(tmp_path / "far.tif")
    files = [str(tmp_path / name) for name in ("far.tif", "near.tif")]
    picture = np.asarray(given_picture(files, classes(affine).georeference, (60, 80)))
    np.testing.assert_array_equal(picture[..., 3] == 255, x < east)
    assert (picture[x < east] == (200, 0, 0, 255)).all()
    figure = ["figure", str(tmp_path / "map.tif"), "-o", str(tmp_path / "map.png"), "--below"]
    assert main([*figure, files[0]]) == 1
    assert "far.tif has no data where the raster is" in capsys.readouterr().err
    assert main([*figure, *files]) == 0


@pytest.mark.parametrize("turn", [0, 30, 90, 200, 359])
def test_the_arrow_points_north_on_turned_grids(turn):
    """A step along the arrow leads north on the map, whatever the direction of the rows."""
    affine = UTM @ Affine.rotation(turn)
    steps = ground_steps(Georeference(crs="EPSG:32632", transform=tuple(affine)[:6]), (60, 80))
    right, up = north_on_page(steps)
    start, end = affine @ (40, 30), affine @ (40 + 10 * right, 30 - 10 * up)
    assert end[1] - start[1] == pytest.approx(100, abs=0.5)
    assert end[0] - start[0] == pytest.approx(0, abs=5)  # grid north differs from true north by a degree


@pytest.mark.parametrize(
    ("most", "text"), [(0.3, "20 cm"), (1, "1 m"), (499, "200 m"), (700, "500 m"), (1000, "1 km"), (6e5, "500 km")]
)
def test_scale_bars_have_round_lengths(most, text):
    """The length is 1, 2 or 5 times a power of ten, in metres or kilometres."""
    assert length_text(round_length(most)) == text


def test_oblong_pixels_keep_the_ground_in_proportion():
    """A degree of longitude at 60 degrees north is drawn half as wide as one of latitude."""
    place = Georeference(crs="EPSG:4326", transform=(0.001, 0, 13, 0, -0.001, 60))
    raster = RasterOutput(np.zeros((1, 50, 50), np.uint8), georeference=place, class_names=["land"])
    assert raster.figure().axes[0].get_aspect() == pytest.approx(2, rel=0.01)


def test_values_have_a_colour_bar():
    """A raster of measurements has a bar with its unit, and masked pixels are not drawn."""
    values = np.linspace(0, 90, 60 * 80, dtype=np.float32).reshape(1, 60, 80)
    values[0, :9] = np.nan
    figure = RasterOutput(values, band_names=["biomass"], units=["Mg/ha"]).figure()
    assert "biomass in Mg/ha" in texts(figure)
    assert figure.axes[0].images[0].get_array().mask.sum() == 9 * 80


def test_polygons_and_areas_have_figures():
    """Polygons are drawn as their classes, areas as bars with their shares."""
    assert any("land" in text for text in texts(PolygonsOutput(classes()).figure()))
    assert " 75.0%" in texts(PolygonsOutput(classes()).areas.figure())


def test_figures_are_made_in_threads_without_pyplot():
    """Several threads draw at once, and pyplot, which keeps figures and needs a screen, is not imported."""
    pyplot = sys.modules.pop("matplotlib.pyplot", None)
    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(lambda _: drawn(classes().figure()), range(3))
    assert all(np.array_equal(first, other) for other in others)
    assert "matplotlib.pyplot" not in sys.modules
    if pyplot is not None:
        sys.modules["matplotlib.pyplot"] = pyplot


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"opacity": 0}, OptionError, "above 0 and at most 1"),
        ({"picture": np.zeros((4, 4))}, InputError, "uint8"),
        ({"picture": 7}, InputError, "PIL image"),
        ({"picture": "gone.tif"}, InputError, "no such file: gone.tif"),
    ],
)
def test_a_wrong_option_is_refused(options, error, says):
    """The message has the value and what is expected."""
    with pytest.raises(error, match=says):
        classes().figure(**options)
