"""Write QGIS styles of class rasters. QGIS loads ``NAME.qml`` together with ``NAME.tif``.

From the GeoTIFF alone QGIS 3.22 makes a legend of all 256 entries of the colour table. A GeoTIFF of more than 8 bits
has no colour table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import quoteattr

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo import checked_xml
from vllm_mmout.outputs.rendering import default_palette

STYLE: Final = ".qml"
"""Suffix of a QGIS style file. The style of ``NAME.tif`` is ``NAME.qml``."""
_OWN_MARK: Final = b"<!-- written by vllm_mmout beside a raster of classes -->"
"""Comment that identifies a style file of this package. QGIS drops the comment when a user saves the style. A file
without the comment is never overwritten."""
_HEAD_BYTES: Final = 1024
"""Number of bytes at the start of a style file that are searched for the comment `_OWN_MARK`."""


def qgis_style(class_names: Sequence[str] | None, palette: NDArray[np.uint8] | None) -> bytes:
    """Return a style with the name and the colour of each class.

    Without names the classes are labelled by their numbers. Without a palette they get the package's usual colours.
    """
    names = (
        list(class_names) if class_names else [str(number) for number in range(0 if palette is None else len(palette))]
    )
    colours = (default_palette(len(names)) if palette is None else palette).tolist()
    colours += [[0, 0, 0]] * (len(names) - len(colours))
    entries = [
        f'        <paletteEntry value="{number}" color="#{bytes(colours[number]).hex()}" alpha="255"'
        f" label={quoteattr(checked_xml('class_names', name))}/>"
        for number, name in enumerate(names)
    ]
    opened = [
        "<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>",
        _OWN_MARK.decode(),
        '<qgis version="3.22.0" styleCategories="Symbology">',
        "  <pipe>",
        '    <rasterrenderer type="paletted" band="1" opacity="1" alphaBand="-1">',
        "      <colorPalette>",
    ]
    closed = ["      </colorPalette>", "    </rasterrenderer>", "  </pipe>", "</qgis>", ""]
    return "\n".join([*opened, *entries, *closed]).encode()


def is_own_style(path: Path) -> bool:
    """Return whether a style file was written by this package. Return False after a user has saved the file in QGIS.

    Return True if the file is missing, too. Only a file for which the result is True may be overwritten or removed.
    """
    try:
        with path.open("rb") as file:
            return _OWN_MARK in file.read(_HEAD_BYTES)
    except FileNotFoundError:
        return True
    except OSError:
        return False
