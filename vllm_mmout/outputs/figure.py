"""Figures for reports: a map over the picture of its input, with legend, scale bar, north arrow and areas."""

from __future__ import annotations

import copy
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import OptionError
from vllm_mmout.geo import Raster, Window, are_classes, ground_steps
from vllm_mmout.outputs.map_furniture import draw_north, draw_scale
from vllm_mmout.outputs.placed_pictures import given_picture
from vllm_mmout.outputs.rendering import colour_of_class, default_palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image

    from vllm_mmout.geo import Georeference
    from vllm_mmout.outputs.class_areas import ClassArea
    from vllm_mmout.outputs.input_picture import InputPicture

_MAP_SIDE = 6.0
"""Maximum width and height of the map in inches."""
_LEGEND_WIDTH = 2.4
"""Width of the legend in inches."""
_MARGINS = 1.1
"""Height of title, scale bar and footer together, in inches."""
_STRIP = 512
"""Number of rows of a raster that are read at a time."""
_MAX_PIXELS = 1600
"""Maximum width and height of a picture in a figure, in pixels."""
_OPACITY = 0.6
"""Default opacity of a map of classes that is drawn over the picture of its input."""
_MAX_CLASSES = 24
"""Maximum number of classes in a legend. The last line says how many smaller classes are left out."""
_CHARACTERS_PER_INCH = 13
"""Number of characters of the footer that fit in an inch."""
_LINE_HEIGHT = 0.13
"""Height of a line of the footer in inches."""
_MAX_ASSUMPTIONS = 5
"""Maximum number of assumptions about the input in a figure's footer. The last line says how many assumptions are left
out."""
_LARGE_AREA = 1e5
"""Area in square metres from which areas are shown in square kilometres."""


class DrawnRaster(Protocol):
    """Interface of a raster that can be drawn in a figure, such as `RasterOutput`."""

    nodata: float | None
    georeference: Georeference | None
    band_names: tuple[str | None, ...]
    units: tuple[str | None, ...]
    class_names: tuple[str, ...] | None
    palette: NDArray[np.uint8] | None
    metadata: dict[str, str]
    assumed: tuple[str, ...]
    input_picture: InputPicture | None

    @property
    def count(self) -> int:
        """Number of bands."""

    @property
    def height(self) -> int:
        """Number of rows."""

    @property
    def width(self) -> int:
        """Number of columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the pixels."""

    @property
    def crs(self) -> str | None:
        """Coordinate system as "EPSG:n" or WKT, or None if unknown."""

    @property
    def image(self) -> Image:
        """Picture of the raster, with transparent nodata."""

    def read(self, window: Window) -> NDArray[Any]:
        """Return the pixels [bands, height, width] of a window."""


def new_figure(width: float, height: float) -> Figure:
    """Create a figure of a size in inches. It is not registered with pyplot, so that threads can make figures."""
    try:
        from matplotlib.figure import Figure as MatplotlibFigure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'a figure needs matplotlib; pip install "vllm-mmout[figure]"', name="matplotlib"
        ) from error
    return MatplotlibFigure(figsize=(width, height), dpi=150, layout="constrained")


def raster_figure(
    raster: DrawnRaster, *, title: str | None = None, picture: Any = None, opacity: float | None = None
) -> Figure:
    """Draw a raster as a figure, for `RasterOutput.figure`."""
    classes = raster.count == 1 and are_classes(raster.dtype, raster.class_names, raster.palette)
    # Over a picture, values would have other colours than in the colour bar.
    opacity = (_OPACITY if classes else 1.0) if opacity is None else opacity
    if not 0 < opacity <= 1:
        raise OptionError(f"opacity must be above 0 and at most 1, got {opacity}", param="opacity")
    steps = ground_steps(raster.georeference, (raster.height, raster.width))
    # Pixels may be oblong on the ground, as degrees of longitude are shorter than degrees of latitude.
    lengths = np.ones(2) if steps is None else np.hypot(*steps)
    height, width = _map_size(raster.height * lengths[1], raster.width * lengths[0])
    figure = new_figure(width + _LEGEND_WIDTH, height + _MARGINS)
    axes = figure.add_subplot()
    extent = (0, raster.width, raster.height, 0)
    shown: dict[str, Any] = {"extent": extent, "aspect": float(lengths[1] / lengths[0])}
    asked = picture is not None and not isinstance(picture, bool)  # then it shows at nodata at least
    below = _background(raster, picture) if opacity < 1 or asked else None
    if below is not None:
        axes.imshow(_smaller(below), **shown)
    alpha = 1.0 if below is None else opacity
    if classes:
        _draw_classes(axes, raster, alpha, shown)
    elif raster.count == 3:
        axes.imshow(_smaller(raster.image), alpha=alpha, **shown)
    else:
        _draw_values(figure, axes, raster, alpha, shown)
    axes.set_anchor("NW")
    axes.set(xticks=[], yticks=[], xlim=extent[:2], ylim=extent[2:])
    if steps is not None:
        draw_scale(axes, raster.width, float(lengths[0]))
        draw_north(axes, steps)
    _write_around(figure, axes, raster, title)
    return figure


def areas_figure(
    classes: Sequence[ClassArea], colour_of: Callable[[int], tuple[int, int, int]], *, title: str | None = None
) -> Figure:
    """Draw the areas of classes as bars, for `AreasOutput.figure`."""
    listed = _largest([area for area in classes if area.pixels])
    figure = new_figure(_MAP_SIDE + 1, max(2.0, 0.32 * len(listed) + 1.2))
    axes = figure.add_subplot()
    values, unit = _in_one_unit(listed)
    bars = axes.barh(range(len(listed)), values, color=[_of_255(colour_of(area.id)) for area in listed])
    axes.bar_label(bars, [f" {area.share:.1%}" for area in listed], fontsize=8)
    axes.set_yticks(range(len(listed)), [_name(area) for area in listed], fontsize=9, parse_math=False)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title or "Areas", loc="left", parse_math=False)
    return figure


def _map_size(height: float, width: float) -> tuple[float, float]:
    """Return (height, width) of a map in inches: `_MAP_SIDE` for the longer side, and a fifth or more for the other."""
    scale = _MAP_SIDE / max(height, width)
    return max(height * scale, _MAP_SIDE / 5), max(width * scale, _MAP_SIDE / 5)


def _background(raster: DrawnRaster, picture: Any) -> Image | None:
    """Return the picture to draw behind a map: the user's ``picture``, or else a picture of the model's input.

    Return None if ``picture`` is False, or if the raster does not know its input, for example after unpickling.
    """
    if picture is False:
        return None
    if picture is None or picture is True:
        return None if raster.input_picture is None else raster.input_picture()
    return given_picture(picture, raster.georeference, (raster.height, raster.width))


def _draw_classes(axes: Axes, raster: DrawnRaster, alpha: float, shown: dict[str, Any]) -> None:
    from matplotlib.patches import Patch

    from vllm_mmout.outputs.class_areas import count_areas  # imports pydantic, which may be missing

    areas, _ = count_areas(raster)
    if raster.palette is None:
        raster = copy.copy(raster)
        raster.palette = default_palette(1 + max((area.id for area in areas), default=0))
    axes.imshow(_smaller(raster.image, classes=True), alpha=alpha, interpolation="nearest", **shown)
    present = [area for area in areas if area.pixels]
    listed = _largest(present)
    patches = [
        Patch(facecolor=_of_255(colour_of_class(raster.palette, area.id)), edgecolor="0.3", linewidth=0.5, label=text)
        for area, text in zip(listed, _legend_texts(listed), strict=True)
    ]
    if len(listed) < len(present):
        patches.append(Patch(facecolor="none", label=f"and {len(present) - len(listed)} smaller classes"))
    if not patches:
        return
    legend = axes.legend(
        handles=patches, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0, frameon=False, fontsize=9
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # "$" in a class name does not begin a formula


def _draw_values(figure: Figure, axes: Axes, raster: DrawnRaster, alpha: float, shown: dict[str, Any]) -> None:
    drawn = axes.imshow(_sampled(raster), alpha=alpha, cmap="viridis", interpolation="nearest", **shown)
    bar = figure.colorbar(drawn, ax=axes, shrink=0.8)
    words = [texts[0] for texts in (raster.band_names, raster.units) if texts and texts[0]]
    bar.set_label(" in ".join(words) if len(words) == 2 else "".join(words), parse_math=False)
    if bar.solids is not None:
        bar.solids.set_alpha(1)


def _sampled(raster: DrawnRaster) -> Any:
    """Return the first band as a masked array, reduced to at most 1600 x 1600 pixels by skipping pixels."""
    step = math.ceil(max(raster.height, raster.width) / _MAX_PIXELS)
    rows = step * max(1, _STRIP // step)
    windows = (Window(row, 0, min(rows, raster.height - row), raster.width) for row in range(0, raster.height, rows))
    values = np.concatenate([raster.read(window)[0, ::step, ::step] for window in windows])
    valid = Raster(values[None], nodata=raster.nodata).valid()
    unusable = ~np.isfinite(values) if values.dtype.kind == "f" else np.zeros(values.shape, np.bool_)
    masked: Any = np.ma.masked_array  # NumPy does not type its parameters
    return masked(values, unusable if valid is None else unusable | ~valid)


def _write_around(figure: Figure, axes: Axes, raster: DrawnRaster, title: str | None) -> None:
    """Write the title, and a footer with the model, the coordinate system and the assumptions about the input."""
    model = raster.metadata.get("MMOUT_MODEL")
    heading = model or "Result" if title is None else title
    if heading:
        axes.set_title(heading, loc="left", fontsize=12, parse_math=False)
    crs = raster.crs if raster.crs is not None and len(raster.crs) < 40 else None
    lines = [" · ".join(filter(None, [model and f"Model {model}", crs, "north is true north" if crs else None]))]
    lines += [f"Assumed: {sentence}" for sentence in raster.assumed[:_MAX_ASSUMPTIONS]]
    if len(raster.assumed) > _MAX_ASSUMPTIONS:
        more = len(raster.assumed) - _MAX_ASSUMPTIONS
        lines.append(f"{more} more in the metadata of the result, MMOUT_ASSUMED")
    letters = int(figure.get_figwidth() * _CHARACTERS_PER_INCH)
    wrapped = [line for sentence in lines if sentence for line in textwrap.wrap(sentence, letters)]
    if wrapped:
        text = "\n".join(wrapped)
        figure.set_figheight(figure.get_figheight() + _LINE_HEIGHT * (len(wrapped) - 1))  # the map keeps its size
        figure.supxlabel(text, x=0.02, ha="left", fontsize=7, color="0.35", parse_math=False)


def _smaller(picture: Image, *, classes: bool = False) -> NDArray[np.uint8]:
    """Return a picture as an array, reduced to at most 1600 x 1600 pixels."""
    from PIL import Image

    longer = max(picture.size)
    if longer > _MAX_PIXELS:
        size = tuple(max(1, round(side * _MAX_PIXELS / longer)) for side in picture.size)
        ways = Image.Resampling
        picture = picture.resize(size, ways.NEAREST if classes else ways.BOX)  # type: ignore[arg-type]
    return np.asarray(picture.convert("RGBA"))


def _largest(areas: Sequence[ClassArea]) -> list[ClassArea]:
    """Return the largest classes, as many as a legend can hold, the largest first."""
    return sorted(areas, key=lambda area: -area.pixels)[:_MAX_CLASSES]


def _name(area: ClassArea) -> str:
    return textwrap.shorten(area.name or f"class {area.id}", 28, placeholder="…")


def _legend_texts(areas: Sequence[ClassArea]) -> list[str]:
    values, unit = _in_one_unit(areas)
    return [
        f"{_name(area)}\n{area.share:.1%}, {_number(value)} {unit}" for area, value in zip(areas, values, strict=True)
    ]


def _in_one_unit(areas: Sequence[ClassArea]) -> tuple[list[float], str]:
    """Return the areas of classes in a common unit, and the unit's name. The unit is "pixels" if an area is unknown."""
    metres = [area.area_m2 for area in areas if area.area_m2 is not None]
    if len(metres) < len(areas):
        return [float(area.pixels) for area in areas], "pixels"
    if max(metres, default=0.0) < _LARGE_AREA:
        return metres, "m²"
    return [area / 1e6 for area in metres], "km²"


def _number(value: float) -> str:
    """Format a number with about three significant digits, without rounding digits before the decimal point."""
    digits = 2 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}" if not value.is_integer() else f"{value:,.0f}"


def _of_255(colour: tuple[int, int, int]) -> tuple[float, float, float]:
    red, green, blue = colour
    return red / 255, green / 255, blue / 255
