"""Table of the file formats for saving outputs and sending them to clients.

To add a format, add a row to `FORMATS` and a function that writes it to a module of this package. The suffixes of
`save`, the field ``output_format``, the header ``Accept``, ``/openapi.json`` and the command line use the table.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from vllm_mmout.errors import SaveError
from vllm_mmout.geo import in_bucket

if TYPE_CHECKING:
    from vllm_mmout.geo import Georeference
    from vllm_mmout.outputs.formats.contents import Content


PathT = TypeVar("PathT", bound=PurePath)


@dataclass(frozen=True, slots=True)
class Format:
    """File format for saving outputs, with its suffixes, media type and writers."""

    name: str
    """Name of the format in ``to_bytes``, in the request's ``output_format``, and in ``--output-format``."""
    title: str
    """Name of the format in messages and documentation, such as "GeoTIFF"."""
    suffixes: tuple[str, ...]
    """File suffixes of the format, such as ".tif", the default first."""
    media_type: str
    """Media type in HTTP headers, such as "image/png"."""
    writers: Mapping[str, str]
    """Maps each kind of output, such as "raster", to its writer function, named "module:function" in this package.

    The arguments of a writer are the output, an open file or a path, this `Format`, and the options by keyword."""
    options: tuple[str, ...] = ()
    """Names of the options that ``save`` and ``to_bytes`` accept for the format."""
    aliases: tuple[str, ...] = ()
    """Further names that select the format, besides ``name`` and ``suffixes``."""
    check: str | None = None
    """Function, named "module:function", that raises SaveError if the format cannot express a georeference. None means
    no check.

    The arguments of the function are the georeference, this `Format`, and a file suffix to suggest in the error."""
    extra: str | None = None
    """Name of the pip extra of this package that installs the dependencies of the format, or None."""
    folders: tuple[str, ...] = ()
    """Suffixes, such as ".zarr", that make the format a folder of files instead of a file."""
    transparent: bool = False
    """True if the format supports transparent pixels."""
    usual: bool = True
    """True if a server may choose this format for a request that does not name a format."""

    @property
    def picture(self) -> bool:
        """True for picture formats such as PNG. They can save every output that can be drawn."""
        return {"image", "structured"} <= self.writers.keys()

    @property
    def sound(self) -> bool:
        """True for sound formats."""
        return "audio" in self.writers

    @property
    def lossy(self) -> bool:
        """True if the format has an option ``quality``."""
        return "quality" in self.options

    @property
    def install(self) -> str:
        """The pip command that installs the dependencies of the format."""
        return f'pip install "vllm-mmout[{self.extra}]"'

    def write(self, output: Content, target: Path | BinaryIO, options: Mapping[str, Any]) -> None:
        """Write an output in this format, to a path or an open file."""
        self.check_options(options, output.formats)
        kind = next(kind for kind in output.output_kinds if kind in self.writers)
        known_options = {option: value for option, value in options.items() if option in self.options}
        _function(self.writers[kind])(output, target, self, **known_options)

    def check_place(self, georeference: Georeference | None, instead: str) -> None:
        """Raise SaveError if the format cannot express a georeference, or if a needed package is not installed.

        Can be called before an output exists. ``instead`` is the suffix of another format to suggest.
        """
        if self.check is not None:
            _function(self.check)(georeference, self, instead)

    def check_options(self, options: Mapping[str, Any], formats: Mapping[str, str]) -> None:
        """Raise SaveError if ``options`` contains an option that this `Format` does not support.

        An option of another format in ``formats`` is accepted if its value is None.
        """
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
_ZARR = {
    "raster": "zarr_store:write_raster",
    "series": "zarr_store:write_series",
    "tensor": "zarr_store:write_arrays",
}
_NETCDF = {"raster": "netcdf:write"}
_NPZ = {"raster": "arrays:write_raster_npz", "tensor": "arrays:write_npz", "video": "videos:write_npz"}
_JSON = {"structured": "arrays:write_fields", "tensor": "arrays:write_json"}
_GEOJSON = {"polygons": "geojson:write", "boxes": "geojson:write_boxes", "zones": "geojson:write_boxes"}
_GEOPARQUET = {"polygons": "arrow:write_geoparquet"}
_GDAL = {"polygons": "ogr:write"}
_VIDEO = {"video": "videos:write_mp4"}
_SOUND = {"audio": "sounds:write"}
_QUALITY, _SUBTYPE = ("quality",), ("subtype",)

# The media types of NumPy files, FlatGeobuf, zipped stores and little-endian samples are not registered.
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
    Format("shapefile", "Shapefile", (".shp.zip",), "application/vnd.shp+zip", _GDAL, check="ogr:check",
           extra="vector"),
    Format("pmtiles", "PMTiles", (".pmtiles",), "application/vnd.pmtiles", _GDAL, check="ogr:check", extra="vector"),
    Format("netcdf", "NetCDF", (".nc",), "application/netcdf", _NETCDF, check="netcdf:check"),
    Format("zarr", "Zarr", (".zarr.zip", ".zarr"), "application/vnd.zarr+zip", _ZARR, check="zarr_store:check",
           extra="zarr", folders=(".zarr",)),
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
"""All file formats by name, in the order shown to users."""

SENT = {name: form for name, form in FORMATS.items() if not form.sound}
"""All formats by name, except sound formats. The HTTP routes for images can return results in these formats."""


def formats_of(*kinds: str, first: str = "") -> dict[str, str]:
    """Return the file formats that can store any of the ``kinds`` of output, such as "raster", as suffix -> name.

    The format ``first`` comes first.
    """
    rows = sorted(FORMATS.values(), key=lambda form: form.name != first)
    return {suffix: form.name for form in rows if form.writers.keys() & set(kinds) for suffix in form.suffixes}


def format_named(text: str) -> Format | None:
    """Return the format with this name, alias or suffix, or None. Case and a leading dot are ignored."""
    word = text.lower().removeprefix(".")
    for form in FORMATS.values():
        if word == form.name or f".{word}" in form.suffixes or word in form.aliases:
            return form
    return None


def suffix_of(path: PurePath) -> str:
    """Return the suffix of a file name in lower case. A double suffix such as ".zarr.zip" is returned as a whole."""
    both = "".join(path.suffixes[-2:]).lower()
    return both if any(both in form.suffixes for form in FORMATS.values()) else path.suffix.lower()


def written_suffix(path: PurePath) -> str:
    """Return a file's suffix in its original case, such as ".TIF". A double suffix is returned as a whole."""
    return path.name[len(path.name) - len(suffix_of(path)) :]


def with_end(path: PathT, end: str, suffix: str | None = None) -> PathT:
    """Return ``path`` with ``end`` inserted before the file suffix.

    If ``suffix`` is not None, ``suffix`` replaces the file suffix.
    """
    old = written_suffix(path)
    return path.with_name(f"{path.name.removesuffix(old)}{end}{old if suffix is None else suffix}")


def format_of_file(path: PurePath, formats: Mapping[str, str]) -> str | None:
    """Return the name of the format of a file. Return None if ``formats`` (suffix -> name) lacks the file's suffix.

    Raise SaveError if the file would be a folder in a bucket.
    """
    suffix = suffix_of(path)
    name = formats.get(suffix)
    if in_bucket(path) and name is not None and is_folder_suffix(suffix):
        raise SaveError(f"{path} would be a folder of many objects; write one zip file, {path}.zip")
    return name


def is_folder_suffix(suffix: str) -> bool:
    """Return whether results with a suffix are written as a folder and not as a file."""
    return any(suffix in form.folders for form in FORMATS.values())


def other_suffix(formats: Mapping[str, str], name: str) -> str:
    """Return a file suffix for an error message to suggest: the first in ``formats`` whose format is not ``name``.

    Return the text "another format" if ``formats`` has no such suffix.
    """
    return next((suffix for suffix, other in formats.items() if other != name), "another format")


@contextmanager
def opened(target: Path | BinaryIO) -> Iterator[tuple[BinaryIO, Path | None]]:
    """Open the path ``target`` for writing. Yield the open file and the file's parent folder.

    If ``target`` is an open file already, yield ``target`` and None.
    """
    if isinstance(target, Path):
        with target.open("wb") as file:
            yield file, target.parent
    else:
        yield target, None


def listed(names: Iterable[str], last: str = "or") -> str:
    """Join words into a list in a sentence, such as "png, webp or jpeg". ``last`` is the conjunction."""
    *others, end = names
    return f"{', '.join(others)} {last} {end}" if others else end


def _function(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
