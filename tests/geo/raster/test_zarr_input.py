"""Zarr stores as inputs: read as xarray and zarr-python wrote them, or refused with what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

zarr = pytest.importorskip("zarr", reason="the oracle is zarr-python")
xarray = pytest.importorskip("xarray", reason="the oracle is xarray")
pytest.importorskip("rioxarray")

from numcodecs import LZ4, Blosc, Delta, GZip, Pickle, Zlib, Zstd  # noqa: E402
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec  # noqa: E402

from vllm_mmout.errors import InputError  # noqa: E402
from vllm_mmout.geo import Window, declared_size, open_raster, read_raster  # noqa: E402
from vllm_mmout.models.inputs.input_forms import as_folder, name_of  # noqa: E402

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # in rioxarray
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
    pytest.mark.filterwarnings("ignore:The data type"),  # of texts, in zarr
]
PIXELS = np.random.default_rng(0).integers(1, 9000, (3, 70, 90), "uint16")
X, Y = 500000 + 10 * (np.arange(90) + 0.5), 5000000 - 10 * (np.arange(70) + 0.5)
TRANSFORM = (10.0, 0.0, 500000.0, 0.0, -10.0, 5000000.0)
GEO = {"proj:code": "EPSG:32632", "spatial:dimensions": ["y", "x"], "spatial:transform": list(TRANSFORM)}


def by_xarray(path: Path, version: int, **attributes: Any) -> Path:
    """A store as xarray and rioxarray write it, with the names of its bands as coordinates."""
    names = {"band": ["B02", "B03", "B04"], "y": Y, "x": X}
    array = xarray.DataArray(PIXELS, names, ("band", "y", "x"), name="refl", attrs=attributes)
    array = array.rio.write_crs(32632).rio.write_nodata(0)
    array.to_dataset().to_zarr(path, zarr_format=version, encoding={"refl": {"chunks": (2, 32, 48)}})
    return path


def by_zarr(path: Path, pixels: Any = PIXELS, dims: tuple[str, ...] | None = None, **options: Any) -> Path:
    """A store of one array, as zarr-python writes it."""
    options = {"chunks": (1, 32, 32)[-pixels.ndim :], **options}
    if dims:
        options["dimension_names"] = dims
    array = zarr.create_array(store=str(path), shape=pixels.shape, dtype=pixels.dtype, overwrite=True, **options)
    array[...] = pixels
    return path


def edited(path: Path, file: str, **values: Any) -> Path:
    """The store, with other values in a metadata file."""
    place = path / file
    place.write_text(json.dumps({**json.loads(place.read_text()), **values}))
    return path


def zipped(path: Path, within: str = "") -> Path:
    """The store in a zip file without compression, as zarr's own `ZipStore` writes it."""
    target = path.with_suffix(".zarr.zip")
    with zipfile.ZipFile(target, "w") as archive:
        for file in sorted(path.rglob("*")):
            if file.is_file():
                archive.write(file, f"{within}{file.relative_to(path)}")
    return target


@pytest.mark.parametrize("version", [2, 3])
def test_a_store_of_xarray_has_its_bands_place_and_nodata(version: int, tmp_path: Path) -> None:
    """Folder, zip file, bytes and a path of one array yield the pixels, names, CRS, transform and nodata."""
    path = by_xarray(tmp_path / "scene.zarr", version)
    within = zipped(path, "scene.zarr/").rename(tmp_path / "within.zip")
    for source in (path, zipped(path), within, BytesIO(within.read_bytes()), within.read_bytes(), path / "refl"):
        with open_raster(source) as raster:
            np.testing.assert_array_equal(raster.read().array, PIXELS, strict=True)
            part = raster.read(Window(10, 20, 40, 50), ["B04", "B02"])
            np.testing.assert_array_equal(part.array, PIXELS[[2, 0], 10:50, 20:70])
            assert raster.descriptions == ("B02", "B03", "B04")
            assert (raster.nodata, raster.georeference.crs) == (0, "EPSG:32632")
            assert raster.georeference.transform == TRANSFORM
    declared = declared_size(BytesIO(within.read_bytes()))
    assert (declared.height, declared.width, declared.bands, declared.itemsize) == (70, 90, 3, 2)
    assert as_folder(path) is None
    assert {name_of(path), name_of(zipped(path))} == {"scene"}


CODECS = ["zstd", "gzip", "blosc", "zstd-crc32c", "none"]
"""Names of the codecs below. The repr of a codec differs from process to process."""


@pytest.mark.parametrize(
    "codec", [ZstdCodec(), GzipCodec(), BloscCodec(), [ZstdCodec(), Crc32cCodec()], None], ids=CODECS
)
@pytest.mark.parametrize("shards", [None, (3, 64, 96)], ids=str)
def test_codecs_and_shards_of_version_3(codec: Any, shards: Any, tmp_path: Path) -> None:
    """Pixels are those that zarr-python reads, with the fill value where no chunk is stored."""
    options = {"compressors": codec, "shards": shards, "fill_value": 7}
    path = by_zarr(tmp_path / "x.zarr", filters=[TransposeCodec(order=(0, 2, 1))], **options)
    zarr.open_array(path, mode="r+")[:, 32:] = 7
    expected = zarr.open_array(path)[...]
    for source in (path, zipped(path)):
        raster = read_raster(source)
        np.testing.assert_array_equal(raster.array, expected, strict=True)
        assert raster.nodata == 7


@pytest.mark.parametrize(
    "codec", [Blosc(), Zstd(), LZ4(), Zlib(), GZip(), None], ids=["blosc", "zstd", "lz4", "zlib", "gzip", "none"]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_codecs_of_version_2(codec: Any, order: str, tmp_path: Path) -> None:
    """Pixels of both byte orders and both orders of axes are those that zarr-python reads."""
    path = by_zarr(tmp_path / "x.zarr", PIXELS.astype(">u2"), compressors=codec, order=order, zarr_format=2)
    raster = read_raster(path)
    np.testing.assert_array_equal(raster.array, PIXELS, strict=True)
    assert raster.nodata is None  # the fill value 0 is zarr-python's default


def test_times_are_the_outer_order_of_bands(tmp_path: Path) -> None:
    """Arrays of one band each, and an array with bands, yield the bands of the earliest time first."""
    pixels = np.random.default_rng(1).random((2, 20, 30), "float32")
    times = np.array(["2021-05-01", "2020-05-01"], "datetime64[ns]")
    names = ("B10", "B2")
    bands = {name: (("time", "y", "x"), pixels + number) for number, name in enumerate(names)}
    xarray.Dataset(bands, {"time": times}).to_zarr(tmp_path / "bands.zarr")
    cube = xarray.Dataset({"cube": (("band", "time", "y", "x"), [pixels + 1, pixels])}, {"time": times})
    cube.to_zarr(tmp_path / "cube.zarr")
    expected = np.stack([pixels[1] + 1, pixels[1], pixels[0] + 1, pixels[0]])
    for name in ("bands", "cube"):
        np.testing.assert_array_equal(read_raster(tmp_path / f"{name}.zarr").array, expected)
    assert read_raster(tmp_path / "bands.zarr").descriptions == ("B2", "B10") * 2
    xarray.Dataset(bands).isel(time=[0]).assign_coords(time=times[:1]).to_zarr(tmp_path / "one.zarr")
    assert read_raster(tmp_path / "one.zarr").metadata["ACQUISITION_DATETIME"] == "2021-05-01T00:00:00Z"


def test_a_store_of_terramesh_has_the_array_with_bands(tmp_path: Path) -> None:
    """A mask beside the only array with bands is left out, and the raster says so."""
    arrays = {"bands": (("time", "band", "y", "x"), PIXELS[None]), "cloud_mask": (("time", "y", "x"), PIXELS[:1])}
    xarray.Dataset(arrays).to_zarr(tmp_path / "x.zarr", zarr_format=2)
    raster = read_raster(tmp_path / "x.zarr")
    np.testing.assert_array_equal(raster.array, PIXELS)
    assert "bands was read, the only one with bands, and not cloud_mask" in raster.assumed[0]


def test_packed_numbers_have_scale_offset_and_fill(tmp_path: Path) -> None:
    """The attributes that xarray writes for packed numbers become the packing, which is applied by default."""
    array = xarray.Dataset({"ndvi": (("y", "x"), np.full((4, 5), 0.5, "float32"))})
    array.ndvi.encoding = {"dtype": "int16", "scale_factor": 0.001, "add_offset": 1.0, "_FillValue": -9999}
    array.to_zarr(tmp_path / "x.zarr")
    with open_raster(tmp_path / "x.zarr") as raster:
        assert (raster.nodata, raster.packing[0].scale, raster.packing[0].offset) == (-9999, 0.001, 1.0)
        assert raster.packing[0].applied
        assert (raster.read().array == -500).all()


@pytest.mark.parametrize(
    ("attributes", "transform"),
    [
        (GEO, TRANSFORM),
        ({**GEO, "spatial:registration": "node"}, (10.0, 0.0, 499995.0, 0.0, -10.0, 5000005.0)),
        ({"spatial:bbox": [500000, 4999300, 500900, 5000000], "proj:code": "EPSG:32632"}, TRANSFORM),
        ({**GEO, "spatial:transform": [6, 8, 0, 8, -6, 0]}, (6.0, 8.0, 0.0, 8.0, -6.0, 0.0)),
    ],
)
def test_the_geozarr_conventions_place_the_pixels(attributes: Any, transform: Any, tmp_path: Path) -> None:
    """``proj:code`` is the CRS; ``spatial:transform`` or ``spatial:bbox`` the transform of pixel corners."""
    path = by_zarr(tmp_path / "x.zarr", dims=("band", "y", "x"), attributes=attributes)
    assert read_raster(path).georeference.crs == "EPSG:32632"
    assert read_raster(path).georeference.transform == transform


def test_the_first_level_of_a_pyramid_is_read(tmp_path: Path) -> None:
    """A group of several resolutions yields the finest, with the CRS of the group and the transform of the level."""
    level = {"asset": "0", "spatial:transform": list(TRANSFORM)}
    root = zarr.create_group(
        tmp_path / "x.zarr", attributes={"multiscales": {"layout": [level]}, "proj:code": "EPSG:3857"}
    )
    root.create_array("0/data", data=PIXELS)
    raster = read_raster(tmp_path / "x.zarr")
    np.testing.assert_array_equal(raster.array, PIXELS)
    assert (raster.georeference.crs, raster.georeference.transform) == ("EPSG:3857", TRANSFORM)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"proj:code": "EPSG:32633"}, "proj:code states EPSG:32633, crs_wkt of the grid mapping states EPSG:32632"),
        ({"spatial:transform": [10, 0, 0, 0, -10, 0]}, "spatial:transform states .* GeoTransform|coordinates x and y"),
        ({"spatial:shape": [90, 70]}, r"spatial:shape states \[90, 70\], and the array has \[70, 90\]"),
        ({"spatial:transform": [10, 0, 0]}, r"spatial:transform is \[10, 0, 0\], not 6 numbers"),
        ({"spatial:transform_type": "rpc"}, "spatial:transform_type is 'rpc', not affine"),
        ({"missing_value": 5}, "states _FillValue 0 and missing_value 5|missing_value 5 .* _FillValue 0"),
        ({"proj:wkt2": "+init=/etc/passwd:x"}, "proj:wkt2: .* is refused as a coordinate system"),
        ({"scale_factor": "many"}, "scale_factor 'many', which is not a number"),
        ({"_FillValue": 70000}, "_FillValue 70000, which its uint16 pixels cannot hold"),
    ],
    ids=str,
)
def test_contradictions_are_refused_with_both_statements(
    attributes: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    """A CRS, place, shape or fill value that is stated twice differently, or not understood, is an error."""
    path = by_xarray(tmp_path / "x.zarr", 3)
    stated = json.loads((path / "refl/zarr.json").read_text())["attributes"]
    edited(path, "refl/zarr.json", attributes={**stated, **attributes})
    with pytest.raises(InputError, match=message):
        open_raster(path)


@pytest.mark.parametrize(
    ("dims", "shape", "message"),
    [
        (("x", "y"), (9, 8), "has the dimensions x, y; the last two must be rows and columns"),
        (("z", "y", "x"), (2, 9, 8), "has the dimension 'z' of 2, which is neither of bands nor of time"),
        (None, (9,), r"has the shape \[9\]"),
    ],
)
def test_other_dimensions_are_refused_by_name(dims: Any, shape: Any, message: str, tmp_path: Path) -> None:
    """An array that is no raster is refused with its dimensions."""
    by_zarr(tmp_path / "x.zarr", np.zeros(shape, "uint8"), dims, chunks=shape)
    with pytest.raises(InputError, match=message):
        open_raster(tmp_path / "x.zarr")


def test_several_rasters_in_one_group_are_refused_with_their_paths(tmp_path: Path) -> None:
    """Two arrays with bands, or of two sizes, are refused; the path of one of them is read."""
    group = zarr.create_group(tmp_path / "x.zarr")
    group.create_array("a", data=PIXELS, dimension_names=("band", "y", "x"))
    group.create_array("b", data=PIXELS + 1, dimension_names=("band", "y", "x"))
    with pytest.raises(InputError, match=r"2 arrays with bands: .*x.zarr/a, .*x.zarr/b; give the path of one"):
        open_raster(tmp_path / "x.zarr")
    np.testing.assert_array_equal(read_raster(tmp_path / "x.zarr" / "b").array, PIXELS + 1)
    group = zarr.create_group(tmp_path / "y.zarr")
    group.create_array("fine", data=PIXELS[0], dimension_names=("y", "x"))
    group.create_array("coarse", data=PIXELS[0, ::2, ::2].copy(), dimension_names=("y20", "x20"), attributes=GEO)
    with pytest.raises(InputError, match=r"coarse has the dimensions y20, x20|which are not bands of one raster"):
        open_raster(tmp_path / "y.zarr")


def test_a_store_on_the_network_must_be_zipped() -> None:
    """An address of a folder is refused by name before anything is fetched."""
    for address in ("https://192.0.2.1/x.zarr", "s3://bucket/x.zarr/", "https://192.0.2.1/x.zarr/0"):
        with pytest.raises(InputError, match=r"is a Zarr store in a folder, .* zip it"):
            open_raster(address)


def linked(file: Path) -> None:
    """A link to a file of the machine in place of a chunk."""
    file.unlink()
    file.symlink_to("/etc/hostname")


def piped(file: Path) -> None:
    """A named pipe in place of a chunk, which would block a reader."""
    file.unlink()
    os.mkfifo(file)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "pickle": lambda path: edited(path, ".zarray", filters=[Pickle().get_config()]),
    "delta": lambda path: edited(path, ".zarray", filters=[Delta("u2").get_config()]),
    "object": lambda path: edited(path, ".zarray", dtype="|O"),
    "bomb": lambda path: (path / "0.0.0").write_bytes(zlib.compress(bytes(2**24), 9)),
    "larger": lambda path: (path / "0.0.0").write_bytes(bytes(2**20)),
    "shorter": lambda path: (path / "0.0.0").write_bytes(zlib.compress(b"abc")),
    "huge chunk": lambda path: edited(path, ".zarray", chunks=[1, 2**20, 2**20]),
    "negative": lambda path: edited(path, ".zarray", shape=[1, -1, 5]),
    "link": lambda path: linked(path / "0.0.0"),
    "pipe": lambda path: piped(path / "0.0.0"),
    "many chunks": lambda path: edited(path, ".zarray", shape=[3, 2**62, 2**62]),
    "huge metadata": lambda path: (path / ".zattrs").write_text(" " * 2**24),
    "deep": lambda path: (path / ".zattrs").write_text("[" * 100_000),
}
"""Things that a stranger may put into a store."""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pickle", "stored with pickle, which cannot be read"),
        ("delta", "stored with delta, which cannot be read"),
        ("object", r"its data type is '\|O', which is not of numbers"),
        ("bomb", "is a damaged chunk"),
        ("larger", "has 1048576 bytes, 29296 at most"),
        ("shorter", "it has 3 bytes, not 12600"),
        ("huge chunk", "2097152 MiB decoded, 512 MiB at most"),
        ("negative", r"shape is \[1, -1, 5\]"),
        ("link", "is a link to a file outside the Zarr store"),
        ("pipe", "is not a regular file"),
        ("many chunks", "chunks, 4194304 at most; store it in larger chunks"),
        ("huge metadata", r"\.zattrs has 16777216 bytes, 167\d+ at most"),
        ("deep", "is not JSON"),
    ],
)
def test_hostile_stores_are_refused(name: str, message: str, tmp_path: Path) -> None:
    """Codecs that run code, bombs, lying sizes and links are an error before they are decoded or followed."""
    path = by_zarr(tmp_path / "x.zarr", zarr_format=2, compressors=Zlib(), chunks=(1, 70, 90))
    HOSTILE[name](path)
    with pytest.raises(InputError, match=message):
        read_raster(path)


def test_a_million_chunks_of_coordinates_are_not_read(tmp_path: Path) -> None:
    """Coordinates in chunks of one number each are refused, as reading them would take minutes."""
    path = by_xarray(tmp_path / "x.zarr", 2)
    edited(path, "x/.zarray", shape=[2**20], chunks=[1])
    edited(path, "refl/.zarray", shape=[3, 70, 2**20], chunks=[3, 70, 1024])
    with pytest.raises(
        InputError, match=r"x has the shape \[1048576\] in chunks of \[1\], which is none of coordinates"
    ):
        open_raster(path)


@pytest.mark.parametrize("version", [2, 3])
def test_odd_metadata_are_read_or_refused(version: int, tmp_path: Path) -> None:
    """Each value of the metadata, replaced by one of another kind, is an `InputError` or makes no difference."""
    path = by_xarray(tmp_path / "x.zarr", version)
    for name in ("refl", "x", "spatial_ref"):
        file = path / name / (".zarray" if version == 2 else "zarr.json")
        stated = json.loads(file.read_bytes())
        for key, value in product(stated, (None, -1, 2**70, "x", {}, [5], [[]], True)):
            file.write_text(json.dumps({**stated, key: value}))
            with suppress(InputError):
                read_raster(path)
        file.write_text(json.dumps(stated))
    assert (read_raster(path).array == PIXELS).all()


def packed(*files: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file of these files."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return buffer.getvalue()


def test_hostile_zip_files_are_refused(tmp_path: Path) -> None:
    """Paths out of the store, double names, bombs, and lists of files that are too long, are an error."""
    store = by_zarr(tmp_path / "x.zarr", PIXELS, chunks=(3, 70, 90), compressors=None)
    metadata = ("zarr.json", (store / "zarr.json").read_bytes())
    chunk = ("c/0/0/0", PIXELS.tobytes())
    assert (read_raster(packed(metadata, chunk, method=zipfile.ZIP_DEFLATED)).array == PIXELS).all()
    with pytest.raises(InputError, match=r"'\.\./x', a path that leads out of the Zarr store"):
        open_raster(packed(metadata, ("../x", b"")))
    with pytest.warns(UserWarning, match="Duplicate"), pytest.raises(InputError, match="two files of one name"):
        open_raster(packed(metadata, metadata))
    with pytest.raises(InputError, match="has 4194304 bytes, 79696 at most"):
        read_raster(packed(metadata, (chunk[0], bytes(2**22)), method=zipfile.ZIP_DEFLATED))
    lying = packed(metadata, (chunk[0], bytes(2**22)), method=zipfile.ZIP_DEFLATED)
    lying = lying.replace(struct.pack("<I", 2**22), struct.pack("<I", PIXELS.nbytes))
    with pytest.raises(InputError, match="does not unpack to what the zip file states"):
        read_raster(lying)
    long = BytesIO(packed(metadata, *((f"{number:060000}", b"") for number in range(300))))
    with pytest.raises(InputError, match="has a header of more than 16 MiB"):
        open_raster(long)
    with pytest.raises(InputError, match="a ZIP archive"):
        open_raster(packed(("a.tif", b"II*")))


def test_a_flipped_byte_is_found_by_the_checksum(tmp_path: Path) -> None:
    """A chunk with a checksum that does not fit is an error that names the chunk."""
    path = by_zarr(tmp_path / "x.zarr", compressors=[Crc32cCodec()])
    file = path / "c/0/0/0"
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"c/0/0/0 is a damaged chunk: its checksum is wrong"):
        read_raster(path)


def test_a_store_that_moved_is_an_error(tmp_path: Path) -> None:
    """A missing chunk has the fill value; a missing store is an error."""
    path = by_zarr(tmp_path / "x.zarr", fill_value=3)
    (path / "c/0/0/0").unlink()
    assert (read_raster(path).array[0, :32, :32] == 3).all()
    shutil.rmtree(path)
    with pytest.raises(InputError, match="no such file"):
        open_raster(path)
