"""Open rasters that were saved as GeoTIFF, with the names and colours of their classes."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo import RasterMetadata, in_bucket, is_address, is_tiff, open_raster, without_secrets
from vllm_mmout.outputs.base import ASSUMED
from vllm_mmout.outputs.formats.qgis_style import STYLE
from vllm_mmout.outputs.stored import StoredRaster

if TYPE_CHECKING:
    from collections.abc import Mapping

_STYLE_BYTES: Final = 1 << 24
"""Maximum number of bytes of a QGIS style file that are read.

The limit is enough for 65536 classes of 256 bytes each."""
_ENTRY: Final = re.compile(r'<paletteEntry\b(?=[^<>]*?\bvalue="(\d{1,5})")(?=[^<>]*?\bcolor="#([0-9a-fA-F]{6})")')
"""Pattern of an entry in a QGIS style file. Its groups are the class number and the colour."""


def open_result(path: str | Path) -> StoredRaster:
    """Open a raster that a request saved as GeoTIFF, for example to draw a figure of it without the model.

    Names and colours of classes, units and the assumptions about the input are read from the file. If it has no table
    of colours, they are read from the QGIS style beside it (``.qml``). Without both, classes get the usual colours.
    The pixels are read when they are needed. The file is never removed.

    Args:
        path: a GeoTIFF on this machine. Files of other programs can be opened, too.

    Raises:
        InputError: the file is missing, is no GeoTIFF, or is damaged.

    """
    known = saved_metadata(path)
    raster = StoredRaster(path, **known)
    raster.assumed = tuple(filter(None, raster.metadata.get(ASSUMED, "").split("\n")))
    return raster


def saved_metadata(path: str | Path) -> RasterMetadata:
    """Return the metadata of a GeoTIFF on this machine as keyword arguments of `RasterOutput`.

    Raises InputError if the file cannot be opened.
    """
    text = str(path)
    if is_address(text) or in_bucket(text):
        raise InputError(f"{without_secrets(text)} is not on this machine; download it first")
    with open_raster(Path(path)) as raster:  # checks the file before GDAL reads it
        known: RasterMetadata = {
            "nodata": raster.nodata,
            "georeference": raster.georeference,
            "band_names": raster.descriptions,
            "metadata": raster.metadata,
        }
    with Path(path).open("rb") as head:
        if not is_tiff(head.read(4)):
            raise InputError(f"{path} is no GeoTIFF; give a result that was saved as .tif")
    known |= _metadata_by_gdal(path)
    if known["palette"] is None and known["class_names"] is not None:
        known["palette"] = _palette_in_style(Path(path).with_suffix(STYLE))
    return known


def _metadata_by_gdal(path: str | Path) -> RasterMetadata:
    from rasterio import Env
    from rasterio.errors import NotGeoreferencedWarning, RasterioError
    from rasterio.io import DatasetReader
    from rasterio.session import DummySession

    # rasterio attributes its warning to this module, so the filter affects no other code.
    warnings.filterwarnings("ignore", category=NotGeoreferencedWarning, module=__name__.replace(".", r"\."))
    try:
        with Env(session=DummySession()), DatasetReader(str(path), driver=["GTiff"]) as file:
            return {
                "units": file.units,
                "scales": () if set(file.scales) == {1.0} else file.scales,
                "class_names": class_names_in(file.tags(1)) or None,
                "palette": palette_of(file),
            }
    except RasterioError as error:
        raise InputError(f"{path} cannot be read as GeoTIFF: {error.__cause__ or error}") from error


def class_names_in(items: Mapping[str, str]) -> list[str]:
    """Return the class names in the metadata items of a band, from class 0. See `RasterMetadata.class_names`."""
    names: list[str] = []
    while (name := items.get(f"CLASS_{len(names)}")) is not None:
        names.append(name)
    return names


def palette_of(dataset: Any) -> NDArray[np.uint8] | None:
    """Return the colour table of a rasterio dataset, uint8 [n, 3]. Return None if the colour table is missing."""
    if dataset.count != 1 or dataset.colorinterp[0].name != "palette":
        return None
    colours = dataset.colormap(1)
    return np.array([colours.get(number, (0, 0, 0))[:3] for number in range(max(colours) + 1)], np.uint8)


def _palette_in_style(path: Path) -> NDArray[np.uint8] | None:
    """Return the colour of each class in a QGIS style file, uint8 [n, 3], or None if the file is missing."""
    try:
        with path.open("rb") as file:
            text = file.read(_STYLE_BYTES).decode(errors="replace")
    except OSError:
        return None
    colours = {int(number): bytes.fromhex(colour) for number, colour in _ENTRY.findall(text)}
    palette = np.zeros((max(colours, default=-1) + 1, 3), np.uint8)
    for number, colour in colours.items():
        palette[number] = list(colour)
    return palette if colours else None
