"""The files beside a GeoTIFF: GDAL's PAM, where it and QGIS find the names of classes, and what must not stay there.

GDAL's GTiff driver has no place for category names in the file itself; it reads them from ``NAME.tif.aux.xml``
(https://gdal.org/drivers/raster/gtiff.html, "Metadata"). It would also take ``NAME.tif.ovr`` and ``NAME.tif.msk`` of an
older file for overviews and mask of the new one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from vllm_mmout.raster.gdal_metadata import checked_xml

if TYPE_CHECKING:
    from collections.abc import Sequence

PAM = ".aux.xml"
"""What GDAL appends to a file's name for what the file cannot hold."""
_OTHERS = (".ovr", ".msk")
_SUFFIXES = (".tif", ".tiff")


def geotiff_sidecars(class_names: Sequence[str] | None) -> dict[str, bytes | None]:
    """What lies beside a GeoTIFF.

    Args:
        class_names: name of each class, from 0.

    Returns:
        Suffix behind the file's name -> content; None for a file that must not be there.

    Raises:
        SaveError: a name has characters that XML cannot hold.

    """
    return {PAM: _categories(class_names) if class_names else None, **dict.fromkeys(_OTHERS)}


def remove_saved(path: str | Path) -> None:
    """Remove a file that `save` wrote, and what it wrote beside it; nothing where there is none.

    Raises:
        OSError: it cannot be removed.

    """
    saved = Path(path)
    saved.unlink(missing_ok=True)
    if saved.suffix.lower() in _SUFFIXES:
        saved.with_name(saved.name + PAM).unlink(missing_ok=True)


def _categories(names: Sequence[str]) -> bytes:
    lines = [f"      <Category>{escape(checked_xml('class_names', name))}</Category>" for name in names]
    opened = ["<PAMDataset>", '  <PAMRasterBand band="1">', "    <CategoryNames>"]
    closed = ["    </CategoryNames>", "  </PAMRasterBand>", "</PAMDataset>"]
    return "\n".join([*opened, *lines, *closed, ""]).encode()
