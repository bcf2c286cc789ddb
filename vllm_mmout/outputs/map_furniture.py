"""Scale bar and north arrow below a map that is drawn by matplotlib."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR_DISTANCE = 14.0
"""Distance between the lower edge of the map and the scale bar, in points."""
_BAR_HEIGHT = 5.0
"""Height of the scale bar in points."""
_ARROW_LENGTH = 22.0
"""Length of the north arrow in points."""
_MAX_BAR_LENGTH = 0.35
"""Maximum length of the scale bar as a fraction of the map's width."""


def draw_scale(axes: Axes, width: int, step: float) -> None:
    """Draw a scale bar below the left corner of a map of ``width`` columns, each ``step`` metres wide."""
    from matplotlib.patches import Rectangle
    from matplotlib.transforms import blended_transform_factory

    length = round_length(width * step * _MAX_BAR_LENGTH)
    columns = length / step
    place = blended_transform_factory(axes.transData, _points_from(axes, 0))  # columns across, points down
    for half, colour in enumerate(("black", "white")):
        axes.add_patch(
            Rectangle(
                (half * columns / 2, -_BAR_DISTANCE - _BAR_HEIGHT),
                columns / 2,
                _BAR_HEIGHT,
                transform=place,
                facecolor=colour,
                edgecolor="black",
                linewidth=0.7,
                clip_on=False,
            )
        )
    for column, text in ((0.0, "0"), (columns, length_text(length))):
        axes.text(column, -_BAR_DISTANCE - _BAR_HEIGHT - 3, text, transform=place, ha="center", va="top", fontsize=8)


def draw_north(axes: Axes, steps: NDArray[np.float64]) -> None:
    """Draw a north arrow below the right corner of a map. ``steps`` is the result of `geo.ground_steps`."""
    from matplotlib.patches import FancyArrowPatch

    right, up = north_on_page(steps)
    place = _points_from(axes, 1)
    x, y = -_ARROW_LENGTH, -_BAR_DISTANCE - 0.75 * _ARROW_LENGTH
    half = _ARROW_LENGTH / 2
    arrow = FancyArrowPatch(
        (x - right * half, y - up * half),
        (x + right * half, y + up * half),
        transform=place,
        arrowstyle="-|>",
        mutation_scale=11,
        color="black",
        linewidth=1.2,
        shrinkA=0,
        shrinkB=0,
        clip_on=False,
    )
    axes.add_patch(arrow)
    reach = half + 6
    axes.text(
        x + right * reach, y + up * reach, "N", transform=place, ha="center", va="center", fontsize=9, weight="bold"
    )


def _points_from(axes: Axes, corner: float) -> Any:
    """Return a matplotlib transform whose origin is a lower corner of a map, and whose unit is the point (1/72 inch).

    ``corner`` is 0 for the left corner and 1 for the right.
    """
    from matplotlib.transforms import Affine2D, ScaledTranslation

    figure: Any = axes.get_figure(root=True)
    map_transform: Any = axes.transAxes
    return Affine2D().scale(1 / 72) + figure.dpi_scale_trans + ScaledTranslation(corner, 0, map_transform)


def north_on_page(steps: NDArray[np.float64]) -> tuple[float, float]:
    """Return the direction of north on a map as a vector (right, up) of length 1. Rows of the map run down the page.

    ``steps`` is the result of `geo.ground_steps` for the raster of the map.
    """
    column, row = np.linalg.solve(steps, np.array([0.0, 1.0]))
    right, up = column * np.hypot(*steps[:, 0]), -row * np.hypot(*steps[:, 1])
    length = math.hypot(right, up)
    return float(right / length), float(up / length)


def round_length(most: float) -> float:
    """Return the largest round length up to ``most``, in metres. Round lengths are 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(most))
    return next(number * power for number in (5, 2, 1) if number * power <= most * (1 + 1e-9))


def length_text(metres: float) -> str:
    """Return a length as text, such as "500 m" or "2 km"."""
    return f"{metres / 1000:g} km" if metres >= 1000 else f"{metres:g} m" if metres >= 1 else f"{metres * 100:g} cm"
