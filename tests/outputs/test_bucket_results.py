"""Results written to buckets: whole or not at all, and read from there."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from buckets import bucket, held, put, s3  # noqa: F401 - fixtures
from on_disk import CLASSES, stored

from vllm_mmout.errors import BucketError, InputError, SaveError
from vllm_mmout.geo import check_bucket, open_raster, place_of
from vllm_mmout.geo.raster.remote.buckets.writing import _check_bucket
from vllm_mmout.outputs import ImageOutput
from vllm_mmout.outputs.formats.geotiff import remove_saved

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
IDS = np.random.default_rng(0).integers(0, 3, (1, 700, 600), "uint8")
NOISE = np.random.default_rng(1).random((1, 1600, 1600), "float32")
"""More than a part of an upload."""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The system's folder for temporary files, empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_raster_of_classes(bucket, temporary, tmp_path) -> None:  # noqa: F811
    """The GeoTIFF and the names beside it are those on disk; the temporary file goes, and it is read from there."""
    put(bucket + "out/mask.tif.msk", b"of an older file")
    put(bucket + "out/mask.tif.aux.xml.bak", b"of somebody else")
    raster = stored(IDS, temporary, **CLASSES)
    assert str(raster.save(bucket + "out/mask.tif")) == raster.path == bucket + "out/mask.tif"
    assert not list(temporary.rglob("*"))
    local = stored(IDS, temporary, **CLASSES)
    local.save(tmp_path / "mask.tif")
    names = ["mask.tif", "mask.tif.aux.xml"]
    expected = {f"out/{name}": (tmp_path / name).read_bytes() for name in names}
    assert held(bucket) == ({**expected, "out/mask.tif.aux.xml.bak": b"of somebody else"}, [])
    for same in (raster, pickle.loads(pickle.dumps(raster))):  # noqa: S301 - our own
        np.testing.assert_array_equal(same.array, IDS)
        same.save(bucket + "copy.tif")
    assert raster.to_bytes("tiff") == expected["out/mask.tif"] == held(bucket)[0]["copy.tif"]
    remove_saved(raster.path)
    assert set(held(bucket)[0]) == {"copy.tif", "copy.tif.aux.xml", "out/mask.tif.aux.xml.bak"}
    with pytest.raises(InputError, match="is gone"):
        _ = raster.array


def test_over_its_own_object_nothing_is_written(bucket, temporary, s3) -> None:  # noqa: F811
    """As on disk; where the object was replaced it is an error."""
    raster = stored(IDS, temporary, **CLASSES)
    raster.save(bucket + "mask.tif")
    s3.asked()
    raster.save(bucket + "mask.tif")
    assert not [asked for asked in s3.asked() if not asked.startswith("HEAD")]
    put(bucket + "mask.tif", b"something else")
    with pytest.raises(InputError, match=r"s3://.*mask\.tif was replaced since this result was written"):
        raster.save(bucket + "mask.tif")


@pytest.mark.parametrize(
    "refused",
    ["PUT mask.tif?partNumber=2", "POST mask.tif?uploadId", "POST mask.tif?uploads", "PUT mask.tif.aux.xml"],
)
def test_nothing_is_left_of_an_upload_that_fails(bucket, s3, temporary, refused) -> None:  # noqa: F811
    """Neither the file nor its parts; what was there before stays, and the result can be saved elsewhere."""
    method, _, rest = refused.partition(" ")
    put(bucket + "mask.tif.aux.xml", b"older")
    s3.refuse(method, rest)
    raster = stored(NOISE, temporary, **{**CLASSES, "nodata": None, "palette": None})
    with pytest.raises(SaveError, match=r"mask\.tif: the server answered 403; ask for the right to write it"):
        raster.save(bucket + "mask.tif")
    s3.refuse()
    assert held(bucket) == ({"mask.tif.aux.xml": b"older"}, [])
    raster.save(bucket + "mask.tif")
    with open_raster(bucket + "mask.tif") as opened:
        np.testing.assert_array_equal(opened.read().array, NOISE)


@pytest.mark.parametrize("key", ["in//a.tif", "x/../a.tif", "x/./a.tif", "tab\ta.tif"])
def test_a_key_that_no_store_takes_is_no_hindrance(bucket, key) -> None:  # noqa: F811
    """A result is written without listing the bucket, so that such a key anywhere in it does no harm."""
    put(bucket + key, b"x")
    _check_bucket.cache_clear()
    check_bucket(place_of(f"{bucket}out/"))
    ImageOutput(np.zeros((8, 8, 3), "uint8")).save(bucket + "out/c.png")
    with open_raster(bucket + "out/c.png") as opened:
        assert opened.size == (8, 8)


def test_a_bucket_that_refuses_is_said(bucket, s3) -> None:  # noqa: F811
    """The error has the address, the server's answer and the remedy."""
    s3.refuse("PUT", "c.png")
    with pytest.raises(BucketError) as raised:
        ImageOutput(np.zeros((8, 8, 3), "uint8")).save(bucket + "out/c.png")
    assert str(raised.value).startswith(f"{bucket}out/c.png: the server answered 403; ask for the right to write it")
    assert raised.value.status == 403
    with pytest.raises(BucketError, match="there is no bucket 'no-such-bucket-here'; check the address") as raised:
        check_bucket(place_of("s3://no-such-bucket-here/out/"))
    assert raised.value.status == 404


WRONG = {
    "s3://no-such-bucket-here/a.png": "there is no bucket 'no-such-bucket-here'",
    "s3://bucket/a": "the name has no suffix",
    "s3://bucket/../a.png": "cannot write s3://bucket/../a.png has an empty part",
    "s3://user:SECRET@bucket/a.png?SECRET=.png": "must have no user",
}


@pytest.mark.parametrize(("address", "words"), WRONG.items())
def test_where_nothing_can_be_written(s3, address, words) -> None:  # noqa: F811
    """It is said, without secrets."""
    with pytest.raises(SaveError) as raised:
        ImageOutput(np.zeros((8, 8, 3), "uint8")).save(address)
    assert words in str(raised.value)
    assert "SECRET" not in str(raised.value)


def test_a_picture_by_a_path_of_a_bucket(bucket) -> None:  # noqa: F811
    """What `save` gives has names as paths have."""
    saved = ImageOutput(np.zeros((8, 8, 3), "uint8")).save(bucket + "a b/c.png")
    assert (saved.name, saved.suffix, str(saved.with_name("d.png"))) == ("c.png", ".png", bucket + "a b/d.png")
    assert not isinstance(saved, Path)
    assert held(bucket)[0]["a b/c.png"].startswith(b"\x89PNG")
