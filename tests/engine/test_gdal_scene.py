"""Scenes that GDAL reads, and parts of scenes by bounding box, through the real engine."""

from __future__ import annotations

import numpy as np
import pytest
from gdal_files import converted, jp2
from scenes_for_tests import classes, generate, pixels, write

from vllm_mmout import OutputParams
from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.outputs.stored import StoredRaster

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
from rasterio.transform import Affine  # noqa: E402 - rasterio may be absent
from rasterio.warp import transform_bounds  # noqa: E402
from rasterio.windows import Window, from_bounds  # noqa: E402

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # rasterio's own use of affine
]
PLACE = {"crs": "EPSG:32632", "transform": Affine(30, 0, 440280, 0, -30, 5_159_720)}
ARRAY = pixels(3, 150, 170)


def whole_and_part(whole, part, path):
    """The window of the whole that a result on disk is, by its transform."""
    with rasterio.open(path) as file, rasterio.open(whole) as all_of_it:
        assert file.crs == all_of_it.crs
        window = from_bounds(*file.bounds, transform=all_of_it.transform).round_offsets().round_lengths()
        assert (window.height, window.width) == file.shape == part.array.shape[1:]
        np.testing.assert_array_equal(file.read(), all_of_it.read(window=window), strict=True)
    return window


@pytest.mark.parametrize("form", ["a path", "bytes", "a VRT"])
def test_a_jpeg2000_scene_is_that_of_its_pixels_as_geotiff(llm, sent, tmp_path, form):
    """Same classes, same tiles, same place on disk as of a GeoTIFF."""
    path = tmp_path / "scene.jp2"
    path.write_bytes(jp2(ARRAY, **PLACE))
    data = {"a path": path, "bytes": path.read_bytes(), "a VRT": tmp_path / "scene.vrt"}[form]
    if form == "a VRT":
        converted(path, data, "VRT")
    expected = generate(llm, write(tmp_path / "in.tif", ARRAY, **PLACE), overlap=4, path=str(tmp_path / "tiff.tif"))
    count = len(sent)
    found = generate(llm, data, overlap=4, path=str(tmp_path / "gdal.tif"))
    assert isinstance(found, StoredRaster)
    assert len(sent) == 2 * count > 20
    np.testing.assert_array_equal(found.array, expected.array, strict=True)
    np.testing.assert_array_equal(found.array, classes(ARRAY))
    with rasterio.open(tmp_path / "tiff.tif") as one, rasterio.open(tmp_path / "gdal.tif") as other:
        assert (one.crs, one.transform, one.tags()) == (other.crs, other.transform, other.tags())


def test_what_a_vrt_is_made_of_is_spared(llm, tmp_path):
    """A result named after a VRT is not written over the file that the VRT reads."""
    source = write(tmp_path / "scene.tif", ARRAY, **PLACE)
    before = source.read_bytes()
    vrt = converted(source, tmp_path / "scene.vrt", "VRT")
    with pytest.raises(SaveError, match=r"written over its own input .*scene\.tif; choose another"):
        generate(llm, vrt, path=f"{tmp_path}/")
    with pytest.raises(SaveError, match="written over its own input"):
        generate(llm, {"one": vrt, "two": vrt}, path=str(source))
    assert source.read_bytes() == before


@pytest.mark.parametrize("size", [(70, 81), (20, 30)], ids=["tiles", "one forward"])
def test_a_box_gives_the_part_of_the_whole(llm, tmp_path, size):
    """In the scene's own coordinates: the very pixels of the box's corners, where rasterio finds them again."""
    scene = write(tmp_path / "in.tif", ARRAY, **PLACE)
    generate(llm, scene, path=str(tmp_path / "whole.tif"))
    window = Window(33, 21, size[1], size[0])
    with rasterio.open(scene) as file:
        box = file.window_bounds(window)
    found = generate(llm, scene, bbox=box, path=str(tmp_path / "part.tif"))
    assert isinstance(found, StoredRaster) == (size == (70, 81))
    assert whole_and_part(tmp_path / "whole.tif", found, tmp_path / "part.tif") == window
    np.testing.assert_array_equal(found.array, classes(ARRAY)[:, 21 : 21 + size[0], 33 : 33 + size[1]])


def test_tiles_know_nothing_of_the_box(llm, sent, tmp_path):
    """A tile's place is the scene's affair: what travels with it names neither the box nor its system."""
    scene = write(tmp_path / "in.tif", ARRAY, **PLACE)
    with rasterio.open(scene) as file:
        box = file.window_bounds(Window(33, 21, 70, 70))
    generate(llm, scene, bbox=box, bbox_crs="EPSG:32632")
    assert len(sent) == 9
    assert not any("bbox" in repr(request.pooling_params.extra_kwargs) for request in sent)
    assert "tile" in repr(sent[0].pooling_params.extra_kwargs)


def test_a_box_in_longitudes_gives_the_part_of_the_whole(llm, tmp_path):
    """In WGS 84: all that the box has, and hardly more than rasterio's box around it."""
    scene = write(tmp_path / "in.tif", ARRAY, **PLACE)
    generate(llm, scene, path=str(tmp_path / "whole.tif"))
    with rasterio.open(scene) as file:
        inner = file.window_bounds(Window(33, 21, 81, 70))
    box = transform_bounds("EPSG:32632", "EPSG:4326", *inner)
    options = {"bbox": list(box), "bbox_crs": "EPSG:4326", "path": str(tmp_path / "part.tif")}
    window = whole_and_part(tmp_path / "whole.tif", generate(llm, scene, **options), tmp_path / "part.tif")
    wanted = from_bounds(*transform_bounds("EPSG:4326", "EPSG:32632", *box, densify_pts=999), PLACE["transform"])
    assert window.col_off <= wanted.col_off < window.col_off + 1.01
    assert window.row_off <= wanted.row_off < window.row_off + 1.01
    assert 0 <= window.col_off + window.width - wanted.col_off - wanted.width < 1.01
    assert 0 <= window.row_off + window.height - wanted.row_off - wanted.height < 1.01


def test_a_scene_that_waits_keeps_its_box(llm, tmp_path):
    """Scenes are closed until their turn comes, and opened again for the same part."""
    scene = write(tmp_path / "in.tif", ARRAY, **PLACE)
    with rasterio.open(scene) as file:
        boxes = [file.window_bounds(Window(col, 21, 81, 70)) for col in (3, 40, 80)]
    options = [OutputParams(tile=32, bbox=box) for box in boxes]
    for result, col in zip(llm.generate([str(scene)] * 3, options, use_tqdm=False), (3, 40, 80), strict=True):
        np.testing.assert_array_equal(result.outputs.array, classes(ARRAY)[:, 21:91, col : col + 81])


def test_a_box_elsewhere_is_the_requests_error(llm, tmp_path):
    """The error names the file and what it covers."""
    scene = write(tmp_path / "in.tif", ARRAY, **PLACE)
    words = r"bbox \(0, 0, 1, 1\) lies outside of .*in\.tif, which covers \(440280, 5155220, 445380, 5159720\) there"
    with pytest.raises(InputError, match=words):
        generate(llm, scene, bbox=(0, 0, 1, 1))
