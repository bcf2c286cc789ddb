"""The table of formats: that its rows agree with one another, and that all of them are written."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from vllm_mmout.errors import SaveError
from vllm_mmout.outputs import AudioOutput, ImageOutput, PolygonsOutput, RasterOutput, TensorOutput, VideoOutput
from vllm_mmout.outputs.formats import FORMATS, SENT, Format, _function, format_named, formats_of, listed

ROWS = list(FORMATS.values())
OUTPUTS = [AudioOutput, ImageOutput, PolygonsOutput, RasterOutput, TensorOutput, VideoOutput]


def test_no_two_rows_share_a_name_a_suffix_or_a_media_type() -> None:
    """A file, a header and a field each tell one format."""
    words = [*chain.from_iterable({row.name, *row.aliases, *(end[1:] for end in row.suffixes)} for row in ROWS)]
    assert len(words) == len(set(words))
    assert len({row.media_type for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=FORMATS)
def test_what_a_row_names_is_there(row: Format) -> None:
    """Its writers and its check can be imported; suffixes are written as names of files have them."""
    for where in (*row.writers.values(), *([row.check] if row.check else [])):
        assert callable(_function(where))
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in row.suffixes)


@pytest.mark.parametrize("row", ROWS, ids=FORMATS)
def test_a_format_is_found_by_each_of_its_words(row: Format) -> None:
    """In any case, with the dot of a suffix or without."""
    for word in (row.name, *row.aliases, *row.suffixes, *(suffix[1:] for suffix in row.suffixes)):
        assert format_named(word) is format_named(word.upper()) is row
    assert format_named(f"{row.name}x") is None


def test_outputs_have_the_formats_of_their_kind() -> None:
    """All suffixes of the rows that write it, the usual one first; sounds are no results of a server's."""
    assert {suffix for kind in OUTPUTS for suffix in kind.formats} >= {
        suffix for row in ROWS for suffix in row.suffixes if row.writers.keys() - {"structured", "areas", "boxes"}
    }
    usual = [next(iter(kind.formats.values())) for kind in OUTPUTS]
    assert usual == ["wav", "png", "geojson", "tiff", "npz", "mp4"]
    assert SENT.keys() == FORMATS.keys() - set(AudioOutput.formats.values())
    assert list(formats_of("raster", first="npz"))[:2] == [".npz", ".png"]


def test_names_of_formats_are_taken_by_to_bytes() -> None:
    """By name, by suffix, and by other names; of what the output has not, the error lists what it has."""
    raster = RasterOutput(np.ones((1, 2, 2), np.uint8))
    assert raster.to_bytes("GeoTIFF") == raster.to_bytes(".tiff") == raster.to_bytes()
    with pytest.raises(SaveError, match=r"cannot be written as 'gpkg' \(known: tiff, png, webp, jpeg"):
        raster.to_bytes("gpkg")


def test_lists_read_as_people_write_them() -> None:
    """One alone, and several."""
    assert (listed(["png"]), listed(["png", "webp"], "and")) == ("png", "png and webp")
    assert listed("abc") == "a, b or c"
