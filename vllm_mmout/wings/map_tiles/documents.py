"""Build documents that tell map clients the URLs of a result's tiles: TileJSON and WMTS capabilities."""

from __future__ import annotations

from html import escape
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, register_namespace, tostring

from vllm_mmout.wings.map_tiles.map_layer import MapLayer
from vllm_mmout.wings.map_tiles.web_mercator import HALF, SIDE, Box, tile_range

_WMTS: Final = "http://www.opengis.net/wmts/1.0"
_OWS: Final = "http://www.opengis.net/ows/1.1"
_XLINK: Final = "http://www.w3.org/1999/xlink"
_SET: Final = "WebMercatorQuad"
_PIXEL: Final = 0.00028
"""Pixel width in metres that the WMTS standard assumes for scale denominators (OGC 07-057r7, section 6.1)."""
_URN: Final = "urn:ogc:def:crs:EPSG::3857"
for _prefix, _namespace in (("", _WMTS), ("ows", _OWS), ("xlink", _XLINK)):
    register_namespace(_prefix, _namespace)


def tilejson(layer: MapLayer, template: str) -> dict[str, Any]:
    """Return the TileJSON 3.0 document that describes the map tiles of a result.

    Clients may read ``attribution`` as HTML, so the text in it is escaped. The legend of the classes is in the key
    ``classes``, which is not part of TileJSON. Results that are not classes have the ``range`` that is drawn from black
    to white. A growing result has neither.

    Args:
        layer: the result.
        template: URL of the tiles with the placeholders {z}, {x} and {y}.

    """
    bounds, classes, finest = _bounds(layer), layer.classes, layer.finest
    box = layer.boxes[0]
    legend: dict[str, Any] = {} if layer.growing else {"range": layer.limits}
    if classes is not None:
        legend = {"classes": [{"id": number, "name": name, "color": color} for number, name, color in classes]}
    return {
        "tilejson": "3.0.0",
        "name": layer.made_by or "result",
        "attribution": escape(layer.made_by),
        "scheme": "xyz",
        "tiles": [template],
        "bounds": bounds,
        "center": [(box.west + box.east) / 2, (box.south + box.north) / 2, max(finest - 2, 0)],
        "minzoom": 0,
        "maxzoom": finest,
        **legend,
    }


def capabilities(layer: MapLayer, template: str) -> bytes:
    """Return the WMTS 1.0.0 capabilities document (OGC 07-057r7) that describes the map tiles of a result.

    The tile matrix set is WebMercatorQuad.

    Args:
        layer: the result.
        template: URL of the tiles with the placeholders {z}, {x} and {y}.

    """
    root = Element(f"{{{_WMTS}}}Capabilities", version="1.0.0")
    service = SubElement(root, f"{{{_OWS}}}ServiceIdentification")
    _texts(service, _OWS, Title="vllm_mmout", ServiceType="OGC WMTS", ServiceTypeVersion="1.0.0")
    contents = SubElement(root, f"{{{_WMTS}}}Contents")
    described = SubElement(contents, f"{{{_WMTS}}}Layer")
    _texts(described, _OWS, Title=layer.made_by or "result")
    west, south, east, north = _bounds(layer)
    box = SubElement(described, f"{{{_OWS}}}WGS84BoundingBox")
    _texts(box, _OWS, LowerCorner=f"{west!r} {south!r}", UpperCorner=f"{east!r} {north!r}")
    _texts(described, _OWS, Identifier="result")
    _texts(SubElement(described, f"{{{_WMTS}}}Style", isDefault="true"), _OWS, Identifier="default")
    _texts(described, _WMTS, Format="image/png")
    link = SubElement(described, f"{{{_WMTS}}}TileMatrixSetLink")
    _texts(link, _WMTS, TileMatrixSet=_SET)
    limits = SubElement(link, f"{{{_WMTS}}}TileMatrixSetLimits")
    for name, wmts_name in (("{z}", "{TileMatrix}"), ("{x}", "{TileCol}"), ("{y}", "{TileRow}")):
        template = template.replace(name, wmts_name)
    SubElement(described, f"{{{_WMTS}}}ResourceURL", format="image/png", resourceType="tile", template=template)
    matrices = SubElement(contents, f"{{{_WMTS}}}TileMatrixSet")
    _texts(matrices, _OWS, Identifier=_SET, SupportedCRS=_URN)
    _texts(matrices, _WMTS, WellKnownScaleSet="urn:ogc:def:wkss:OGC:1.0:GoogleMapsCompatible")
    for zoom in range(layer.finest + 1):
        _matrix(matrices, zoom)
        rows_and_columns = map(str, tile_range(Box(west, south, east, north), zoom))
        names = ("MinTileRow", "MaxTileRow", "MinTileCol", "MaxTileCol")
        entry = SubElement(limits, f"{{{_WMTS}}}TileMatrixLimits")
        _texts(entry, _WMTS, TileMatrix=str(zoom), **dict(zip(names, rows_and_columns, strict=True)))
    document: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _matrix(matrices: Element, zoom: int) -> None:
    matrix, count = SubElement(matrices, f"{{{_WMTS}}}TileMatrix"), str(2**zoom)
    _texts(matrix, _OWS, Identifier=str(zoom))
    _texts(
        matrix,
        _WMTS,
        ScaleDenominator=repr(2 * HALF / SIDE / 2**zoom / _PIXEL),
        TopLeftCorner=f"{-HALF!r} {HALF!r}",
        TileWidth=str(SIDE),
        TileHeight=str(SIDE),
        MatrixWidth=count,
        MatrixHeight=count,
    )


def _texts(parent: Element, namespace: str, **texts: str) -> None:
    """Append child elements with texts to ``parent``. Each keyword argument ``tag=text`` becomes one child element."""
    for name, text in texts.items():
        SubElement(parent, f"{{{namespace}}}{name}").text = text


def _bounds(layer: MapLayer) -> tuple[float, float, float, float]:
    """Return the bounds of a layer in degrees: west, south, east, north.

    A layer that crosses 180 degrees gets all longitudes, since TileJSON and WMTS have no other way to say it.
    """
    west, south, east, north = layer.boxes[0]
    return (west, south, east, north) if len(layer.boxes) == 1 else (-180.0, south, 180.0, north)
