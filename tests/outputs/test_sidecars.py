"""What lies beside a GeoTIFF: names of classes for GDAL and QGIS, and nothing of an older file."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import rasterio
from on_disk import CLASSES, PALETTE, stored

from vllm_mmout.errors import SaveError
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.outputs.formats.geotiff import remove_saved
from vllm_mmout.outputs.stored import StoredRaster

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

IDS = np.random.default_rng(0).integers(0, 3, (1, 700, 600)).astype("uint8")
IDS[:, :40] = 255
NAMES = ["land & <sea>", "wäter", "ice"]
STALE = (".aux.xml", ".ovr", ".msk")


def in_memory(folder: Path, **known: Any) -> RasterOutput:
    """A raster in memory; the folder is for others."""
    del folder
    return RasterOutput(IDS, **known)


def on_disk(folder: Path, **known: Any) -> RasterOutput:
    """A raster on disk, beside the folder where results are saved."""
    other = folder.with_name(folder.name + "-spool")
    other.mkdir(exist_ok=True)
    return stored(IDS, other, **known)


MAKERS = pytest.mark.parametrize("make", [in_memory, on_disk])


@pytest.fixture
def gdalinfo() -> Callable[[Path], dict[str, Any]]:
    """What GDAL's own program says of a file."""
    program = shutil.which("gdalinfo")
    if program is None:
        pytest.skip("gdalinfo is not on PATH; install gdal-bin")

    def ask(path: Path) -> dict[str, Any]:
        run = subprocess.run([program, "-json", path], capture_output=True, text=True, check=True, timeout=60)
        assert run.stderr == ""
        answer: dict[str, Any] = json.loads(run.stdout)
        return answer

    return ask


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.heavy
@MAKERS
def test_gdalinfo_shows_all_that_is_known(
    tmp_path: Path, gdalinfo: Callable[[Path], dict[str, Any]], make: Callable[..., RasterOutput]
) -> None:
    """Colours, names, nodata, statistics, date, overviews and place are what QGIS reads too."""
    known = {**CLASSES, "class_names": NAMES, "metadata": {"TIFFTAG_DATETIME": "2024:05:01 10:11:12", "SENSOR": "MSI"}}
    said = gdalinfo(make(tmp_path, **known).save(tmp_path / "a.tif"))
    (band,) = said["bands"]
    assert band["categories"] == NAMES
    assert [entry[:3] for entry in band["colorTable"]["entries"][:3]] == PALETTE.tolist()
    assert (band["noDataValue"], band["type"], band["colorInterpretation"]) == (255, "Byte", "Palette")
    assert band["overviews"] == [{"size": [300, 350]}]
    items = band["metadata"][""]
    seen = IDS[IDS != 255].astype(float)
    assert [items[f"CLASS_{number}"] for number in range(3)] == NAMES
    assert float(items["STATISTICS_MEAN"]) == pytest.approx(seen.mean(), rel=1e-6)
    assert float(items["STATISTICS_STDDEV"]) == pytest.approx(seen.std(), rel=1e-6)
    assert (items["STATISTICS_MINIMUM"], items["STATISTICS_MAXIMUM"]) == ("0", "2")
    assert (band["minimum"], band["maximum"]) == (0, 2)
    assert items["STATISTICS_VALID_PERCENT"] == f"{100 * seen.size / IDS.size:.4g}"
    assert said["metadata"][""]["TIFFTAG_DATETIME"] == "2024:05:01 10:11:12"
    assert "32614" in said["coordinateSystem"]["wkt"]


def test_gdal_computes_the_same_statistics(tmp_path: Path) -> None:
    """What stands in the file is, digit for digit to 1e-6, what GDAL finds where it looks for itself."""
    array = np.random.default_rng(1).normal(size=(2, 600, 700)).astype("float32")
    array[:, :100] = np.nan
    path = RasterOutput(array, nodata=-1.0).save(tmp_path / "a.tif")
    with rasterio.open(path) as file:
        ours = [file.tags(band) for band in file.indexes]
        data, profile = file.read(), file.profile
    with rasterio.open(tmp_path / "b.tif", "w", **profile) as file:
        file.write(data)
    with rasterio.open(tmp_path / "b.tif", "r+") as file:
        file.update_stats()
        theirs = [file.tags(band) for band in file.indexes]
    for mine, others in zip(ours, theirs, strict=True):
        assert mine.keys() == others.keys()
        assert mine["STATISTICS_VALID_PERCENT"] == others["STATISTICS_VALID_PERCENT"]
        for name in mine:
            assert float(mine[name]) == pytest.approx(float(others[name]), rel=1e-6)


@MAKERS
@pytest.mark.parametrize("class_names", [None, NAMES])
def test_what_belonged_to_an_older_file_goes(
    tmp_path: Path, make: Callable[..., RasterOutput], class_names: list[str] | None
) -> None:
    """Statistics, overviews and a mask of an older file of that name are not taken for those of the new one."""
    for suffix in ("", *STALE):
        (tmp_path / f"a.tif{suffix}").write_bytes(b"older")
    path = make(tmp_path, class_names=class_names).save(tmp_path / "a.tif")
    assert names_in(tmp_path) == (["a.tif"] if class_names is None else ["a.qml", "a.tif", "a.tif.aux.xml"])
    with rasterio.open(path) as file:
        np.testing.assert_array_equal(file.read(), IDS)
        assert file.overviews(1) == [2]


@MAKERS
def test_other_formats_touch_no_sidecar(tmp_path: Path, make: Callable[..., RasterOutput]) -> None:
    """A picture has none, and leaves those of others."""
    (tmp_path / "a.png.aux.xml").write_bytes(b"other")
    make(tmp_path, **CLASSES).save(tmp_path / "a.png")
    assert names_in(tmp_path) == ["a.png", "a.png.aux.xml"]


@MAKERS
@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize("failing", ["a.tif", "a.tif.aux.xml", "a.qml"])
def test_a_sidecar_that_cannot_be_written_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., RasterOutput],
    older: bool,  # noqa: FBT001 - a parameter
    links: bool,  # noqa: FBT001 - a parameter
    failing: str,
) -> None:
    """After an error at either name the older files are there, all of them, and no other."""
    names = [f"a.tif{suffix}" for suffix in ("", *STALE)] if older else []
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    raster, replace = make(tmp_path, **CLASSES), os.replace

    def refusing(source: Path, target: Path) -> None:
        if Path(target).name == failing and Path(source).name.endswith(".part"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    def no_link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refusing)
        if not links:
            patch.setattr(os, "link", no_link)
        with pytest.raises(SaveError, match=r"cannot write .*a\.tif: No space left on device"):
            raster.save(tmp_path / "a.tif")
    assert names_in(tmp_path) == sorted(names)
    assert all((tmp_path / name).read_bytes() == name.encode() for name in names)
    raster.save(tmp_path / "a.tif")
    assert names_in(tmp_path) == ["a.qml", "a.tif", "a.tif.aux.xml"]
    np.testing.assert_array_equal(raster.array, IDS)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_two_may_save_under_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """A sidecar that another writer takes away or puts there meanwhile is no error, and no hidden file stays."""
    path = RasterOutput(IDS, class_names=["older"]).save(tmp_path / "a.tif")
    sidecar, replace = tmp_path / "a.tif.aux.xml", os.replace

    def meddling(source: Path, target: Path) -> None:
        if source != sidecar:
            replace(source, target)
        elif moment == "before":
            sidecar.unlink()
            replace(source, target)
        else:
            replace(source, target)
            sidecar.write_bytes(b"other")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", meddling)
        RasterOutput(IDS, class_names=NAMES).save(path)
    assert names_in(tmp_path) == ["a.qml", "a.tif", "a.tif.aux.xml"]
    assert f"<Category>{NAMES[2]}<" in sidecar.read_text()


def test_a_folder_in_the_place_of_a_sidecar_is_an_error(tmp_path: Path) -> None:
    """It stays, and the older file too."""
    (tmp_path / "a.tif.aux.xml").mkdir()
    (tmp_path / "a.tif").write_bytes(b"older")
    with pytest.raises(SaveError, match=r"cannot write .*a\.tif: Is a directory"):
        RasterOutput(IDS, **CLASSES).save(tmp_path / "a.tif")
    assert names_in(tmp_path) == ["a.tif", "a.tif.aux.xml"]
    assert (tmp_path / "a.tif").read_bytes() == b"older"


@pytest.mark.parametrize("suffix", [".tif", ".TIFF", ".png"])
def test_a_saved_file_is_removed_with_its_sidecar(tmp_path: Path, suffix: str) -> None:
    """What save wrote is gone; a second time there is nothing to do."""
    path = RasterOutput(IDS, **CLASSES).save(tmp_path / f"a{suffix}")
    (tmp_path / "other").touch()
    remove_saved(str(path))
    remove_saved(path)
    assert names_in(tmp_path) == ["other"]


def test_what_lies_beside_its_own_file_stays(tmp_path: Path) -> None:
    """A raster that is saved over the file it is read from changes neither that nor the files that belong to it."""
    path = RasterOutput(IDS, class_names=NAMES).save(tmp_path / "own.tif")
    (tmp_path / "own.tif.ovr").write_bytes(b"overviews that somebody made")
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert set(before) == {"own.qml", "own.tif", "own.tif.aux.xml", "own.tif.ovr"}
    assert StoredRaster(path).save(path) == path
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_the_message_of_a_full_disk_names_the_file_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is called as the user called it, not by the name of a temporary file."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("vllm_mmout.geo.raster.writing.PixelsFile.save", full)
    with pytest.raises(SaveError) as caught:
        RasterOutput(IDS).save(tmp_path / "asked.tif")
    assert str(caught.value) == f"cannot write {tmp_path / 'asked.tif'}: No space left on device"
    assert not list(tmp_path.iterdir())


def entries(style: Path) -> list[dict[str, str]]:
    """The classes of a QGIS style: value, colour and label."""
    return [dict(entry.attrib) for entry in ET.parse(style).iter("paletteEntry")]  # noqa: S314 - ours


@MAKERS
def test_a_style_for_qgis_has_the_classes_alone(tmp_path: Path, make: Callable[..., RasterOutput]) -> None:
    """QGIS finds it by its name; the colour table of the GeoTIFF has 256 entries instead."""
    make(tmp_path, class_names=NAMES, palette=PALETTE).save(tmp_path / "a.tif")
    colours = ["#" + bytes(colour).hex() for colour in PALETTE.tolist()]
    assert entries(tmp_path / "a.qml") == [
        {"value": str(number), "color": colours[number], "alpha": "255", "label": NAMES[number]} for number in range(3)
    ]


@pytest.mark.parametrize(
    ("known", "labels"),
    [
        ({"class_names": NAMES}, NAMES),
        ({"palette": PALETTE}, ["0", "1", "2"]),
        ({"class_names": [*NAMES, "bog"], "palette": PALETTE}, [*NAMES, "bog"]),
    ],
    ids=["names", "colours", "more names"],
)
def test_a_style_has_a_label_and_a_colour_for_each_class(
    tmp_path: Path, known: dict[str, Any], labels: list[str]
) -> None:
    """Also of 16 bits, which have no colour table; what is unknown is the number, or the usual colour."""
    RasterOutput(IDS.astype("uint16"), **known).save(tmp_path / "a.b.tif")
    classes = entries(tmp_path / "a.b.qml")
    assert [entry["label"] for entry in classes] == labels
    assert len({entry["color"] for entry in classes}) == len(labels)


def test_rasters_that_are_not_classes_have_no_style(tmp_path: Path) -> None:
    """A style of this package goes, since it was that of an older raster."""
    RasterOutput(IDS, **CLASSES).save(tmp_path / "a.tif")
    RasterOutput(IDS.astype("float32"), class_names=NAMES).save(tmp_path / "a.tif")
    assert names_in(tmp_path) == ["a.tif", "a.tif.aux.xml"]
    RasterOutput(IDS.repeat(3, 0), palette=PALETTE).save(tmp_path / "a.tif")
    assert names_in(tmp_path) == ["a.tif"]


def test_a_style_that_a_user_saved_in_qgis_stays(tmp_path: Path) -> None:
    """It is neither replaced nor removed."""
    style = tmp_path / "a.qml"
    style.write_text("<qgis><!-- mine --></qgis>")
    remove_saved(RasterOutput(IDS, **CLASSES).save(tmp_path / "a.tif"))
    assert names_in(tmp_path) == ["a.qml"]
    assert "mine" in style.read_text()
