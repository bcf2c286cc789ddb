"""Results as Zarr stores, with xarray, rioxarray and zarr-python as the judges."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

zarr = pytest.importorskip("zarr", reason="the oracle is zarr-python")
xarray = pytest.importorskip("xarray", reason="the oracle is xarray")
pytest.importorskip("rioxarray", reason="the oracle is rioxarray")
rasterio = pytest.importorskip("rasterio")

from on_disk import stored  # noqa: E402

from vllm_mmout.errors import SaveError  # noqa: E402
from vllm_mmout.geo import Georeference, GroundControlPoint, read_raster  # noqa: E402
from vllm_mmout.geo.raster.crs.text import same_system  # noqa: E402
from vllm_mmout.outputs import RasterOutput, TensorOutput  # noqa: E402
from vllm_mmout.outputs.formats import suffix_of, with_end  # noqa: E402
from vllm_mmout.outputs.formats.geotiff import remove_saved  # noqa: E402

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # in rioxarray
]
RNG = np.random.default_rng(0)
UTM = Georeference(crs="EPSG:32632", transform=(10.0, 0.0, 500000.0, 0.0, -10.0, 5000000.0))
LAEA = rasterio.CRS.from_proj4("+proj=laea +lat_0=10 +lon_0=20 +datum=WGS84").to_wkt()
FLOATS = RNG.random((3, 7, 5), "float32")
FLOATS[0, 2] = -1
CLASSES = RNG.integers(0, 3, (1, 7, 5), "uint8")
CASES: dict[str, RasterOutput] = {
    "floats": RasterOutput(FLOATS, nodata=-1, georeference=UTM, band_names=["u", "v", "w"], units=["m", "m", "s"]),
    "without nodata": RasterOutput(RNG.integers(-9, 9, (2, 7, 5), "int32"), georeference=UTM),
    "embeddings": RasterOutput(RNG.random((768, 7, 5)).astype("float16"), nodata=np.nan, georeference=UTM),
    "degrees": RasterOutput(FLOATS, georeference=Georeference("EPSG:4326", (0.25, 0.0, -180.0, 0.0, 0.25, -90.0))),
    "without a code": RasterOutput(
        FLOATS, georeference=Georeference(LAEA, (30.0, 0.0, 440280.0, 0.0, -30.0, 3159720.0))
    ),
    "rotated": RasterOutput(FLOATS, georeference=Georeference("EPSG:3857", (9.7, 2.6, 1e6, 2.6, -9.7, 5e6))),
    "without a place": RasterOutput(FLOATS),
}


def opened(path: Path, **options: Any) -> Any:
    """The store as xarray reads it, without a warning."""
    store = zarr.storage.ZipStore(path) if path.suffix == ".zip" else zarr.storage.LocalStore(path)
    dataset = xarray.open_zarr(store, decode_coords="all", mask_and_scale=False, **options).load()
    store.close()
    return dataset


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("suffix", [".zarr", ".zarr.zip"])
def test_xarray_reads_pixels_place_nodata_and_names(name: str, suffix: str, tmp_path: Path) -> None:
    """Xarray and rioxarray find them; the store read as an input has them too."""
    output, path = CASES[name], tmp_path / f"x{suffix}"
    assert output.save(path) == path
    array = opened(path).raster
    np.testing.assert_array_equal(array.values, output.array, strict=True)
    assert array.rio.crs == (None if output.crs is None else rasterio.CRS.from_user_input(output.crs))
    if output.transform is not None:
        np.testing.assert_allclose(tuple(array.rio.transform())[:6], output.transform)
    np.testing.assert_equal(array.rio.nodata, output.nodata)
    assert tuple(array.attrs.get("long_name", ())) == output.band_names
    again = read_raster(path)
    np.testing.assert_array_equal(again.array, output.array, strict=True)
    np.testing.assert_equal(again.nodata, output.nodata)
    place = again.georeference or Georeference()
    assert place.transform == output.transform
    assert same_system(place.crs, output.crs)
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name]


def test_classes_have_their_names_and_colours(tmp_path: Path) -> None:
    """CF's flags name the classes, and bool is stored as uint8."""
    palette = np.array([[0, 0, 0], [255, 0, 0], [0, 0, 255]], np.uint8)
    RasterOutput(CLASSES, class_names=["bare soil", "fire", "water"], palette=palette).save(tmp_path / "x.zarr")
    attributes = opened(tmp_path / "x.zarr").raster.attrs
    assert attributes["flag_meanings"] == "bare_soil fire water"
    assert (attributes["flag_values"], attributes["flag_colors"]) == ([0, 1, 2], "#000000 #ff0000 #0000ff")
    RasterOutput(CLASSES == 1).save(tmp_path / "y.zarr")
    np.testing.assert_array_equal(
        opened(tmp_path / "y.zarr").raster.values, (CLASSES == 1).astype("uint8"), strict=True
    )


@pytest.mark.parametrize("suffix", [".zarr", ".zarr.zip"])
def test_embeddings_have_the_scales_of_their_geotiff(suffix: str, tmp_path: Path) -> None:
    """One scale is CF's, which xarray applies; a scale for each band is a list, which an input has as its packing."""
    pixels = RNG.integers(-127, 128, (2, 7, 5), "int8")
    pixels[:, 0, 0] = -128
    known: dict[str, Any] = {"nodata": -128, "georeference": UTM}
    for scales in ([0.5, 0.5], [0.5, 2.0]):
        output = RasterOutput(pixels, scales=scales, **known)
        path = output.save(tmp_path / f"{scales[1]}{suffix}")
        packed, tiff = read_raster(path), read_raster(output.save(tmp_path / "x.tif"))
        np.testing.assert_array_equal(packed.array, tiff.array, strict=True)
        assert [(each.scale, each.offset) for each in packed.packing] == [(scale, 0.0) for scale in scales]
        assert [each.scale for each in tiff.packing] == scales
    attributes = opened(tmp_path / f"2.0{suffix}").raster.attrs
    assert (attributes["scales"], attributes["offsets"], "scale_factor" in attributes) == ([0.5, 2.0], [0, 0], False)
    one = tmp_path / f"0.5{suffix}"
    with zarr.storage.ZipStore(one) if suffix == ".zarr.zip" else nullcontext(one) as store:
        values = xarray.open_zarr(store, decode_coords="all").raster.values
    np.testing.assert_array_equal(values, np.where(pixels == -128, np.nan, pixels * 0.5))


def test_pixels_of_different_scales_are_not_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reduced copy has every second pixel of embeddings whose scales are a band."""
    monkeypatch.setattr("vllm_mmout.outputs.formats.zarr_store._SIDE", 64)
    pixels = RNG.integers(-127, 128, (3, 100, 70), "int8")
    RasterOutput(pixels, nodata=-128, nearest=True).save(tmp_path / "x.zarr")
    np.testing.assert_array_equal(opened(tmp_path / "x.zarr", group="1").raster, pixels[:, ::2, ::2])


def test_a_large_raster_has_reduced_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level halves the level before: means of valid pixels, or every second class. The convention lists them."""
    monkeypatch.setattr("vllm_mmout.outputs.formats.zarr_store._SIDE", 64)
    pixels = RNG.random((2, 61, 250), "float32")
    pixels[:, :2, :3] = -1
    output = stored(pixels, tmp_path, nodata=-1, georeference=UTM, metadata={"SENSOR": "x", "scale_factor": "2"})
    output.save(tmp_path / "x.zarr")
    root = opened(tmp_path / "x.zarr")
    levels = [root, *(opened(tmp_path / "x.zarr", group=str(number)) for number in (1, 2))]
    np.testing.assert_array_equal(levels[0].raster.values, pixels)
    assert [level.raster.shape[1:] for level in levels] == [(61, 250), (31, 125), (16, 63)]
    half = levels[1].raster
    np.testing.assert_allclose(half[:, 5, 5], pixels[:, 10:12, 10:12].mean(axis=(1, 2)), rtol=1e-6)
    np.testing.assert_allclose(half[:, 0, 1], pixels[:, :2, 3].mean(axis=1), rtol=1e-6)  # beside nodata
    assert (half[:, 0, 0] == -1).all()
    assert tuple(half.rio.transform(recalc=True))[:6] == (20.0, 0.0, 500000.0, 0.0, -20.0, 5000000.0)
    layout = root.attrs["multiscales"]["layout"]
    assert [entry["asset"] for entry in layout] == ["raster", "1/raster", "2/raster"]
    assert [entry["spatial:shape"] for entry in layout] == [[61, 250], [31, 125], [16, 63]]
    assert [each["name"] for each in root.attrs["zarr_conventions"]] == ["proj:", "spatial:", "multiscales"]
    assert read_raster(tmp_path / "x.zarr").metadata["SENSOR"] == "x"
    classes = np.resize(CLASSES, (1, 61, 100))
    RasterOutput(classes, class_names=["a", "b", "c"]).save(tmp_path / "y.zarr")
    np.testing.assert_array_equal(opened(tmp_path / "y.zarr", group="1").raster, classes[:, ::2, ::2])


def test_arrays_are_a_group(tmp_path: Path) -> None:
    """Each array of a tensor output is an array with its name, in a folder, a zip file and bytes."""
    arrays = {"tokens": RNG.random((4, 3)).astype("float16"), "count": np.array(3), "wide": np.zeros((1100, 1000))}
    output = TensorOutput(arrays)
    output.save(tmp_path / "x.zarr")
    (tmp_path / "y.zarr.zip").write_bytes(output.to_bytes("zarr"))
    for path in (tmp_path / "x.zarr", tmp_path / "y.zarr.zip"):
        dataset = opened(path)
        for name, array in arrays.items():
            np.testing.assert_array_equal(dataset[name].values, array, strict=True)
    assert zarr.open_array(tmp_path / "x.zarr" / "wide").chunks == (1048, 1000)
    for name, array in (("a/b", np.zeros(3)), ("texts", np.array(["x"]))):
        with pytest.raises(SaveError, match=r"save the output as \.npz"):
            TensorOutput({name: array}).save(tmp_path / "z.zarr")
    assert not (tmp_path / "z.zarr").exists()


def test_a_store_is_replaced_whole_and_nothing_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store appears when it is complete. An older store is replaced; a file or another folder is kept."""
    output, path = CASES["floats"], tmp_path / "x.zarr"
    CASES["without a place"].save(path)
    output.save(path)
    with monkeypatch.context() as patched:
        patched.setattr("vllm_mmout.outputs.raster.RasterOutput.read", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            CASES["rotated"].save(path)
    assert opened(path).raster.rio.crs == rasterio.CRS.from_epsg(32632)
    assert [file.name for file in tmp_path.iterdir()] == ["x.zarr"]
    remove_saved(path)
    path.mkdir()
    (path / "mine.txt").touch()
    with pytest.raises(SaveError, match="a folder with other files"):
        output.save(path)
    with pytest.raises(SaveError, match="there is no folder"):
        output.save(tmp_path / "none" / "x.zarr")
    with pytest.raises(SaveError, match=r"a folder of many objects; write one zip file, s3://bucket/x\.zarr\.zip"):
        output.save("s3://bucket/x.zarr")
    assert [file.name for file in path.iterdir()] == ["mine.txt"]


def test_what_a_store_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ground control points, and a missing package, are an error that names another format or the extra."""
    points = Georeference(gcps=(GroundControlPoint(0, 0, 1.0, 2.0),) * 3, gcps_crs="EPSG:4326")
    with pytest.raises(SaveError, match=r"no attributes for ground control points .*; save it as \.tif"):
        RasterOutput(FLOATS, georeference=points).save(tmp_path / "x.zarr")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SaveError, match=r'needs zarr and pyproj; pip install "vllm-mmout\[zarr\]"'):
        CASES["floats"].save(tmp_path / "x.zarr")


def test_a_suffix_may_have_two_parts() -> None:
    """A name ends before both parts of ``.zarr.zip``, and before the last part of any other suffix."""
    assert [suffix_of(Path(name)) for name in ("a.b.ZARR.zip", "a.zarr", "a.b.zip", "a")] == [
        ".zarr.zip",
        ".zarr",
        ".zip",
        "",
    ]
    assert str(with_end(Path("x/a.b.zarr.ZIP"), "-mask")) == "x/a.b-mask.zarr.ZIP"
    assert str(with_end(Path("a.tif"), "-mask")) == "a-mask.tif"
