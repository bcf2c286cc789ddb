"""GDAL's PAM beside a TIFF: place and nodata, as rasterio reads them, or an error that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest
import rasterio
from beside_tiffs import PIXELS, UTM, WKT, WORLD, check, check_refused, pam, scene

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.opened import read_raster
from vllm_mmout.geo.raster.writing import write_geotiff

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


@pytest.mark.parametrize("wkt", WKT)
@pytest.mark.parametrize("own", [{}, UTM, {"crs": "EPSG:32632"}], ids=["nothing", "all", "a system"])
@pytest.mark.parametrize("says", ["both", "system", "transform"])
@pytest.mark.parametrize("world", [False, True])
def test_pam_comes_before_what_a_tiff_says(
    tmp_path: Path, wkt: str, own: dict[str, Any], says: str, *, world: bool
) -> None:
    """System and transform each for itself; a world file comes last."""
    path = scene(tmp_path / "x.tif", **own)
    srs = f'<SRS dataAxisToSRSAxisMapping="1,2">{escape(WKT[wkt])}</SRS>'
    transform = "<GeoTransform>  6.0e+05,  2.5, 0.25,  5.1e+06, -0.125, -2.5</GeoTransform>"
    pam(path, srs * (says != "transform"), transform * (says != "system"))
    if world:
        (tmp_path / "x.tfw").write_text(WORLD)
    place = check(path).georeference
    assert says == "system" or place.transform == (2.5, 0.25, 6e5, -0.125, -2.5, 5.1e6)


def test_points_of_pam(tmp_path: Path) -> None:
    """They come before those of the TIFF, and count where there is no transform."""
    point = '<GCP Id="1" Pixel="1.5" Line="2.5" X="10" Y="45" Z="3"/>'
    for own in ({}, {"points": True}):
        path = scene(tmp_path / "x.tif", **own)
        pam(path, f'<GCPList Projection="EPSG:4258">{point}{point.replace("1.5", "9")}</GCPList>')
        place = check(path).georeference
        assert (place.gcps_crs, [p.col for p in place.gcps], place.gcps[0].z) == ("EPSG:4258", [1.5, 9], 3)
        assert place.crs is None
    path = scene(tmp_path / "x.tif", points=True)
    pam(path, f"<SRS>{WKT['code']}</SRS>")
    assert check(path).georeference.gcps_crs == "EPSG:32633"
    path = scene(tmp_path / "x.tif", points=True)
    pam(path, "<GeoTransform>1,2,3,4,5,7</GeoTransform>")
    place = read_raster(path).georeference
    assert (place.crs, place.transform, place.gcps) == ("EPSG:4326", (2, 3, 1, 5, 7, 4), ())


def test_nodata_of_pam(tmp_path: Path) -> None:
    """Comes before the TIFF's; other values for other bands are read by GDAL, each with its own."""
    value = int(PIXELS[0, 0, 0])
    parts = [
        f'<PAMRasterBand band="{band}"><NoDataValue>{value}.0E+00</NoDataValue></PAMRasterBand>' for band in (1, 2, 3)
    ]
    for own in ({}, {"nodata": 7}):
        path = scene(tmp_path / "x.tif", **own)
        pam(path, *parts)
        assert check(path).nodata == value
        pam(path, parts[1])
        check(path)


@pytest.mark.parametrize("root", ["PAMDataset", "Other"])
def test_pam_of_other_things_changes_nothing(tmp_path: Path, root: str) -> None:
    """Statistics, names of classes, metadata with XML of others in it, and XML that is no PAM."""
    path = scene(tmp_path / "x.tif", **UTM)
    plain = read_raster(path)
    inner = '<Metadata domain="xml:X"><![CDATA[<!DOCTYPE x>]]><SRS>no</SRS><GeoTransform>1</GeoTransform></Metadata>'
    band = '<PAMRasterBand band="1"><GeoTransform>1</GeoTransform><CategoryNames><Category>a</Category></CategoryNames>'
    wrong = "<GeoTransform>1</GeoTransform>" if root == "Other" else ""
    pam(path, "<!-- a note -->", inner, band, "</PAMRasterBand>", wrong, root=root)
    assert check(path).georeference == plain.georeference


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><PAMDataset><SRS>&b;</SRS></PAMDataset>'
WRONG_PAMS = {
    "empty": ("", r"is damaged XML \(no element found"),
    "cut off": ("<PAMDataset><SRS>", "is damaged XML"),
    "an entity": ("<PAMDataset><SRS>&a;</SRS></PAMDataset>", r"is damaged XML \(undefined entity"),
    "an encoding": ('<?xml version="1.0" encoding="none-such"?><PAMDataset/>', "is damaged XML"),
    "entities": (BOMB, "has a document type, which is refused"),
    "a file": ('<!DOCTYPE x SYSTEM "file:///etc/passwd"><PAMDataset/>', "has a document type"),
    "five numbers": ("<PAMDataset><GeoTransform>1,2,3,4,5</GeoTransform></PAMDataset>", "5', which must be six"),
    "no numbers": ("<PAMDataset><GeoTransform>1,2,3,4,5,a</GeoTransform></PAMDataset>", "has the transform"),
    "no number": ("<PAMDataset><GeoTransform>1,2,3,4,5,nan</GeoTransform></PAMDataset>", "nan', which must be finite"),
    "no system": ("<PAMDataset><SRS>+init=/etc/passwd:x</SRS></PAMDataset>", r"which must be WKT or EPSG:n"),
    "no point": ('<PAMDataset><GCPList><GCP Line="a"/></GCPList></PAMDataset>', "has a ground control point"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_PAMS)
def test_a_wrong_pam_is_an_error(tmp_path: Path, case: str) -> None:
    """That names it, and says that the raster can be read without."""
    path = scene(tmp_path / "x.tif", **UTM)
    text, says = WRONG_PAMS[case]
    (tmp_path / "x.tif.aux.xml").write_text(text)
    check_refused(path, rf"x\.tif\.aux\.xml, GDAL's metadata file of x\.tif, .*{says}")


def test_a_pam_that_is_larger_than_any(tmp_path: Path) -> None:
    """Is not read."""
    path = scene(tmp_path / "x.tif")
    with (tmp_path / "x.tif.aux.xml").open("wb") as file:
        file.truncate(2**26 + 1)
    with pytest.raises(InputError, match="has 64 MiB, at most 64 are read"):
        read_raster(path)


def test_what_pam_says_is_written_again(tmp_path: Path) -> None:
    """A result that lies where its input lies has it in its own tags, for rasterio too."""
    path = scene(tmp_path / "x.tif", **UTM)
    pam(path, f"<SRS>{WKT['code']}</SRS>", "<GeoTransform>6e5,2.5,0.25,5.1e6,-0.125,-2.5</GeoTransform>")
    write_geotiff(tmp_path / "y.tif", PIXELS, georeference=read_raster(path).georeference)
    with rasterio.open(path) as there, rasterio.open(tmp_path / "y.tif") as here:
        assert (here.crs, here.transform) == (there.crs, there.transform)
