"""Coordinate systems that name a file: a pipe that nobody writes to, which holds up whoever opens it.

Each is tried in a process of its own, since PROJ would hold all threads of this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import BytesIO

import numpy as np
import pytest
import tifffile
from gdal_files import UTM, jp2
from pyproj import CRS

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.opened import open_raster, read_raster

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")

PIPE = "./pipe"
LIKE_A_CODE = "pipe:4326"
"""What GDAL, which knows no such authority, looks for among the files."""
GEOGCS = (
    'GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563]DATUM],PRIMEM["Greenwich",0],'
    'UNIT["degree",0.0174532925199433]MORE]'
)
PROJCS = (
    f'PROJCS["m",{GEOGCS.replace("DATUM]", "]").replace("MORE", "")},PROJECTION["METHOD"],'
    'PARAMETER["central_meridian",0],PARAMETER["scale_factor",1],UNIT["metre",1]MORE]'
)
DERIVED = (
    'GEOGCRS["x",BASEGEOGCRS["WGS 84",DATUM["World Geodetic System 1984",ELLIPSOID["WGS 84",6378137,298.257223563]]],'
    'DERIVINGCONVERSION["unnamed",METHOD["METHOD"],PARAMETER["o_lon_p",0]MORE],CS[ellipsoidal,2],'
    'AXIS["longitude",east],AXIS["latitude",north],ANGLEUNIT["degree",0.0174532925199433]REMARK]'
)


def of(form, **parts):
    """A form with its open places filled."""
    for place in ("DATUM]", "METHOD", "MORE", "REMARK"):
        name = place.rstrip("]")
        filled = parts.get(name.lower(), "") + place.removeprefix(name)
        form = form.replace(f'"{place}"', f'"{filled}"') if name == "METHOD" else form.replace(place, filled)
    return form


def projjson(**changes):
    """UTM zone 32 in PROJJSON, with changes of its conversion or of itself."""
    system = CRS.from_epsg(32632).to_json_dict()
    for key, value in changes.items():
        (system["conversion"] if key in ("method", "parameters") else system)[key] = value
    return json.dumps(system)


SHIFTED = CRS.from_user_input(f"+proj=longlat +ellps=bessel +nadgrids={PIPE}")
SHIFT_FILE = "Latitude and longitude difference file"
TEXTS = {
    "init": f"+init={PIPE}:x",
    "init without a plus": f"init={PIPE}:x",
    "init behind spaces": f" \t +init={PIPE}:x",
    "init after a code": f"EPSG:4326 +init={PIPE}:x",
    "init after a URN": f"urn:ogc:def:crs: init={PIPE}:x",
    "init after an address": f"http://www.opengis.net/def/crs/EPSG/0/ init={PIPE}:x",
    "init after a title": f"+title=x +init={PIPE}:x",
    "init with spaces": f"+init = {PIPE}:x",
    "nadgrids": f"+proj=longlat +ellps=bessel +nadgrids={PIPE}",
    "nadgrids that may be missing": f"+proj=longlat +ellps=bessel +nadgrids=@{PIPE}",
    "nadgrids twice": f"+proj=longlat +ellps=bessel +nadgrids=@null +nadgrids={PIPE}",
    "geoidgrids": f"+proj=longlat +datum=WGS84 +geoidgrids={PIPE} +vunits=m",
    "a grid shift": f"+proj=hgridshift +grids={PIPE}",
    "a pipeline": f"+proj=pipeline +step +proj=hgridshift +grids={PIPE}",
    "triangles": f"+proj=tinshift +file={PIPE}",
    "WKT with init": of(PROJCS, method="Mercator_1SP", more=f',EXTENSION["PROJ4","+init={PIPE}:x"]'),
    "WKT with nadgrids": of(
        PROJCS, method="Mercator_1SP", more=f',EXTENSION["PROJ4","+proj=merc +ellps=bessel +nadgrids={PIPE}"]'
    ),
    "WKT of a datum with grids": of(GEOGCS, datum=f',EXTENSION["PROJ4_GRIDS","{PIPE}"]'),
    "WKT with init of a geographic system": of(GEOGCS, more=f',EXTENSION["PROJ4","+init={PIPE}:x"]'),
    "WKT in small letters": of(GEOGCS, more=f',extension["PROJ4","+init={PIPE}:x"]').replace("GEOGCS", "geogcs"),
    "a method of PROJ": of(DERIVED, method=f"PROJ hgridshift grids={PIPE}"),
    "a method of PROJ and its parameter": of(DERIVED, method="PROJ hgridshift", more=f',PARAMETER["grids={PIPE}",0]'),
    "a method that is an operation": of(DERIVED, method=f"PROJ-based operation method: +init={PIPE}:x"),
    "a file as a parameter": of(DERIVED, method="NTv2", more=f',PARAMETERFILE["{SHIFT_FILE}","{PIPE}"]'),
    "a remark": of(DERIVED, method="PROJ ob_tran o_proj=longlat", remark=f',REMARK["PROJ CRS string: +init={PIPE}:x"]'),
    "a bound system": SHIFTED.to_wkt(),
    "a bound system in JSON": SHIFTED.to_json(),
    "PROJ parameters in JSON": json.dumps({"proj": "longlat", "ellps": "bessel", "nadgrids": PIPE}),
    "init in JSON": json.dumps({"init": f"{PIPE}:x"}),
    "init in PROJJSON": projjson(init=f"{PIPE}:x"),
    "PROJ parameters in PROJJSON": projjson(proj="longlat", ellps="bessel", nadgrids=PIPE),
    "a method in PROJJSON": projjson(method={"name": f"PROJ hgridshift grids={PIPE}"}),
    "a file in PROJJSON": projjson(method={"name": "NTv2"}, parameters=[{"name": SHIFT_FILE, "value": PIPE}]),
    "a key twice": projjson().replace('"type": "ProjectedCRS"', f'"type": "ProjectedCRS", "init": "{PIPE}:x"', 1),
    "a path": PIPE,
    "a path like a code": LIKE_A_CODE,
    "a URL": "http://localhost:9/def/crs",
}
"""Most of them make PROJ open the pipe when pyproj has them; of the others nobody says that they never will."""
LONGEST = 2200
"""Characters that a GeoTIFF has room for."""
SCRIPT = """
import json, sys
from vllm_mmout.errors import MMOutError
from vllm_mmout.outputs.formats import FORMATS
from vllm_mmout.geo import Georeference, open_raster
from vllm_mmout.geo.raster.areas import pixel_areas
from vllm_mmout.geo.raster.bounding_box import window_of_box

PLACE = (10.0, 0.0, 5e5, 0.0, -10.0, 5e6)


def check_writable(place):
    for name in ("geoparquet", "flatgeobuf"):
        FORMATS[name].check_place(place, ".tif")


def said(function, *arguments):
    try:
        function(*arguments)
    except MMOutError as error:
        return [type(error).__name__, error.param, str(error)]
    return None


def tried(text):
    utm, odd = Georeference("EPSG:32632", PLACE), Georeference(text, PLACE)
    box = (8.9, 44.9, 9.1, 45.2)
    return {
        "box": said(window_of_box, box, text, utm, (40, 50), "scene.tif"),
        "raster": said(window_of_box, box, "EPSG:4326", odd, (40, 50), "scene.tif"),
        "parquet": said(check_writable, odd),
        "areas": pixel_areas(odd, 40) is None,
    }


def opened(path):
    def read():
        with open(path, "rb") as file, open_raster(file) as raster:
            place = raster.georeference
            return raster.read() and pixel_areas(place, 40), check_writable(place)
    return said(read)


for line in sys.stdin:
    name, text = json.loads(line)
    print(json.dumps([name, opened(text) if name.startswith("file ") else tried(text)]), flush=True)
"""


def answers(folder, texts):
    """What a process says of each text; one that a pipe holds up is ended, and says nothing more."""
    for pipe in (folder / PIPE, folder / LIKE_A_CODE, folder / "4326"):
        if not pipe.exists():
            os.mkfifo(pipe)
    lines = "".join(json.dumps([name, text]) + "\n" for name, text in texts.items())
    try:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], input=lines, capture_output=True, text=True, cwd=folder, timeout=120,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return dict(map(json.loads, (error.stdout or b"").decode().splitlines()))
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """What is said of all texts."""
    return answers(tmp_path_factory.mktemp("texts"), TEXTS)


@pytest.mark.parametrize("name", TEXTS)
def test_no_text_opens_a_file(name, tried):
    """It is refused with what is wrong and what to give, wherever it stands, and as a raster's it gives no areas."""
    assert name in tried, "held up"
    found = tried[name]
    kind, param, says = found["box"]
    assert (kind, param) == ("OptionError", "bbox_crs")
    assert "is refused as a coordinate system" in says
    assert 'give "EPSG:n"' in says
    kind, param, says = found["raster"]
    assert (kind, param) == ("InputError", "bbox_crs")
    assert "scene.tif has a coordinate system that cannot be used" in says
    assert found["parquet"][0] == "SaveError"
    assert found["areas"] is True


@pytest.mark.heavy
def test_a_number_is_a_code_and_no_file(tmp_path):
    """GDAL would open the file that is called so."""
    found = answers(tmp_path, {"a number": "4326", "an address": "http://www.opengis.net/def/crs/EPSG/0/4326"})
    refused = {name: said["box"] and said["box"][0] for name, said in found.items()}
    assert refused == {"a number": None, "an address": None}


@pytest.mark.heavy
def test_a_geotiff_that_names_a_file(tmp_path):
    """Its pixels are read; its areas are not known, and neither GeoParquet nor a GeoTIFF can say where it lies."""
    texts = {}
    for name, text in TEXTS.items():
        if len(text) > LONGEST:
            continue
        citation = f"ESRI PE String = {text}|"
        keys = (1, 1, 0, 3, 1024, 0, 1, 1, 3072, 0, 1, 32767, 3073, 34737, len(citation), 0)
        path = tmp_path / f"{len(texts)}.tif"
        tags = [(34735, "H", len(keys), keys, True), (34737, "s", 0, citation, True)]
        tags += [(33550, "d", 3, (10.0, 10.0, 0.0), True), (33922, "d", 6, (0.0, 0.0, 0.0, 5e5, 5e6, 0.0), True)]
        tifffile.imwrite(path, np.ones((40, 50), np.uint8), metadata=None, extratags=tags)
        place = read_raster(path).georeference
        assert place.crs == text.strip()
        with pytest.raises(InputError, match=r"is refused as a coordinate system: .* give .EPSG:n."):
            place.to_rasterio()
        texts[f"file {name}"] = str(path)
    found = answers(tmp_path, texts)
    assert {name for name in texts if name not in found} == set()
    assert {said[0] for said in found.values()} == {"SaveError"}
    assert len(found) > 25


GML = {
    "after a code": f"epsg:x +init={PIPE}:x",
    "after a URN": f"urn:ogc:def:crs: init={PIPE}:x",
    "as an entity": f"urn:ogc:def:crs:&#32;&#105;nit={PIPE}:x",
    "after an address": f"http://www.opengis.net/def/crs/EPSG/0/ init={PIPE}:x",
}


def with_gml(text):
    """A JPEG 2000 whose GML calls its coordinate system so."""
    data = jp2(np.ones((1, 64, 64), np.uint8), GeoJP2="NO", **UTM)
    at = data.index(b"asoc") - 4
    (size,) = (int.from_bytes(data[at : at + 4], "big"),)
    box = data[at : at + size]
    changed = box.replace(b"urn:ogc:def:crs:EPSG::32632", text.encode())
    assert changed != box
    return data[:at] + resized(changed, box) + data[at + size :]


def resized(changed, box):
    """A box whose contents were changed, with the sizes of those that it lies in."""
    more = len(changed) - len(box)
    changed, at = bytearray(changed), 0
    inner = box.index(b"<gml:")
    while at < inner:
        size, kind = int.from_bytes(box[at : at + 4], "big"), box[at + 4 : at + 8]
        holds = at + size > inner
        if holds:
            changed[at : at + 4] = (size + more).to_bytes(4, "big")
        at += 8 if holds and kind == b"asoc" else size
    return bytes(changed)


@pytest.mark.heavy
def test_jpeg_2000_that_names_a_file(tmp_path):
    """Is refused before GDAL reads its GML; one with a code is read."""
    texts = {}
    for name, text in GML.items():
        path = tmp_path / f"{len(texts)}.jp2"
        path.write_bytes(with_gml(text))
        texts[f"file {name}"] = str(path)
        with pytest.raises(InputError, match=r"GML in which a coordinate system is a PROJ string.*-a_srs EPSG:n"):
            open_raster(path)
    found = answers(tmp_path, texts)
    assert {name for name in texts if name not in found} == set()
    assert {said[0] for said in found.values()} == {"InputError"}
    with open_raster(BytesIO(with_gml("http://www.opengis.net/def/crs/EPSG/0/32633"))) as raster:
        assert raster.georeference.crs == "EPSG:32633"
