"""GeoTIFFs of rasters, and the files beside them: GDAL's PAM with the names of classes, and what must not stay there.

GDAL's GTiff driver has no place for category names in the file itself; it reads them from ``NAME.tif.aux.xml``
(https://gdal.org/drivers/raster/gtiff.html, "Metadata"). It would also take ``NAME.tif.ovr`` and ``NAME.tif.msk`` of an
older file for overviews and mask of the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, BinaryIO
from xml.sax.saxutils import escape

from vllm_mmout.geo import checked_xml, place_of, remove_in_bucket, write_geotiff, write_geotiff_here
from vllm_mmout.outputs.formats import FORMATS, Format

if TYPE_CHECKING:
    from vllm_mmout.outputs.polygons import PolygonsOutput
    from vllm_mmout.outputs.raster import RasterOutput

PAM = ".aux.xml"
"""What GDAL appends to a file's name for what the file cannot hold."""
_OTHERS = (".ovr", ".msk")


def write(output: RasterOutput, target: Path | BinaryIO, _form: Format) -> None:
    """Write a raster that is in memory, to an open file or a new one."""
    if isinstance(target, Path):
        write_geotiff_here(target, output.array, **output.described)
    else:
        write_geotiff(target, output.array, **output.described)


def write_classes(output: PolygonsOutput, file: BinaryIO, form: Format) -> None:
    """Write the raster that polygons are traced in."""
    file.write(output.classes.to_bytes(form.name))


def geotiff_sidecars(class_names: Sequence[str] | None) -> dict[str, bytes | None]:
    """What lies beside a GeoTIFF: suffix behind the file's name -> content; None for a file that must not be there."""
    return {PAM: _categories(class_names) if class_names else None, **dict.fromkeys(_OTHERS)}


def remove_saved(path: str | PurePath) -> None:
    """Remove a file that `save` wrote, and what it wrote beside it; nothing where there is none."""
    saved = place_of(path)
    names = [saved]
    if saved.suffix.lower() in FORMATS["tiff"].suffixes:
        names.append(saved.with_name(saved.name + PAM))
    for name in names:
        if isinstance(name, Path):
            name.unlink(missing_ok=True)
        else:
            remove_in_bucket(name)


def _categories(names: Sequence[str]) -> bytes:
    lines = [f"      <Category>{escape(checked_xml('class_names', name))}</Category>" for name in names]
    opened = ["<PAMDataset>", '  <PAMRasterBand band="1">', "    <CategoryNames>"]
    closed = ["    </CategoryNames>", "  </PAMRasterBand>", "</PAMDataset>"]
    return "\n".join([*opened, *lines, *closed, ""]).encode()
