"""World files, PAM and masks beside pictures, as rasterio reads them beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from beside_tiffs import PIXELS, SIZE, WKT, WORLD, check, check_refused, mask, pam
from files_open import open_below
from gdal_files import jp2
from PIL import Image

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.files import FileWithNeighbours, neighbours_of
from vllm_mmout.geo.raster.opened import open_raster, read_raster
from vllm_mmout.geo.raster.orientation_and_palette import as_seen

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

TRANSFORM = (2.5, -0.125, 600000.75 - 1.25 + 0.0625, 0.25, -2.5, 5100000.5 - 0.125 + 1.25)


def picture(path: Path, **options: object) -> Path:
    Image.fromarray(np.moveaxis(PIXELS, 0, -1)).save(path, **options)
    return path


@pytest.mark.parametrize(
    ("name", "world"),
    [("x.png", "x.pgw"), ("x.png", "x.PNGW"), ("x.jpg", "x.jgw"), ("x.jpeg", "x.jpegw"), ("x.jpg", "x.JPGW"),
     ("x.bmp", "x.bpw"), ("x.bmp", "x.wld"), ("x.png", "y.pgw")],
)  # fmt: skip
def test_a_world_file_says_where_a_picture_lies(tmp_path: Path, name: str, world: str) -> None:
    """A PNG, JPEG or BMP has the transform of the world file beside it, as rasterio has it."""
    path = picture(tmp_path / name)
    (tmp_path / world).write_text(WORLD)
    place = check(path).georeference
    assert (None if place is None else place.transform) == (TRANSFORM if world[0] == "x" else None)


@pytest.mark.parametrize("name", ["x.png", "x.bmp", "x.jpg"])
@pytest.mark.parametrize("world", [False, True])
def test_pam_says_where_a_picture_lies_and_its_nodata(tmp_path: Path, name: str, *, world: bool) -> None:
    """GDAL's .aux.xml gives system, transform and nodata; a world file goes before it, but of a JPEG."""
    path = tmp_path / name
    Image.new("RGB", SIZE[::-1], (7, 7, 7)).save(path)
    if world:
        (tmp_path / f"x.{name[2]}{name[4]}w").write_text(WORLD)
    nodata = "".join(f'<PAMRasterBand band="{n}"><NoDataValue>7</NoDataValue></PAMRasterBand>' for n in (1, 2, 3))
    pam(path, f"<SRS>{WKT['code']}</SRS>", "<GeoTransform>5e5,10,0,5e6,0,-10</GeoTransform>", nodata)
    raster = check(path)
    assert raster.georeference.crs == "EPSG:32633"
    of_pam = (10, 0, 5e5, 0, -10, 5e6)
    assert raster.georeference.transform == (TRANSFORM if world and name != "x.jpg" else of_pam)
    assert not raster.valid().any()


@pytest.mark.parametrize("flags", [0, 2])
def test_a_mask_beside_a_picture(tmp_path: Path, flags: int) -> None:
    """A .msk beside a PNG says which pixels are valid, of all bands or of each; nothing stays open."""
    path = picture(tmp_path / "x.png")
    valid = (np.random.default_rng(1).random((3, *SIZE)) < 0.7).astype(np.uint8) * 255
    mask(tmp_path / "x.png.msk", valid if flags == 0 else valid[:1], flags=flags)
    expected = (valid != 0).all(axis=0) if flags == 0 else valid[0] != 0
    np.testing.assert_array_equal(read_raster(path).mask, expected)
    assert not open_below(tmp_path)


def test_a_damaged_neighbour_of_a_picture_is_refused(tmp_path: Path) -> None:
    """A world file without numbers is an error that names it."""
    (tmp_path / "x.pgw").write_text("words")
    check_refused(picture(tmp_path / "x.png"), "x.pgw, the world file of x.png")


def test_a_picture_with_a_place_is_not_turned(tmp_path: Path) -> None:
    """A world file counts the stored pixels: GDAL passes over EXIF there."""
    exif = Image.Exif()
    exif[0x0112] = 6
    path = picture(tmp_path / "x.png", exif=exif)
    with as_seen(open_raster(path)) as opened:
        assert opened.size == SIZE[::-1]
    (tmp_path / "x.pgw").write_text(WORLD)
    with as_seen(open_raster(path)) as opened:
        assert opened.size == SIZE


def test_jpeg2000_that_gdal_gets_as_bytes_does_not_lose_its_neighbours(tmp_path: Path) -> None:
    """A server's file of JPEG 2000 with a world file beside it is refused, as GDAL would not see that."""
    path = tmp_path / "x.jp2"
    path.write_bytes(jp2(PIXELS))

    class Served(FileWithNeighbours):
        def __init__(self) -> None:
            self.file, self.neighbours = path.open("rb"), neighbours_of(path)

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

    served = Served()
    with served.file, open_raster(served) as opened:
        assert opened.georeference is None
    (tmp_path / "x.j2w").write_text(WORLD)
    served = Served()
    with (
        served.file,
        pytest.raises(InputError, match="which GDAL finds only by the file's path; give the path"),
    ):
        open_raster(served)
