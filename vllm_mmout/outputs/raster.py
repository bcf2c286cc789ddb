"""RasterOutput: bands of pixels that may know their place on Earth."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.outputs.arrays import as_numpy
from vllm_mmout.outputs.base import MediaOutput, no_options
from vllm_mmout.outputs.known import Known, geotiff_options
from vllm_mmout.outputs.pictures import PICTURE_FORMATS, encode_picture, flattened
from vllm_mmout.outputs.placing import masked, merged, resized_mask
from vllm_mmout.outputs.render import render
from vllm_mmout.outputs.sidecars import geotiff_sidecars
from vllm_mmout.outputs.tensor import save_arrays
from vllm_mmout.raster.gdal_metadata import as_pixels_have_it
from vllm_mmout.raster.raster import Raster
from vllm_mmout.raster.window import Window, as_window
from vllm_mmout.raster.writing.write import write_geotiff, write_geotiff_here

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from PIL.Image import Image

    from vllm_mmout.outputs.source import Source
    from vllm_mmout.raster.georeference import Georeference
    from vllm_mmout.raster.placement import Affine
    from vllm_mmout.raster.writing.tags import Told


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

    formats: ClassVar[dict[str, str]] = {".tif": "tiff", ".tiff": "tiff", **PICTURE_FORMATS, ".npz": "npz"}

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

    def _describe(self, **known: Unpack[Known]) -> None:
        """Keep what is known beside the pixels."""
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
        return int(self.array.shape[0])

    @property
    def height(self) -> int:
        """Number of rows."""
        return int(self.array.shape[1])

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.array.shape[2])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the pixels."""
        return self.array.dtype

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

        Args:
            window: a `vllm_mmout.processors.Window` or (row, col, height, width) in pixels.

        Raises:
            InputError: the rectangle is malformed, reaches outside the raster, or is empty.

        """
        if window is None:
            return self.array
        asked = self._checked_window(window)
        return self.array[:, asked.rows, asked.cols]

    def placed(self, source: Source) -> RasterOutput:
        """The same result laid on the input it was made from.

        A raster of another size than the input (super-resolution, logits of a quarter of the resolution) covers the
        same extent: its georeference is that of the input with larger or smaller pixels.

        Args:
            source: the input. Where its ``valid`` is False there is nodata here. A raster without a nodata of its own
                then gets one: NaN for floating point, the largest value of an integer dtype if no pixel has it. bool
                becomes uint8. Of its ``metadata``, items that the raster has as well are left out.

        Raises:
            InputError: every value of an integer dtype that could be nodata is taken.

        """
        size = (self.height, self.width)
        array, nodata, georeference = self.array, self.nodata, source.georeference
        if source.valid is not None:
            array, nodata = masked(array, nodata, resized_mask(source.valid, size))
        if georeference is not None and source.size is not None:
            georeference = georeference.resized(source.size, size)
        return RasterOutput(
            array,
            nodata=nodata,
            georeference=georeference,
            band_names=self.band_names,
            units=self.units,
            class_names=self.class_names,
            palette=self.palette,
            metadata=merged(source.metadata, self.metadata),
        )

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
        return geotiff_sidecars(self.class_names) if name == "tiff" else {}

    def _write(self, path: Path, name: str, options: dict[str, Any]) -> None:
        if name == "tiff":
            no_options(name, options)
            write_geotiff_here(path, self.array, **self._told())
        else:
            super()._write(path, name, options)

    def _encode(self, name: str, options: dict[str, Any]) -> bytes:
        if name in PICTURE_FORMATS.values():
            return encode_picture(flattened(self.image) if name == "jpeg" else self.image, name, options)
        no_options(name, options)
        buffer = BytesIO()
        if name == "tiff":
            write_geotiff(buffer, self.array, **self._told())
        else:
            save_arrays(buffer, self._arrays())
        return buffer.getvalue()

    def _told(self) -> Told:
        """What a GeoTIFF says of the pixels."""
        return geotiff_options(
            self.count,
            self.dtype,
            nodata=self.nodata,
            georeference=self.georeference,
            band_names=self.band_names,
            units=self.units,
            class_names=self.class_names,
            palette=self.palette,
            metadata=self.metadata,
        )

    def _checked_window(self, given: Window | Sequence[int]) -> Window:
        window = as_window(given)
        if not window.within((self.height, self.width)):
            raise InputError(
                f"window of {window.height} rows from {window.row} and {window.width} columns from {window.col} is not"
                f" within the raster of {self.height} x {self.width}"
            )
        return window

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """What an .npz holds: the pixels, and as arrays of their own what is known beside them."""
        known = {
            "nodata": self.nodata,
            "crs": self.crs,
            "transform": self.transform,
            "band_names": [name or "" for name in self.band_names] or None,
            "units": [unit or "" for unit in self.units] or None,
            "class_names": self.class_names,
            "palette": self.palette,
        }
        return {"array": self.array, **{name: np.asarray(value) for name, value in known.items() if value is not None}}


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
