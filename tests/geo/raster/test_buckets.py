"""Objects in buckets, from a real S3 server: what is read, listed, and said where that cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from buckets import SECRET, bucket, put, redirecting, s3  # noqa: F401 - fixtures
from gdal_files import RNG, UTM, jp2, tiff

from vllm_mmout.errors import BucketError, InputError
from vllm_mmout.geo import (
    FileAddress,
    Window,
    check_bucket,
    file_stem,
    object_store,
    open_raster,
    place_of,
    redirect_fault,
    scenes_below,
    without_secrets,
)
from vllm_mmout.geo.raster.remote.buckets import stores
from vllm_mmout.geo.raster.remote.buckets.bucket_file import open_in_bucket

ARRAY = RNG.integers(0, 4000, (2, 600, 700)).astype("uint16")
NAMES = ["a.tif", "with space/ü.tif", "100%25.tif"]


@pytest.fixture(name="scene", scope="module")
def a_scene(tmp_path_factory):
    """A GeoTIFF on disk."""
    return tiff(tmp_path_factory.mktemp("scene") / "a.tif", ARRAY, tiled=True, blockxsize=128, blockysize=128, **UTM)


@pytest.mark.parametrize("name", NAMES)
def test_a_scene_in_a_bucket_is_that_on_the_disk(bucket, scene, name) -> None:  # noqa: F811
    """Pixels, place and nodata, under names as they are stored: nothing in them is unescaped."""
    address = put(bucket + name, scene)
    with open_raster(address) as remote, open_raster(scene) as local:
        assert remote.name == address
        np.testing.assert_array_equal(remote.read(Window(100, 50, 300, 400)).array, ARRAY[:, 100:400, 50:450])
        np.testing.assert_array_equal(remote.read().array, ARRAY)
        assert (remote.georeference, remote.nodata) == (local.georeference, local.nodata)


def test_jpeg_2000_and_pictures_are_read_too(bucket) -> None:  # noqa: F811
    """What GDAL reads from bytes is read whole."""
    with open_raster(put(bucket + "a.jp2", jp2(ARRAY[:, :90, :120], **UTM))) as opened:
        np.testing.assert_array_equal(opened.read().array, ARRAY[:, :90, :120])


def test_an_object_that_changes_is_an_error(bucket, scene, tmp_path) -> None:  # noqa: F811
    """Never a mixture of two versions."""
    large = tiff(tmp_path / "a.tif", RNG.integers(0, 4000, (4, 900, 900)).astype("uint16"), **UTM)
    address = put(bucket + "a.tif", large)
    with open_raster(address) as opened:
        put(address, scene)
        with pytest.raises(InputError, match=r"a\.tif.* was changed in its bucket while it was read; send it again"):
            opened.read()


WRONG = {
    "missing.tif": "there is no such object; check the address",
    "": "is a folder; give the file in it",
    "folder/": "is a folder; give the file in it",
    "empty.tif": "is empty",
    "a.tif?X-Amz-Signature=SECRET": "must have no user, query and fragment; credentials come from the environment",
    "a//b.tif": 'has an empty part of its path, or "." or ".."',
    "../b.tif": 'has an empty part of its path, or "." or ".."',
}


@pytest.mark.parametrize(("name", "words"), WRONG.items())
def test_what_cannot_be_read_is_said(bucket, name, words) -> None:  # noqa: F811
    """With the address, without what follows its query, and what to do."""
    put(bucket + "empty.tif", b"")
    with pytest.raises(InputError) as raised:
        open_raster(bucket + name)
    assert words in str(raised.value)
    assert bucket in str(raised.value)
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("s3://no-such-bucket-here/a.tif", "there is no bucket 'no-such-bucket-here'; check the address"),
        ("s3://user:SECRET@bucket/a.tif", "s3://bucket/a.tif must have no user"),
        ("s3:///a.tif", "names no bucket; it must be s3://bucket/key"),
        ("az://container/a.tif", "has no credentials for it; set AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_a_bucket_that_cannot_be_reached_is_said(s3, address, words) -> None:  # noqa: F811
    """What is wrong with it, and what to do."""
    with pytest.raises(InputError) as raised:
        open_in_bucket(address)
    assert words in str(raised.value)
    assert "SECRET" not in str(raised.value)


READ = "import sys; from vllm_mmout.geo import open_raster; open_raster(sys.argv[1])"


def fails(code, address="", **environment):
    """The last line of what a new process says that fails."""
    words = [sys.executable, "-c", code, address]
    done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_errors_of_servers_tell_no_secret(s3, bucket, tmp_path) -> None:  # noqa: F811
    """A server that is not there, a request that is refused, and a package that is missing."""
    quick = {"MMOUT_FETCH_RETRIES": "1"}
    words = fails(READ, f"{bucket}a.tif", AWS_ENDPOINT_URL="http://127.0.0.1:9", **quick)
    assert f"{bucket}a.tif: it cannot be fetched: " in words
    assert "try again later, or raise MMOUT_FETCH_RETRIES (1) or MMOUT_FETCH_TIMEOUT (30 s)" in words
    assert SECRET not in words
    assert "127.0.0.1" not in words
    (tmp_path / "obstore.py").write_text("raise ImportError('none')")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    assert 'needs obstore; pip install "vllm-mmout[buckets]"' in fails(READ, f"{bucket}a.tif", PYTHONPATH=path)


FORKED = """
import os, sys
from vllm_mmout.geo import open_raster
with open_raster(sys.argv[1]):
    if os.fork() == 0:
        open_raster(sys.argv[1])
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_forked_process_says_that_it_cannot(bucket, scene) -> None:  # noqa: F811
    """The threads that read buckets stay in the process that was forked: instead of waiting for them, it fails."""
    assert "cannot be reached in a process that was forked" in fails(FORKED, put(bucket + "a.tif", scene))


def test_addresses_have_names_and_no_secrets() -> None:
    """As those with https, but for what is escaped."""
    assert file_stem("s3://bucket/in/a%20b.tif") == "a%20b"
    assert file_stem("s3://bucket") == ""
    assert without_secrets("S3://user:SECRET@bucket/a.tif?SECRET#SECRET") == "s3://bucket/a.tif"


STORED = ["b/scene10.tif", "b/scene2.TIF", "a.png", "notes.txt", "b/.hidden/a.tif", "bb.tif", "b/c/scene.jp2"]


@pytest.mark.parametrize("where", ["bucket", "folder"])
def test_scenes_below_a_folder(bucket, where, tmp_path) -> None:  # noqa: F811
    """Rasters and pictures of all folders below, in the order of their numbers; not those of one named alike."""
    start = bucket if where == "bucket" else f"{tmp_path}/"
    for name in STORED:
        if where == "bucket":
            put(start + name, b"x")
        else:
            Path(start, name).parent.mkdir(parents=True, exist_ok=True)
            Path(start, name).write_bytes(b"x")
    below = ["b/c/scene.jp2", "b/scene2.TIF", "b/scene10.tif"]
    assert scenes_below(start) == [start + name for name in ["a.png", *below, "bb.tif"]]
    assert scenes_below(f"{start}b/") == scenes_below(f"{start}b") == [start + name for name in below]
    with pytest.raises(InputError, match=r"no such folder|has no objects below it"):
        scenes_below(f"{start}none/")


ODD = ["b//c.tif", "b/x/../d.tif", "b/x/./e.tif", "b/tab\tf.tif"]


def test_keys_that_no_store_takes_are_listed_with_the_others(bucket, monkeypatch) -> None:  # noqa: F811
    """Each such key is refused when it is opened. Without boto3 the error of the listing names the key."""
    for name in ["a.tif", "b/g.tif", *ODD]:
        put(bucket + name, b"x")
    assert set(scenes_below(f"{bucket}b/")) == {bucket + name for name in ["b/g.tif", *ODD]}
    for name in ODD:
        with pytest.raises(InputError, match=r"and cannot be reached; correct it, or copy the object to another name"):
            open_raster(bucket + name)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(
        InputError, match=r'cannot be listed: .*"b//c\.tif" contained empty path segment; pip install boto3'
    ):
        scenes_below(bucket)


def test_a_bucket_whose_server_redirects_is_told(bucket, s3, monkeypatch) -> None:  # noqa: F811
    """The redirect is refused, signed or not. Its target gets no request, and nothing is written there."""
    place = FileAddress.of(put(bucket + "a.tif", b"x"))
    assert redirect_fault(place) is None
    with redirecting(s3.address) as elsewhere:
        monkeypatch.setenv("AWS_ENDPOINT_URL", elsewhere)
        stores._store.cache_clear()
        s3.asked()
        try:
            for public in ("false", "true"):
                monkeypatch.setenv("AWS_SKIP_SIGNATURE", public)
                said = redirect_fault(place)
                assert said is not None
                assert said.startswith(f"the bucket's server redirects to {s3.address}/")
                assert "redirects of buckets are not followed" in said
            with pytest.raises(BucketError, match="redirects of buckets are not followed"):
                check_bucket(place_of(f"{bucket}out/"))
        finally:
            stores._store.cache_clear()
        assert s3.asked() == []


@pytest.mark.parametrize("where", ["bucket", "folder"])
def test_a_store_of_a_bucket_or_a_folder(bucket, where, tmp_path) -> None:  # noqa: F811
    """The same calls of obstore write and read in both."""
    import obstore

    start = bucket if where == "bucket" else f"{tmp_path}/"
    store, key = object_store(f"{start}out/")
    assert key.endswith("out/")
    obstore.put(store, f"{key}ä 1.json", b"{}")
    again, name = object_store(f"{start}out/ä 1.json")
    assert again is store
    assert bytes(obstore.get(again, name).bytes()) == b"{}"
    assert where == "bucket" or (tmp_path / "out/ä 1.json").read_bytes() == b"{}"
