"""The parts that OutputParams is made of: which processors are asked, how the input is read, how it is cut.

Each is the base of the next, since a msgspec Struct can have one base with fields.
"""

from __future__ import annotations

import math
import re
from datetime import date
from typing import Annotated, Literal

import msgspec

from vllm_mmout.errors import OptionError
from vllm_mmout.geo import Window
from vllm_mmout.request_options import said

OF_MODELS = ("location", "dates", "means", "stds")
"""Options that only some models take."""

OF_STEPS = ("num_inference_steps", "guidance_scale", "seed", "strength", "negative_prompt", "size")
"""Options that only models take which work step by step, as those of diffusion do."""

_SIZE = re.compile(r"[1-9]\d{0,4}x[1-9]\d{0,4}", re.ASCII)
_FLOAT32 = (2.0**-149, (2 - 2.0**-23) * 2.0**127)
"""The smallest number and the largest that float32 has, above 0."""


FILE, STORED = "file", "stored"
"""What scale may be beside numbers: what each file states, or the numbers as they are."""


class Picks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which processors are asked, and for what."""

    processor: Annotated[
        str | tuple[str, ...] | None,
        said(
            "output processor, or several. Several give a dict of results by name in the order asked, from one run of"
            " the model. By default the model's first.",
            metavar="NAME",
        ),
    ] = None
    output: Annotated[
        str | None,
        said(
            "what the processor returns, as classes, probabilities, confidence, polygons, areas. Of a model that"
            ' generates tokens "none" leaves media tokens where they are: in the text, and not decoded; "media" has it'
            ' write one whole medium, "mixed" text and whole media.',
            metavar="KIND",
        ),
    ] = None

    def _check_picks(self) -> None:
        if not isinstance(self.processor, tuple):
            return
        if not self.processor:
            raise _wrong("processor", "is an empty list; name at least one output processor, or leave it out")
        if len(set(self.processor)) < len(self.processor):
            raise _wrong("processor", f"names one output processor twice: {list(self.processor)}")

    @property
    def picks(self) -> tuple[str, ...] | None:
        """The processors asked for by name, None for the model's first."""
        return (self.processor,) if isinstance(self.processor, str) else self.processor


class Reading(Picks, frozen=True, kw_only=True):
    """How the input is read."""

    bands: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=1)] | str, ...] | None,
        said(
            "bands of the input in the model's order, numbers from 1 or names. Numbers are those of rasterio and GDAL,"
            " names are band descriptions; a band may repeat."
        ),
    ] = None
    indices: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0)], ...] | None,
        said("the same as bands, counted from 0. Clients of TerraTorch send it; not together with bands."),
    ] = None
    nodata: Annotated[
        float | None, said('value of the input that means "no observation". Instead of the file\'s own.', nan=True)
    ] = None
    scale: Annotated[
        float | tuple[float, ...] | Literal["file", "stored"] | None,
        said(
            "what values are multiplied by, one number or one a band. With scale or offset the model gets float32:"
            ' value * scale + offset, in place of what the file says. "file" takes scale and offset of each band as'
            ' its file states them, "stored" takes the numbers as they are stored. By default what NetCDF and HDF5'
            " state is taken, counts of Sentinel-2 are made those of all its years, and other files are taken as"
            " stored."
        ),
    ] = None
    offset: Annotated[
        float | tuple[float, ...] | None, said("what is added to them then, one number or one a band.")
    ] = None
    window: Annotated[
        Window | None,
        said(
            "part of the input to use: row, column, height, width in pixels. The result lies on that part.",
            metavar="ROW,COL,HEIGHT,WIDTH",
        ),
    ] = None
    bbox: Annotated[
        tuple[float, float, float, float] | None,
        said(
            "part of the input to use: west, south, east, north in coordinates. Every pixel that it touches is used;"
            " not together with window.",
            metavar="WEST,SOUTH,EAST,NORTH",
        ),
    ] = None
    bbox_crs: Annotated[
        str | None,
        said(
            "coordinate system of bbox, as EPSG:4326 (longitude, latitude). By default the input's own.", metavar="CRS"
        ),
    ] = None
    resampling: Annotated[
        Literal["nearest", "bilinear"], said("how coarser bands of several files are brought to the finest grid.")
    ] = "nearest"
    location: Annotated[
        tuple[float, float] | None,
        said(
            "latitude and longitude of the input's middle in degrees, for models that take it. By default as its"
            " georeference says.",
            metavar="LATITUDE,LONGITUDE",
        ),
    ] = None
    dates: Annotated[
        tuple[str, ...] | None,
        said(
            "when each date of the input was taken, as 2024-05-01, for models that take it. By default as its metadata"
            " or its file's name says."
        ),
    ] = None
    means: Annotated[
        tuple[float, ...] | None, said("what is subtracted of each band. After scale, instead of the model's own.")
    ] = None
    stds: Annotated[tuple[float, ...] | None, said("what each band is divided by then.")] = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The options set here that say how a raster is read and cut."""
        names = ("bands", "indices", "nodata", "scale", "offset", "window", "bbox", *OF_MODELS, "tile")
        return tuple(name for name in names if getattr(self, name) is not None)

    def _check_bands(self) -> None:
        if self.bands is not None and self.indices is not None:
            raise _wrong("bands", "and indices are both set; give one: bands counts from 1, indices from 0")
        if self.bands is not None and not self.bands:
            raise _wrong("bands", "is empty; name at least one band, or leave it out")
        for name, least, hint in (("bands", 1, "; to count from 0 use indices"), ("indices", 0, "")):
            for band in getattr(self, name) or ():
                if isinstance(band, int) and band < least:
                    raise _wrong(name, f"must count from {least}, got {band}{hint}")

    def _check_values(self) -> None:
        smallest, largest = _FLOAT32
        float32, least_float = " in float32", math.ulp(0.0)
        limits = (("scale", smallest, float32), ("offset", 0.0, float32), ("means", 0.0, ""), ("stds", least_float, ""))
        for name, least, where in limits:
            value = getattr(self, name)
            for number in value if isinstance(value, tuple) else () if value in {None, FILE, STORED} else (value,):
                if not least <= abs(number) <= largest:  # NaN is not
                    raise _wrong(name, f"must be finite{' and not 0' if least else ''}{where}, got {value}")

        if self.scale in {FILE, STORED} and self.offset is not None:
            raise _wrong("offset", f"is {self.offset} beside scale={self.scale!r}, which says all; leave one out")

    def _check_place(self) -> None:
        """Check which part of the world is read, and what is said of it."""
        if self.location is not None and not (abs(self.location[0]) <= 90 and abs(self.location[1]) <= 180):
            raise _wrong("location", f"must be (latitude, longitude) in degrees, got {self.location}")
        for day in self.dates or ():
            try:
                date.fromisoformat(day)
            except ValueError:
                raise _wrong("dates", f'must be days such as "2024-05-01", got {day!r}') from None
        window = self.window
        if window is not None and (min(window.row, window.col) < 0 or min(window.height, window.width) < 1):
            sides = (window.row, window.col, window.height, window.width)
            raise _wrong("window", f"must be (row, col, height, width) with pixels in it, got {sides}")
        if self.bbox is None:
            if self.bbox_crs is not None:
                message = f"bbox_crs is {self.bbox_crs!r} without bbox; give bbox=(west, south, east, north)"
                raise OptionError(message, param="bbox")
            return
        if window is not None:
            raise OptionError("window and bbox are both set; give one of them", param="bbox")
        west, south, east, north = self.bbox
        if not all(map(math.isfinite, self.bbox)) or south >= north or west == east:
            raise _wrong("bbox", f"must be (west, south, east, north) with south below north, got {self.bbox}")


class Stepping(Reading, frozen=True, kw_only=True):
    """How a model works that answers step by step; the names are those of diffusers and of OpenAI's interface."""

    num_inference_steps: Annotated[
        int | None, said("steps that an iterative model takes. By default as the model says.", ge=1, le=100_000)
    ] = None
    guidance_scale: Annotated[
        float | None,
        said("how closely the result follows what is asked for, in classifier-free guidance. By default the model's."),
    ] = None
    seed: Annotated[
        int | None,
        said(
            "begins the random numbers of the request. The same one gives the same result. By default a random one.",
            ge=0,
            le=2**63 - 1,
        ),
    ] = None
    strength: Annotated[
        float | None,
        said("how much of an input picture is made anew, 0 to 1. By default the model's.", ge=0, le=1),
    ] = None
    negative_prompt: Annotated[str | None, said("what the result is to be unlike, in words.")] = None
    size: Annotated[
        str | None,
        said('"auto", or width and height of the result in pixels, as 512x512.', metavar="WIDTHxHEIGHT", max_length=11),
    ] = None

    @property
    def sides(self) -> tuple[int, int] | None:
        """Width and height that are asked for, in pixels."""
        if self.size is None:
            return None
        width, height = self.size.split("x")
        return int(width), int(height)

    def _check_steps(self) -> None:
        if self.guidance_scale is not None and not math.isfinite(self.guidance_scale):
            raise _wrong("guidance_scale", f"must be finite, got {self.guidance_scale}")
        if self.size == "auto":
            msgspec.structs.force_setattr(self, "size", None)
        if self.size is not None and not _SIZE.fullmatch(self.size):
            raise _wrong("size", f'must be "auto" or WIDTHxHEIGHT in pixels, got {self.size!r}')


class Tiling(Stepping, frozen=True, kw_only=True):
    """How an input that does not fit one forward is cut, and joined again."""

    tile: Annotated[
        int | None,
        said(
            "side of the square tiles that larger inputs are cut into. By default the model's own, and only for an"
            " input that is too large for one forward.",
            ge=1,
            unit="pixels",
        ),
    ] = None
    overlap: Annotated[
        int,
        said(
            "what neighbouring tiles share, at most half a tile. The outer quarter on either side, which a tile sees"
            " with little around it, counts nothing; the middle half is blended.",
            ge=0,
            unit="pixels",
        ),
    ] = 0
    blend: Annotated[
        Literal["cosine", "linear", "none"],
        said(
            "how values are averaged where tiles overlap: along a cosine or linear ramp, or not. With none each pixel"
            " is of the tile in whose middle it lies. Probabilities are averaged before the class is chosen; class ids"
            " of processors that know nothing else are taken as with none."
        ),
    ] = "cosine"

    def _check_tiles(self) -> None:
        if self.tile is not None and 2 * self.overlap > self.tile:
            raise _wrong("overlap", f"must be at most half a tile, got {self.overlap} for tile={self.tile}")


def _wrong(name: str, what: str) -> OptionError:
    return OptionError(f"{name} {what}", param=name)
