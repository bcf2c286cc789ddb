"""Options that control how an input is read: bands, scale, window, dates."""

from __future__ import annotations

import math
from datetime import date
from typing import Annotated, Any, Literal

import msgspec

from vllm_mmout.errors import OptionError
from vllm_mmout.geo import Window, area_json, area_text
from vllm_mmout.option import said
from vllm_mmout.params.processors import Picks, wrong

OF_MODELS = ("location", "dates", "means", "stds")
"""Names of the options that only some models accept."""


_FLOAT32 = (2.0**-149, (2 - 2.0**-23) * 2.0**127)
"""Smallest and largest positive number in float32."""


_LONGEST_SENT = 1 << 20
"""Maximum number of characters of the option ``aoi`` in a request.

The event loop is blocked while ``aoi`` is checked, so longer texts are refused."""

FILE, STORED = "file", "stored"
"""Values of ``scale`` that are not numbers. "file" applies the scale that the file states, and "stored" uses the values
as stored."""


class ReadingOptions(Picks, frozen=True, kw_only=True):
    """Options that control how an input is read."""

    bands: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=1)] | str, ...] | None,
        said(
            "bands of the input in the model's order, numbers from 1 or names. Numbers are those of rasterio and GDAL,"
            " names are band descriptions; a band may repeat."
        ),
    ] = None
    indices: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0)], ...] | None,
        said("bands of the input in the model's order, counted from 0, as TerraTorch does. Not together with bands."),
    ] = None
    nodata: Annotated[
        float | None, said('value of the input that means "no observation". Replaces the nodata of the file.', nan=True)
    ] = None
    mask_clouds: Annotated[
        bool,
        said(
            "treat pixels as nodata that the input's band of quality codes marks as cloud, cirrus or shadow. The band"
            " is SCL (Sentinel-2), Fmask (HLS) or QA_PIXEL (Landsat); an input without it is refused."
        ),
    ] = False
    scale: Annotated[
        float | tuple[float, ...] | Literal["file", "stored"] | None,
        said(
            "factor for the stored numbers, one number or one per band. With scale or offset the model gets float32:"
            ' stored number * scale + offset, in place of the file\'s own scale and offset. "file" applies the scale'
            ' and offset of each band that its file states, "stored" uses the stored numbers. By default, the numbers'
            " of NetCDF and HDF5 are scaled as their files state, Sentinel-2 numbers are made equal across processing"
            " baselines, and the numbers of other files are used as stored."
        ),
    ] = None
    offset: Annotated[
        float | tuple[float, ...] | None, said("number added after the factor, one number or one per band.")
    ] = None
    window: Annotated[
        Window | None,
        said(
            "part of the input to use: row, column, height, width in pixels. The result covers that part.",
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
            "coordinate system of bbox, such as EPSG:4326 (longitude, latitude). By default the input's.", metavar="CRS"
        ),
    ] = None
    aoi: Annotated[
        Any,
        said(
            "area of interest: polygons in GeoJSON, from a shapely or geopandas object, or in a file. The part of the"
            " input around it is used, and the result is masked: pixels whose centre is outside are nodata and not"
            " counted, and boxes whose centre is outside are left out. Not together with window or bbox.",
            metavar="FILE|GEOJSON",
            parse=area_json,
            read=area_text,
            longest=_LONGEST_SENT,
            schema={"type": "object"},
        ),
    ] = None
    aoi_crs: Annotated[
        str | None,
        said(
            "coordinate system of an aoi that does not state one. By default GeoJSON is in longitude and latitude, and"
            " a shapely geometry in the input's coordinate system.",
            metavar="CRS",
        ),
    ] = None
    resampling: Annotated[
        Literal["nearest", "bilinear"], said("how coarser bands of several files are resampled to the finest grid.")
    ] = "nearest"
    location: Annotated[
        tuple[float, float] | None,
        said(
            "latitude and longitude of the input's centre in degrees, for models that use it. By default from its"
            " georeference.",
            metavar="LATITUDE,LONGITUDE",
        ),
    ] = None
    dates: Annotated[
        tuple[str, ...] | None,
        said(
            "date of each time step of the input, as 2024-05-01, for models that use it. By default from its metadata"
            " or its file's name."
        ),
    ] = None
    means: Annotated[
        tuple[float, ...] | None, said("mean of each band, subtracted after scale. Replaces the model's own.")
    ] = None
    stds: Annotated[tuple[float, ...] | None, said("divisor of each band after means. Replaces the model's own.")] = (
        None
    )

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the raster reading options that the request sets, such as "bands" or "window".

        These options affect how a raster is read and cut into tiles.
        """
        names = ("bands", "indices", "nodata", "scale", "offset", "window", "bbox", "aoi", *OF_MODELS, "tile")
        return tuple(name for name in names if getattr(self, name) is not None) + ("mask_clouds",) * self.mask_clouds

    def _check_bands(self) -> None:
        if self.bands is not None and self.indices is not None:
            raise wrong("bands", "and indices are both set; give one: bands counts from 1, indices from 0")
        if self.bands is not None and not self.bands:
            raise wrong("bands", "is empty; name at least one band, or leave it out")
        for name, least, hint in (("bands", 1, "; to count from 0 use indices"), ("indices", 0, "")):
            for band in getattr(self, name) or ():
                if isinstance(band, int) and band < least:
                    raise wrong(name, f"must count from {least}, got {band}{hint}")

    def _check_values(self) -> None:
        smallest, largest = _FLOAT32
        float32, least_float = " in float32", math.ulp(0.0)
        limits = (("scale", smallest, float32), ("offset", 0.0, float32), ("means", 0.0, ""), ("stds", least_float, ""))
        for name, least, where in limits:
            value = getattr(self, name)
            for number in value if isinstance(value, tuple) else () if value in {None, FILE, STORED} else (value,):
                if not least <= abs(number) <= largest:  # false for NaN, too
                    raise wrong(name, f"must be finite{' and not 0' if least else ''}{where}, got {value}")

        if self.scale in {FILE, STORED} and self.offset is not None:
            raise wrong("offset", f"is {self.offset} beside scale={self.scale!r}, which says all; leave one out")

    def _check_place(self) -> None:
        """Check the options for the location, the dates and the window of the input."""
        if self.location is not None and not (abs(self.location[0]) <= 90 and abs(self.location[1]) <= 180):
            raise wrong("location", f"must be (latitude, longitude) in degrees, got {self.location}")
        for day in self.dates or ():
            try:
                date.fromisoformat(day)
            except ValueError:
                raise wrong("dates", f'must be days such as "2024-05-01", got {day!r}') from None
        self._check_area()
        window = self.window
        if window is not None and (min(window.row, window.col) < 0 or min(window.height, window.width) < 1):
            sides = (window.row, window.col, window.height, window.width)
            raise wrong("window", f"must be (row, col, height, width) with pixels in it, got {sides}")
        if self.bbox is None:
            if self.bbox_crs is not None:
                message = f"bbox_crs is {self.bbox_crs!r} without bbox; give bbox=(west, south, east, north)"
                raise OptionError(message, param="bbox")
            return
        if window is not None:
            raise OptionError("window and bbox are both set; give one of them", param="bbox")
        if self.aoi is not None:
            raise OptionError("bbox and aoi are both set; give one of them", param="aoi")
        west, south, east, north = self.bbox
        if not all(map(math.isfinite, self.bbox)) or south >= north or west == east:
            expected = "(west, south, east, north) with south below north and west unlike east"
            raise wrong("bbox", f"must be {expected}, got {self.bbox}")

    def _check_area(self) -> None:
        if self.aoi is None and self.aoi_crs is not None:
            message = f"aoi_crs is {self.aoi_crs!r} without aoi; give aoi=..., polygons in GeoJSON or a geometry"
            raise OptionError(message, param="aoi")
        if self.aoi is not None and self.window is not None:
            raise OptionError("window and aoi are both set; give one of them", param="aoi")
