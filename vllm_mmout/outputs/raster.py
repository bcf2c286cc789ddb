"""RasterOutput: bands of pixels that may know their place on Earth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Raster, RasterMetadata, Window, as_pixels_have_it, as_window
from vllm_mmout.outputs.base import MediaOutput, as_numpy, masked, merged, resized_mask
from vllm_mmout.outputs.formats import FORMATS, formats_of
from vllm_mmout.outputs.rendering import render

if TYPE_CHECKING:
    from PIL.Image import Image
    from xarray import DataArray

    from vllm_mmout.geo import Affine, Georeference
    from vllm_mmout.outputs.base import Source

_ROWS = 512
"""Rows of classes that are read at once: a row of blocks."""


class RasterOutput(MediaOutput):
    """A raster: classes, probabilities, measurements.

    Args:
        array: [bands, height, width]; numbers or bool.
        nodata: value that means "nothing known here".
        georeference: where the raster lies; a processor leaves it out, the engine sets it by `placed`.
        band_names: one a band, or none.
        units: unit of each band's values ("Mg/ha"), or none.
        class_names: name of each class, from 0.
        palette: uint8 [n, 3], colour of each class, from 0.
        metadata: items that go into the file.

    Raises:
        InputError: the array, the names or the palette have another shape or dtype.

    """

    output_kinds: ClassVar[tuple[str, ...]] = ("raster",)
    formats: ClassVar[dict[str, str]] = formats_of("raster", first="tiff")

    def __init__(
        self,
        array: NDArray[Any],
        *,
        nodata: float | None = None,
        georeference: Georeference | None = None,
        band_names: Sequence[str | None] = (),
        units: Sequence[str | None] = (),
        class_names: Sequence[str] | None = None,
        palette: NDArray[np.uint8] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.array: NDArray[Any] = _checked_array(as_numpy(array))
        self._describe(
            nodata=nodata,
            georeference=georeference,
            band_names=band_names,
            units=units,
            class_names=class_names,
            palette=palette,
            metadata=metadata,
        )

    def _describe(self, **known: Unpack[RasterMetadata]) -> None:
        palette, names = known.get("palette"), known.get("class_names")
        nodata = known.get("nodata")
        self.nodata = None if nodata is None else as_pixels_have_it(nodata, self.dtype)
        self.georeference = known.get("georeference")
        self.band_names = tuple(known.get("band_names", ()))
        self.units = tuple(known.get("units", ()))
        self.class_names = None if names is None else tuple(names)
        self.palette = None if palette is None else _checked_palette(as_numpy(palette))
        self.metadata: dict[str, str] = dict(known.get("metadata") or {})
        self.path = None
        for name, texts in (("band_names", self.band_names), ("units", self.units)):
            if texts and len(texts) != self.count:
                raise InputError(f"{name} must be one a band, {self.count}, got {len(texts)}")

    @property
    def count(self) -> int:
        """Number of bands."""
        return self._extent()[0]

    @property
    def height(self) -> int:
        """Number of rows."""
        return self._extent()[1]

    @property
    def width(self) -> int:
        """Number of columns."""
        return self._extent()[2]

    def _extent(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the pixels."""
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the pixels, from shape and dtype."""
        return self.count * self.height * self.width * self.dtype.itemsize

    @property
    def crs(self) -> str | None:
        """Coordinate system as "EPSG:n" or WKT, None if unknown."""
        return self.georeference.crs if self.georeference is not None else None

    @property
    def transform(self) -> Affine | None:
        """Pixel corner to coordinates, (a, b, c, d, e, f) as rasterio's ``Affine``; None if unknown."""
        return self.georeference.transform if self.georeference is not None else None

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        """False where a band is nodata or NaN, bool [height, width]; None if every pixel is valid."""
        return Raster(self.array, nodata=self.nodata).valid()

    @property
    def image(self) -> Image:
        """A picture: the palette's colours, or grey from the smallest to the largest value; nodata is transparent."""
        return render(self.array, self.valid, self.palette)

    def read(self, window: Window | Sequence[int] | None = None) -> NDArray[Any]:
        """The pixels of a rectangle, [bands, height, width]; all without one.

        It is a `vllm_mmout.processors.Window` or (row, col, height, width) in pixels; InputError where it is
        malformed, reaches outside the raster, or is empty.
        """
        if window is None:
            return self.array
        return self._part(self._checked_window(window))

    def _part(self, window: Window) -> NDArray[Any]:
        return self.array[:, window.rows, window.cols]

    def placed(self, source: Source) -> RasterOutput:
        """The same result laid on the input it was made from; one of another size covers the same extent.

        Where the input's ``valid`` is False there is nodata here. A raster without a nodata of its own then gets one:
        NaN for floating point, the largest value of an integer dtype if no pixel has it (else InputError). bool
        becomes uint8. Of its ``metadata``, items that the raster has as well are left out.
        """
        size = (self.height, self.width)
        array, nodata, georeference = self.array, self.nodata, source.georeference
        if source.valid is not None:
            array, nodata = masked(array, nodata, resized_mask(source.valid, size))
        if georeference is not None and source.size is not None:
            georeference = georeference.resized(source.size, size)
        known = self.described
        known["nodata"], known["georeference"] = nodata, georeference
        known["metadata"] = merged(source.metadata, self.metadata)
        return RasterOutput(array, **known)

    @property
    def described(self) -> RasterMetadata:
        """All that is known beside the pixels."""
        return cast("RasterMetadata", {name: getattr(self, name) for name in RasterMetadata.__annotations__})

    def to_xarray(self) -> DataArray:
        """The raster as xarray has it, with dimensions band, y, x, as rioxarray reads its GeoTIFF.

        Coordinate system and transform stand in the coordinate ``spatial_ref``, nodata in the attribute
        ``_FillValue``, so that ``.rio`` finds them. Needs the extra: ``pip install "vllm-mmout[xarray]"``. All pixels
        are in memory; they are not copied. InputError: the coordinate system is unknown to PROJ.
        """
        from vllm_mmout.outputs.data_array import data_array

        return data_array(self)

    def close(self) -> None:
        """Free what the raster holds on disk; one in memory holds nothing."""

    def __repr__(self) -> str:
        size = f"{self.count} x {self.height} x {self.width} {self.dtype}"
        place = f", {self.crs}" if self.crs and len(self.crs) < 40 else ""
        nodata = f", nodata={self.nodata}" if self.nodata is not None else ""
        where = f", path={self.path!r}" if self.path else ""
        return f"{type(self).__name__}({size}{nodata}{place}{where})"

    def _repr_png_(self) -> bytes:
        return self.to_bytes("png")

    def _sidecars(self, name: str) -> Mapping[str, bytes | None]:
        from vllm_mmout.outputs.formats.geotiff import geotiff_sidecars

        return geotiff_sidecars(self.class_names) if name == "tiff" else {}

    def _write(self, path: Path, name: str, options: dict[str, Any]) -> None:
        if name == "tiff":
            FORMATS[name].write(self, path, options)
        else:
            super()._write(path, name, options)

    def _checked_window(self, given: Window | Sequence[int]) -> Window:
        window = as_window(given)
        if not window.within((self.height, self.width)):
            raise InputError(
                f"window of {window.height} rows from {window.row} and {window.width} columns from {window.col} is not"
                f" within the raster of {self.height} x {self.width}"
            )
        return window


def check_classes(raster: RasterOutput) -> None:
    """Refuse a raster that is none of classes: one band of uint8 or uint16."""
    if raster.count != 1 or raster.dtype.name not in ("uint8", "uint16"):
        raise InputError(
            "polygons and areas are made of one band of classes, uint8 or uint16; got"
            f" {raster.count} of {raster.dtype}; ask for another output"
        )


def class_rows(raster: RasterOutput) -> Iterator[NDArray[np.unsignedinteger]]:
    """The classes from the top, [rows, width], some rows at a time."""
    for row in range(0, raster.height, _ROWS):
        yield raster.read(Window(row, 0, min(_ROWS, raster.height - row), raster.width))[0]


def _checked_array(array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim != 3 or array.size == 0 or array.dtype.kind not in "biuf":
        raise InputError(
            f"RasterOutput takes numbers [bands, height, width], not empty; got {array.dtype} {list(array.shape)}"
        )
    return array


def _checked_palette(palette: NDArray[Any]) -> NDArray[np.uint8]:
    if palette.dtype != np.uint8 or palette.ndim != 2 or palette.shape[1] != 3 or not len(palette):
        raise InputError(f"palette must be uint8 [n, 3], got {palette.dtype} {list(palette.shape)}")
    return palette
