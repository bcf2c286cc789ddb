"""Formats of files: the one table of what outputs are saved and sent as.

A new format is a row of `FORMATS` and a function that writes it, in a module beside this one. Suffixes of `save`, the
field ``output_format``, the header ``Accept``, ``/openapi.json`` and the command line follow from the row.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from vllm_mmout.errors import SaveError

if TYPE_CHECKING:
    from vllm_mmout.geo import Georeference
    from vllm_mmout.outputs.base import Savable


@dataclass(frozen=True, slots=True)
class Format:
    """A format of files."""

    name: str
    """As ``to_bytes``, ``output_format`` and ``--output-format`` take it."""
    title: str
    """As people write it."""
    suffixes: tuple[str, ...]
    """Of file names, the usual one first."""
    media_type: str
    writers: Mapping[str, str]
    """Kind of output -> "module:function" of this package, called with the output, where to, this row, and options."""
    options: tuple[str, ...] = ()
    """What ``save`` and ``to_bytes`` take beside."""
    aliases: tuple[str, ...] = ()
    """Other names, beside the suffixes."""
    check: str | None = None
    """"module:function" that refuses a georeference, called with it, this row, and the suffix of another format."""
    extra: str | None = None
    """The extra of this package that brings what writes it."""
    transparent: bool = False
    """Whether pixels may be transparent."""
    usual: bool = True
    """Whether a server may send it where nothing is asked for."""

    @property
    def picture(self) -> bool:
        """Whether whatever can be drawn can be written as it."""
        return {"image", "structured"} <= self.writers.keys()

    @property
    def sound(self) -> bool:
        """Whether it holds sounds."""
        return "audio" in self.writers

    @property
    def lossy(self) -> bool:
        """Whether there is a quality to choose."""
        return "quality" in self.options

    @property
    def install(self) -> str:
        """The command that installs what writes it."""
        return f'pip install "vllm-mmout[{self.extra}]"'

    def write(self, output: Savable, target: Path | BinaryIO, options: Mapping[str, Any]) -> None:
        """Write an output."""
        self.check_options(options, output.formats)
        kind = next(kind for kind in output.output_kinds if kind in self.writers)
        given = {option: value for option, value in options.items() if option in self.options}
        _function(self.writers[kind])(output, target, self, **given)

    def check_place(self, georeference: Georeference | None, instead: str) -> None:
        """Refuse a place that the format cannot name, or that a package is missing for, before there is an output."""
        if self.check is not None:
            _function(self.check)(georeference, self, instead)

    def check_options(self, options: Mapping[str, Any], formats: Mapping[str, str]) -> None:
        """Refuse options that the format does not have; None is the usual of those that another has."""
        for option in options.keys() - set(self.options):
            forms = [form for name, form in FORMATS.items() if name in formats.values() and option in form.options]
            if not forms and not self.options:
                raise SaveError(f"{self.name} takes no options, got {option}; leave it out")
            if not forms:
                raise SaveError(f"unknown option {option} for {self.name} (known: {', '.join(self.options)})")
            if options[option] is not None:
                others = listed(form.title for form in forms)
                raise SaveError(f"{self.name} has no {option}; leave it out, or save as {others}")


_PICTURE = {"image": "pictures:write", "structured": "pictures:write", "raster": "pictures:write_raster"}
_ANIMATION = {"video": "videos:write_animation"}
_TIFF = {"image": "pictures:write", "raster": "geotiff:write", "classes": "geotiff:write_classes"}
_NPZ = {"raster": "arrays:write_raster_npz", "tensor": "arrays:write_npz", "video": "videos:write_npz"}
_JSON = {"structured": "arrays:write_fields", "tensor": "arrays:write_json"}
_GEOJSON = {"polygons": "geojson:write", "boxes": "geojson:write_boxes"}
_GEOPARQUET = {"polygons": "arrow:write_geoparquet"}
_GDAL = {"polygons": "ogr:write"}
_VIDEO = {"video": "videos:write_mp4"}
_SOUND = {"audio": "sounds:write"}
_QUALITY, _SUBTYPE = ("quality",), ("subtype",)

# Media types that are registered nowhere: of NumPy's files, FlatGeobuf, and samples that are little endian.
# fmt: off
_ROWS = (
    Format("png", "PNG", (".png",), "image/png", _PICTURE, transparent=True),
    Format("webp", "WebP", (".webp",), "image/webp", {**_PICTURE, **_ANIMATION}, _QUALITY, transparent=True),
    Format("jpeg", "JPEG", (".jpg", ".jpeg"), "image/jpeg", _PICTURE, _QUALITY),
    Format("avif", "AVIF", (".avif",), "image/avif", _PICTURE, _QUALITY, transparent=True),
    Format("tiff", "GeoTIFF", (".tif", ".tiff"), "image/tiff", _TIFF, aliases=("geotiff",)),
    Format("npz", "NumPy archive", (".npz",), "application/x-npz", _NPZ),
    Format("npy", "NumPy array", (".npy",), "application/x-npy", {"tensor": "arrays:write_npy"}),
    Format("json", "JSON", (".json",), "application/json", _JSON),
    Format("csv", "CSV", (".csv",), "text/csv", {"areas": "arrays:write_areas"}, usual=False),
    Format("geojson", "GeoJSON", (".geojson",), "application/geo+json", _GEOJSON, check="geojson:check"),
    Format("geoparquet", "GeoParquet", (".parquet", ".geoparquet"), "application/vnd.apache.parquet", _GEOPARQUET,
           check="arrow:check", extra="geoparquet"),
    Format("geopackage", "GeoPackage", (".gpkg",), "application/geopackage+sqlite3", _GDAL,
           check="ogr:check", extra="vector"),
    Format("flatgeobuf", "FlatGeobuf", (".fgb",), "application/flatgeobuf", _GDAL, check="ogr:check", extra="vector"),
    Format("mp4", "MP4", (".mp4",), "video/mp4", _VIDEO, extra="video"),
    Format("gif", "GIF", (".gif",), "image/gif", _ANIMATION),
    Format("mp3", "MP3", (".mp3",), "audio/mpeg", _SOUND, extra="audio"),
    Format("opus", "Opus", (".opus",), "audio/ogg; codecs=opus", _SOUND, extra="audio"),  # RFC 7845, 9
    Format("ogg", "Vorbis", (".ogg",), "audio/ogg; codecs=vorbis", _SOUND, extra="audio"),
    Format("flac", "FLAC", (".flac",), "audio/flac", _SOUND, _SUBTYPE, extra="audio"),
    Format("wav", "WAV", (".wav",), "audio/wav", _SOUND, _SUBTYPE, extra="audio"),
    Format("pcm", "raw samples", (".pcm",), "audio/pcm", _SOUND),
)
# fmt: on
FORMATS: Mapping[str, Format] = {row.name: row for row in _ROWS}
"""Name -> format, in the order in which they are listed for users."""

SENT = {name: form for name, form in FORMATS.items() if not form.sound}
"""Those that results are sent as; sounds have a route of their own."""


def formats_of(*kinds: str, first: str = "") -> dict[str, str]:
    """The formats of outputs of some kinds."""
    rows = sorted(FORMATS.values(), key=lambda form: form.name != first)
    return {suffix: form.name for form in rows if form.writers.keys() & set(kinds) for suffix in form.suffixes}


def format_named(text: str) -> Format | None:
    """The format of a name, a suffix with or without its dot, or another name, in any case."""
    word = text.lower().removeprefix(".")
    for form in FORMATS.values():
        if word == form.name or f".{word}" in form.suffixes or word in form.aliases:
            return form
    return None


def other_suffix(formats: Mapping[str, str], name: str) -> str:
    """The suffix of another format of an output, for errors that say what to do."""
    return next((suffix for suffix, other in formats.items() if other != name), "another format")


@contextmanager
def opened(target: Path | BinaryIO) -> Iterator[tuple[BinaryIO, Path | None]]:
    """Where to write as an open file, and the folder of one that is made for it."""
    if isinstance(target, Path):
        with target.open("wb") as file:
            yield file, target.parent
    else:
        yield target, None


def listed(names: Iterable[str], last: str = "or") -> str:
    """Words in a sentence: "png, webp or jpeg"."""
    *others, end = names
    return f"{', '.join(others)} {last} {end}" if others else end


def _function(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
