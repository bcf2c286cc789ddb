"""Write rasters as GeoTIFF files with their sidecar files, and remove saved files.

GDAL's GTiff driver cannot store category names in the GeoTIFF. It reads them from the PAM file ``NAME.tif.aux.xml``
(https://gdal.org/drivers/raster/gtiff.html, "Metadata"). It would also read overviews from ``NAME.tif.ovr`` and the
mask from ``NAME.tif.msk``, so such files of a replaced GeoTIFF are removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, BinaryIO
from xml.sax.saxutils import escape

from vllm_mmout.geo import checked_xml, is_zarr, place_of, remove_in_bucket, write_geotiff, write_geotiff_here
from vllm_mmout.outputs.formats import FORMATS, Format
from vllm_mmout.outputs.formats.qgis_style import STYLE, is_own_style

if TYPE_CHECKING:
    from vllm_mmout.outputs.formats.contents import ClassesContent, RasterContent

PAM = ".aux.xml"
"""Suffix of GDAL's PAM sidecar file, for metadata that a GeoTIFF itself cannot hold."""
_OTHERS = (".ovr", ".msk")


def write(output: RasterContent, target: Path | BinaryIO, _form: Format) -> None:
    """Write a raster from memory as a GeoTIFF, to a path or an open file."""
    if isinstance(target, Path):
        write_geotiff_here(target, output.array, **output.described)
    else:
        write_geotiff(target, output.array, **output.described)


def write_classes(output: ClassesContent, file: BinaryIO, form: Format) -> None:
    """Write a GeoTIFF of the class raster that the polygons in ``output`` were traced from."""
    file.write(output.classes.to_bytes(form.name))


def geotiff_sidecars(
    target: PurePath, class_names: Sequence[str] | None, style: bytes | None = None
) -> dict[str, bytes | None]:
    """Return the sidecar files of the GeoTIFF ``target`` as name -> content. None marks an old sidecar file to remove.

    ``style`` is written beside a local file as ``.qml``. QGIS does not look for styles in buckets.
    """
    categories = _categories(class_names) if class_names else None
    files = {target.name + PAM: categories, **{target.name + suffix: None for suffix in _OTHERS}}
    style_file = target.with_suffix(STYLE)
    if isinstance(style_file, Path) and is_own_style(style_file):
        files[style_file.name] = style
    return files


def remove_saved(path: str | PurePath) -> None:
    """Remove a file or a Zarr store that `save` wrote, and its sidecar files, if they exist."""
    saved = place_of(path)
    files = [saved]
    if saved.suffix.lower() in FORMATS["tiff"].suffixes:
        files.append(saved.with_name(saved.name + PAM))
        style = saved.with_suffix(STYLE)
        if isinstance(style, Path) and is_own_style(style):
            files.append(style)
    for file in files:
        if isinstance(file, Path) and file.is_dir() and is_zarr(file):
            shutil.rmtree(file)
        elif isinstance(file, Path):
            file.unlink(missing_ok=True)
        else:
            remove_in_bucket(file)


def _categories(names: Sequence[str]) -> bytes:
    lines = [f"      <Category>{escape(checked_xml('class_names', name))}</Category>" for name in names]
    opened = ["<PAMDataset>", '  <PAMRasterBand band="1">', "    <CategoryNames>"]
    closed = ["    </CategoryNames>", "  </PAMRasterBand>", "</PAMDataset>"]
    return "\n".join([*opened, *lines, *closed, ""]).encode()
