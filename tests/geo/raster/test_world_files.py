"""World files beside a TIFF: where it lies, as rasterio reads them, or an error that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from beside_tiffs import UTM, WORLD, check, check_refused, scene
from hypothesis import given
from hypothesis import strategies as st

from vllm_mmout.geo.raster.opened import read_raster

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


@pytest.mark.parametrize("name", ["x.tfw", "x.TFW", "x.tifw", "x.TIFW", "x.wld", "x.WLD"])
@pytest.mark.parametrize("own", [{}, {"crs": "EPSG:32632"}, {"points": True}], ids=str)
def test_a_world_file_says_where_a_tiff_lies(tmp_path: Path, name: str, own: dict[str, Any]) -> None:
    """Digit by digit as rasterio has it: of a TIFF without a transform, be there a system or control points."""
    path = scene(tmp_path / "x.tif", **own)
    (tmp_path / name).write_text(WORLD)
    place = check(path).georeference
    assert place.transform == (2.5, -0.125, 600000.75 - 1.25 + 0.0625, 0.25, -2.5, 5100000.5 - 0.125 + 1.25)
    assert place.crs == ("EPSG:4326" if "points" in own else own.get("crs"))


@pytest.mark.parametrize(
    ("tiff", "world", "read"),
    [
        ("X.TIF", "X.TFW", True),
        ("x.tiff", "x.tfw", True),
        ("x.tiff", "x.tiffw", True),
        ("x.dat", "x.dtw", True),
        ("x", "x.wld", True),
        ("a.b.tif", "a.b.tfw", True),
        ("x.t", "x.ttw", False),
        ("x.tif", "x.tif.tfw", False),
        ("x.tif", "y.tfw", False),
    ],
)
def test_the_name_of_a_world_file(tmp_path: Path, tiff: str, world: str, *, read: bool) -> None:
    """Is that of the raster, with a suffix made of its suffix."""
    path = scene(tmp_path / tiff)
    (tmp_path / world).write_text(WORLD)
    assert (check(path).georeference is not None) == read


@pytest.mark.parametrize(
    "text",
    [WORLD.replace(".", ","), WORLD.replace("\n", "\r\n"), "\n" + WORLD, WORLD + "more\n", "1e1 # x\n0\n0\n-1E1\n5\n6",
     "0\n1\n1\n0\n5\n5\n"],
    ids=["commas", "windows", "empty line", "more lines", "words behind", "turned"],
)  # fmt: skip
def test_the_writing_of_a_world_file(tmp_path: Path, text: str) -> None:
    """Numbers are understood as rasterio understands them."""
    (tmp_path / "x.tfw").write_text(text)
    assert check(scene(tmp_path / "x.tif")).georeference is not None


@given(st.lists(st.floats(-1e6, 1e6, allow_subnormal=False).filter(bool), min_size=6, max_size=6))
def test_any_world_file_is_rasterios(tmp_path_factory: pytest.TempPathFactory, numbers: list[float]) -> None:
    """All its digits count."""
    a, d, b, e, _, _ = numbers
    folder = tmp_path_factory.mktemp("world")
    path = scene(folder / "x.tif")
    (folder / "x.tfw").write_text("\n".join(map(repr, numbers)))
    if a * e != b * d:
        check(path)


def test_what_a_tiff_says_itself_comes_before_a_world_file(tmp_path: Path) -> None:
    """Which is not even looked at."""
    path = scene(tmp_path / "x.tif", **UTM)
    (tmp_path / "x.tfw").write_text("nonsense")
    (tmp_path / "x.tfw").chmod(0)
    assert read_raster(path).georeference.transform == tuple(UTM["transform"])[:6]


def test_the_first_of_several_world_files_counts(tmp_path: Path) -> None:
    """The short suffix, then the long one, then .wld."""
    path = scene(tmp_path / "x.tif")
    for name, side in (("x.wld", 1), ("x.tifw", 2), ("x.tfw", 3)):
        (tmp_path / name).write_text(f"{side}\n0\n0\n-{side}\n5\n6\n")
        assert check(path).georeference.transform[0] == side


WRONG_WORLDS = {
    "": r"must hold six lines of one number, but begins with ''",
    "1\n2\n3\n4\n5\n": "begins with",
    "1 2 3 4 5 6": "begins with",
    "a\n2\n3\n4\n5\n6\n": r"begins with 'a\\n2",
    "0\n0\n0\n0\n5\n6\n": "in which pixels have no area",
    "1\n0\n0\nnan\n5\n6\n": "in which pixels have no area",
    "1\n0\n0\ninf\n5\n6\n": "in which pixels have no area",
    "\0" * 5000: "begins with",
}


@pytest.mark.parametrize("text", WRONG_WORLDS)
def test_a_wrong_world_file_is_an_error(tmp_path: Path, text: str) -> None:
    """That names it, and says that the raster can be read without."""
    path = scene(tmp_path / "x.tif")
    (tmp_path / "x.tfw").write_text(text)
    check_refused(path, rf"x\.tfw, the world file of x\.tif, .*{WRONG_WORLDS[text]}")
