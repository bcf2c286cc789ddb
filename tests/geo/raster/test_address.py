"""Addresses: what is one, what may be said of one, what its file is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_mmout.geo.raster.formats import file_stem, is_address, without_secrets


@pytest.mark.parametrize("source", ["http://host/a.tif", "HTTPS://host/a.tif", " https://host"])
def test_addresses(source):
    """Of http and https, in any case."""
    assert is_address(source)


@pytest.mark.parametrize("source", ["a.tif", "s3://bucket/a", "https", Path("http://host/a"), b"http://host/a", None])
def test_what_is_no_address(source):
    """Other schemes, paths, and what is no text."""
    assert not is_address(source)


SHOWN = {
    "https://host/a.tif": "https://host/a.tif",
    "https://user:secret@host:8443/a/b.tif?signature=secret#part": "https://host:8443/a/b.tif",
    "HTTP://user@secret:secret@host": "http://host",
    "https://host?secret=1/2@3": "https://host",
    "https://host/me@home.tif": "https://host/me@home.tif",
    "scene?.tif": "scene?.tif",
}


@pytest.mark.parametrize(("address", "expected"), SHOWN.items())
def test_secrets_are_not_shown(address, expected):
    """Neither user and password nor query and fragment; a path is shown as it is."""
    assert without_secrets(address) == expected


STEMS = {
    "https://host/folder/scene.tif": "scene",
    "https://host/a%20b.c.tif?name=other.tif": "a b.c",
    "https://host/x%2F..%2F..%2Fetc%2Fpasswd.tif": "passwd",
    "https://host/%2e%2e": "",
    "https://host/a%0Ab.tif": "",
    "https://host/": "",
    "https://host": "",
    "folder/scene.tif": "scene",
    Path("folder/scene.tif"): "scene",
    b"II*": "",
    'NETCDF:"a.nc":t': "a_t",
    'netcdf:"/x/y/a.b.nc":/group/t': "a.b_group_t",
    "NETCDF:a.nc:t": "a_t",
    'HDF5:"d/a.h5"://../t': "a_t",
    "/vsimem/..": "",
}


@pytest.mark.parametrize(("source", "expected"), STEMS.items(), ids=str)
def test_the_name_of_a_result(source, expected):
    """The last part of the path, whatever stands in the query; never a way out of the folder."""
    assert file_stem(source) == expected
