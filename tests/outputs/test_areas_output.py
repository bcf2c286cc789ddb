"""AreasOutput: the table of what classes cover."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

pytest.importorskip("pydantic", reason="pydantic comes with the engine")

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Georeference
from vllm_mmout.geo.raster.areas import pixel_areas
from vllm_mmout.outputs import AreasOutput, RasterOutput, Source
from vllm_mmout.outputs.stored import StoredRaster

NAMES = ("land", "water, deep", "ice")
CLASSES = np.random.default_rng(6).choice([0, 1, 4, 255], (700, 40), p=[0.5, 0.3, 0.1, 0.1]).astype(np.uint8)
UTM = Georeference(crs="EPSG:32614", transform=(10.0, 0.0, 0.0, 0.0, -10.0, 0.0))
DEGREES = Georeference(crs="EPSG:4326", transform=(0.1, 0.0, 0.0, 0.0, -0.1, 60.0))


def raster(georeference=UTM, classes=CLASSES, **known):
    """Classes with gaps."""
    return RasterOutput(classes[None], **{"nodata": 255, "georeference": georeference, "class_names": NAMES, **known})


@pytest.mark.parametrize("georeference", [UTM, DEGREES, None], ids=["map", "degrees", "nowhere"])
def test_each_class_has_its_pixels_and_its_area(georeference):
    """Those with a name, and those that occur; gaps count nowhere."""
    areas = AreasOutput.of(raster(georeference))
    assert [(one.id, one.name) for one in areas.classes] == [*enumerate(NAMES), (4, None)]
    rows = pixel_areas(georeference, len(CLASSES))
    for one in areas.classes:
        there = one.id == CLASSES
        assert one.pixels == there.sum()
        assert one.share == pytest.approx(there.sum() / (CLASSES != 255).sum())
        expected = None if rows is None else pytest.approx((there * rows[:, np.newaxis]).sum(), rel=1e-12)
        assert one.area_m2 == expected
    assert areas["ice"].pixels == areas[2].pixels == 0
    assert areas["water, deep"] is areas.classes[1]
    with pytest.raises(KeyError):
        areas["snow"]


def test_classes_of_one_name_stay_apart():
    """Classes above 255 that share a name are counted each, and the name alone does not choose one."""
    wide = CLASSES.astype(np.uint16) + 256
    areas = AreasOutput.of(raster(classes=wide, nodata=None, class_names=("other",) * 512))
    assert [areas[number].pixels for number in (256, 257, 260)] == [(number == CLASSES).sum() for number in (0, 1, 4)]
    with pytest.raises(KeyError, match=r"names the classes 0, 1, 2.*take one by its id"):
        areas["other"]


def test_wide_numbers_are_counted():
    """uint16, with and without nodata and names."""
    wide = CLASSES.astype(np.uint16) * 257
    areas = AreasOutput.of(raster(classes=wide, nodata=None, class_names=None))
    assert [(one.id, one.pixels) for one in areas.classes] == [
        (int(number), int(count)) for number, count in zip(*np.unique(wide, return_counts=True), strict=True)
    ]
    assert sum(one.share for one in areas.classes) == pytest.approx(1)


def test_files_hold_the_table(tmp_path):
    """As CSV, which is the usual one, and as JSON."""
    areas = AreasOutput.of(raster())
    with areas.save(tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [*NAMES, ""]
    assert [float(row["area_m2"]) for row in rows] == [one.area_m2 for one in areas.classes]
    assert [int(row["pixels"]) for row in rows] == [one.pixels for one in areas.classes]
    assert json.loads(areas.save(tmp_path / "out.json").read_text()) == areas.model_dump()
    assert areas.to_bytes().startswith(b"id,name,pixels,share,area_m2,nodata_pixels,nodata_m2\n")
    assert next(iter(areas.formats)) == ".csv"


def test_no_name_is_a_formula():
    """A text that a spreadsheet would run begins with an apostrophe and is quoted, as OWASP advises."""
    names = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "land; water", 'a "b"']
    ids = np.arange(len(names), dtype=np.uint8)[None, None]
    areas = AreasOutput.of(RasterOutput(ids, class_names=names))
    lines = areas.to_bytes("csv").decode().splitlines()
    assert lines[1].startswith("""0,"'=cmd|' /C calc'!A0",1,""")
    rows = list(csv.DictReader(lines))
    assert [row["name"] for row in rows] == [*(f"'{name}" for name in names[:5]), *names[5:]]
    assert [row["id"] for row in rows] == list("0123456")


def test_a_place_comes_with_the_input():
    """Counted again without what the input does not show, in its place; the pixels are not kept after that."""
    valid = np.random.default_rng(7).random(CLASSES.shape) < 0.5
    areas = AreasOutput.taking(raster(None)).placed(Source(georeference=DEGREES, valid=valid))
    expected = AreasOutput.of(raster(DEGREES, np.where(valid, CLASSES, 255).astype(np.uint8)))
    assert areas == expected
    assert areas._raster is None


def test_a_picture_shows_what_occurs():
    """Drawn over the input, where it has a picture."""
    from PIL import Image

    source = Source(size=CLASSES.shape, picture=lambda: Image.new("RGB", CLASSES.shape[::-1]))
    areas = AreasOutput.taking(raster(None)).placed(source)
    assert Image.open(io.BytesIO(areas.to_bytes("png"))).getbbox() is not None


def test_colours_are_those_of_the_raster():
    """Also when the table was laid on its input; classes beyond the palette have those of the default one."""
    palette = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.uint8)
    for areas in (
        AreasOutput.of(raster(palette=palette)),
        AreasOutput.taking(raster(palette=palette)).placed(Source(size=CLASSES.shape, georeference=UTM)),
    ):
        assert [areas.colour_of(number) for number in range(3)] == [(1, 2, 3), (4, 5, 6), (7, 8, 9)]
        assert areas.colour_of(4) == AreasOutput.of(raster()).colour_of(4)


def test_a_raster_on_disk_is_counted_and_closed(tmp_path):
    """Where nothing else is wanted of it."""
    path = raster().save(tmp_path / "classes.tif")
    known = {"nodata": 255, "georeference": UTM, "class_names": NAMES}
    assert AreasOutput.of(StoredRaster(path, **known)) == AreasOutput.of(raster())
    stored = StoredRaster(path, owned=True, **known)
    assert AreasOutput.taking(stored) == AreasOutput.of(raster())
    assert not path.exists()


def test_only_classes_are_counted():
    """Measurements are refused."""
    with pytest.raises(InputError, match="one band of classes"):
        AreasOutput.of(RasterOutput(np.zeros((1, 4, 4), np.float32)))


def test_nothing_covers_nothing():
    """A raster of nodata alone has no shares."""
    areas = AreasOutput.of(raster(classes=np.full((3, 3), 255, np.uint8)))
    assert {(one.pixels, one.share, one.area_m2) for one in areas.classes} == {(0, 0.0, 0.0)}


def test_a_nodata_that_is_no_class_takes_none_away():
    """As for polygons: 1.5 is not the class 1."""
    areas = AreasOutput.of(raster(nodata=1.5))
    assert areas[1].pixels == (CLASSES == 1).sum()
    assert areas[255].pixels == (CLASSES == 255).sum()


def test_counting_takes_little_memory():
    """Less than the rows that are read at once, whatever the width."""
    import tracemalloc

    wide = raster(classes=np.zeros((512, 40_000), np.uint8))
    tracemalloc.start()
    try:
        AreasOutput.of(wide)
        assert tracemalloc.get_traced_memory()[1] < wide.array.nbytes
    finally:
        tracemalloc.stop()
