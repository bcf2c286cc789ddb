"""A file that several threads read: whose failure is whose."""

from __future__ import annotations

from io import BytesIO

import pytest
import tifffile
from geotiffs_by_rasterio import ARRAY, geotiff

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.files import ManyReadersFile, SharedFile
from vllm_mmout.geo.raster.opened import open_raster

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


class _AtOnce(ManyReadersFile):
    """Three bytes that any number of threads may read at once."""

    def read_at(self, at: int, count: int) -> bytes:
        return b"abc"[at:][:count]

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return 3 if whence else offset


@pytest.mark.parametrize("file", [BytesIO(b"abc"), _AtOnce()], ids=["for-one", "for-many"])
def test_a_place_that_is_no_whole_number_is_no_failure_of_the_file(file: BytesIO) -> None:
    """Who asks for half a byte, as decoders of damaged data do, made a mistake of its own."""
    shared = SharedFile(file, "abc", owned=False)
    for ask in (
        lambda: shared.seek(1.5),
        lambda: shared.read(1.5),
        lambda: shared.read_at(0.5, 2),
        lambda: shared.read_at(0, 1.5),
    ):
        with pytest.raises(TypeError):
            ask()
    assert shared.failure is None
    assert shared.read_at(1, 2) == b"bc"


def test_what_a_callers_file_raises_is_its_failure() -> None:
    """An error of the file itself stands in ``failure``, be it a TypeError."""

    class Failing(BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise TypeError("not today")

    shared = SharedFile(Failing(b"abc"), "abc", owned=False)
    with pytest.raises(TypeError, match="not today"):
        shared.read(2)
    assert isinstance(shared.failure, TypeError)


def test_a_decoder_that_asks_for_half_a_byte_found_a_damaged_tiff(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tifffile makes of a damaged file is an error of the file, and no exception of the caller's file object."""
    monkeypatch.setattr(
        tifffile.TiffPage, "is_jfif", property(lambda page: page.parent.filehandle.seek(page.dataoffsets[0] + 0.5))
    )
    with pytest.raises(InputError, match="is a damaged TIFF: TypeError"):
        open_raster(geotiff(ARRAY.astype("uint8"), compress="jpeg"))
