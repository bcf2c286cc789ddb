"""RasterOutput, the output of models that compute maps: bands of pixels, with or without a georeference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Raster, RasterMetadata, Window, as_pixels_have_it, as_window
from vllm_mmout.outputs.base import MediaOutput, as_numpy, masked, merged, resized_mask
from vllm_mmout.outputs.formats import FORMATS, formats_of
from vllm_mmout.outputs.rendering import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image
    from xarray import DataArray

    from vllm_mmout.geo import Affine, Georeference
    from vllm_mmout.outputs.areas import AreasOutput
    from vllm_mmout.outputs.base import Source


class RasterOutput(MediaOutput):
    """Raster of classes, probabilities or measurements that a model computed.

    Args:
        array: pixels [bands, height, width], numbers or bool.
        nodata: value of pixels without data.
        georeference: georeference of the raster. A processor omits it, since the engine sets it by `placed`.
        band_names: name of each band, or empty.
        units: unit of each band's values ("Mg/ha"), or empty.
        scales: factor of each band, or empty: the pixel times the factor is the value.
        nearest: whether overviews in files take the nearest pixel, since pixels must not be averaged.
        class_names: name of each class, from 0.
        palette: colour of each class from 0, uint8 [n, 3].
        metadata: metadata items that are written to the file.

    Raises:
        InputError: the array, the names or the palette have a wrong shape or dtype.

    """

    in_place: ClassVar[bool] = False
    """True if the raster already has the mask and georeference of its input, so that `placed` changes nothing."""
    takes_area: ClassVar[bool] = True
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
        scales: Sequence[float] = (),
        nearest: bool = False,
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
            scales=scales,
            nearest=nearest,
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
        self.scales = tuple(known.get("scales", ()))
        self.nearest = known.get("nearest", False)
        self.class_names = None if names is None else tuple(names)
        self.palette = None if palette is None else _checked_palette(as_numpy(palette))
        self.metadata: dict[str, str] = dict(known.get("metadata") or {})
        self.path = None
        for name in ("band_names", "units", "scales"):
            if (entries := getattr(self, name)) and len(entries) != self.count:
                raise InputError(f"{name} must have one entry per band, {self.count}, got {len(entries)}")

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
        """Dtype of the pixels."""
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        """Size of the pixels in memory, in bytes."""
        return self.count * self.height * self.width * self.dtype.itemsize

    @property
    def crs(self) -> str | None:
        """Coordinate system as "EPSG:n" or WKT, or None if unknown."""
        return self.georeference.crs if self.georeference is not None else None

    @property
    def transform(self) -> Affine | None:
        """Affine transform (a, b, c, d, e, f) from (column, row) to coordinates, as in rasterio. None if unknown."""
        return self.georeference.transform if self.georeference is not None else None

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        """Mask, bool [height, width], False where a band is nodata or NaN. None if every pixel is valid."""
        return Raster(self.array, nodata=self.nodata).valid()

    @property
    def image(self) -> Image:
        """Picture of the raster. Classes have the palette's colours, three bands are RGB, other rasters are grey.

        Nodata is transparent. Three uint8 bands are shown unchanged. Other values are stretched from black to white.
        """
        return render(self.array, self.valid, self.palette)

    def read(self, window: Window | Sequence[int] | None = None) -> NDArray[Any]:
        """Return the pixels [bands, height, width] of a window, or of the whole raster if ``window`` is None.

        The window is a `vllm_mmout.processors.Window` or (row, col, height, width) in pixels. Raises InputError if the
        window is malformed, empty, or not within the raster.
        """
        if window is None:
            return self.array
        return self._part(self._checked_window(window))

    def _part(self, window: Window) -> NDArray[Any]:
        return self.array[:, window.rows, window.cols]

    def placed(self, source: Source) -> RasterOutput:
        """Return a copy of the raster with the georeference, mask and metadata of the input ``source``.

        A raster of another size than the input covers the same extent. Pixels where the input's ``valid`` is False
        become nodata. ``valid`` is False outside the request's area of interest, too. If the raster has no nodata
        value, it is NaN for floating point and the largest value of an integer dtype. InputError is raised if a pixel
        has that value already. With a mask, bool becomes uint8. Metadata items of the raster take precedence over items
        of the input.
        """
        size = (self.height, self.width)
        array, nodata, georeference = self.array, self.nodata, source.georeference
        valid = source.valid
        if valid is None and source.area is not None:  # a scene that its processor joined in memory
            valid = source.area.mask(Window(0, 0, *source.area.size))
        if valid is not None:
            array, nodata = masked(array, nodata, resized_mask(valid, size))
        if georeference is not None and source.size is not None:
            georeference = georeference.resized(source.size, size)
        described = self.described
        described["nodata"], described["georeference"] = nodata, georeference
        described["metadata"] = merged(source.metadata, self.metadata)
        return RasterOutput(array, **described)

    @property
    def described(self) -> RasterMetadata:
        """Keyword arguments of `RasterOutput` that describe the raster: everything except its pixels."""
        return cast("RasterMetadata", {name: getattr(self, name) for name in RasterMetadata.__annotations__})

    def figure(self, *, title: str | None = None, picture: Any = None, opacity: float | None = None) -> Figure:
        """Draw the raster over the picture of its input, as a matplotlib ``Figure`` for reports.

        Classes get a legend with their shares and areas, other values a colour bar. A raster with a georeference gets a
        scale bar and an arrow to true north. A footer names the model, the coordinate system and the assumptions about
        the input. The figure is not registered with pyplot, so that threads and servers can make figures:
        ``result.figure().savefig("report.pdf")``. Needs ``pip install "vllm-mmout[figure]"``.

        Args:
            title: heading; by default the name of the model. "" for none.
            picture: picture below the raster: a PIL image, or uint8 [height, width, 3], of the raster's extent; a path,
                or a list of paths, of raster files that are warped onto the raster; False for none. By default the
                input is read again, if it was given as a path or an address.
            opacity: opacity of the raster over the picture, above 0 and at most 1. By default 0.6 for classes, and 1
                for values, which would lose the colours of their colour bar.

        Raises:
            InputError: the input's file is gone, or ``picture`` is no picture.
            OptionError: ``opacity`` is out of range.

        """
        from vllm_mmout.outputs.figure import raster_figure

        return raster_figure(self, title=title, picture=picture, opacity=opacity)

    def areas(self, aoi: Any = None, aoi_crs: str | None = None) -> AreasOutput:
        """Return the number of pixels and the area in square metres of each class, and of nodata.

        Args:
            aoi: area of interest in the forms that `vllm_mmout.OutputParams` takes. Only pixels whose centre is inside
                are counted, and if it has several features, those of each feature, too. Without it, nodata includes
                pixels outside the ``aoi`` of the request that made the raster.
            aoi_crs: coordinate system of an ``aoi`` that does not state it.

        Raises:
            InputError: the raster is not a single band of uint8 or uint16, or the area covers none of its pixels.
            OptionError: the area or its coordinate system is invalid.

        """
        from vllm_mmout.outputs.areas import areas_inside  # imports pydantic, which may be missing

        return areas_inside(self, aoi, aoi_crs)

    def to_xarray(self) -> DataArray:
        """Return an xarray ``DataArray`` with dimensions band, y, x, as rioxarray would read the raster's GeoTIFF.

        The coordinate ``spatial_ref`` holds the coordinate system and the transform, and the attribute ``_FillValue``
        holds nodata, so that ``.rio`` finds them. All pixels are in memory and not copied. Needs
        ``pip install "vllm-mmout[xarray]"``. Raises InputError if PROJ does not know the coordinate system.
        """
        from vllm_mmout.outputs.data_array import data_array

        return data_array(self)

    def close(self) -> None:
        """Remove the raster's temporary file. This does nothing for a raster in memory."""

    def __repr__(self) -> str:
        size = f"{self.count} x {self.height} x {self.width} {self.dtype}"
        place = f", {self.crs}" if self.crs and len(self.crs) < 40 else ""
        nodata = f", nodata={self.nodata}" if self.nodata is not None else ""
        where = f", path={self.path!r}" if self.path else ""
        return f"{type(self).__name__}({size}{nodata}{place}{where})"

    def _repr_png_(self) -> bytes:
        return self.to_bytes("png")

    def _sidecars(self, name: str, target: PurePath) -> Mapping[str, bytes | None]:
        if name != "tiff":
            return {}
        from vllm_mmout.outputs.formats.geotiff import geotiff_sidecars
        from vllm_mmout.outputs.formats.qgis_style import qgis_style

        styled = self.count == 1 and self.dtype.kind in "iu" and bool(self.class_names or self.palette is not None)
        style = qgis_style(self.class_names, self.palette) if styled else None
        return geotiff_sidecars(target, self.class_names, style)

    def _write(self, path: Path, name: str, options: dict[str, Any]) -> None:
        if name in ("tiff", "zarr", "netcdf"):  # written in chunks
            FORMATS[name].write(self, path, options)
        else:
            super()._write(path, name, options)

    def _checked_window(self, rectangle: Window | Sequence[int]) -> Window:
        window = as_window(rectangle)
        if not window.within((self.height, self.width)):
            raise InputError(
                f"window of {window.height} rows from {window.row} and {window.width} columns from {window.col} is not"
                f" within the raster of {self.height} x {self.width}"
            )
        return window


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
