"""The map of the embedded scene, and the noise and distance fields that it is drawn with; numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Field: TypeAlias = NDArray[np.float32]
"""Array float32 [height, width]."""


def smooth_noise(rng: np.random.Generator, shape: tuple[int, int], longest: float, slope: float) -> Field:
    """Return a random field of mean 0 and standard deviation 1, with amplitudes ~ frequency to the power -slope.

    Spectral synthesis (Saupe, in Peitgen & Saupe 1988, The Science of Fractal Images): white noise, filtered.
    ``longest`` is the longest wavelength in pixels. Slope 1 is rough, slope 2 smooth.
    """
    padded = tuple(length + int(min(longest, length)) for length in shape)  # the Fourier transform wraps around
    spectrum = np.fft.rfft2(rng.standard_normal(padded))
    frequency = np.hypot(np.fft.fftfreq(padded[0])[:, None], np.fft.rfftfreq(padded[1])[None])
    spectrum *= (frequency**2 + longest**-2) ** (-slope / 2)
    spectrum[0, 0] = 0
    field = np.fft.irfft2(spectrum, s=padded)[: shape[0], : shape[1]]
    return np.asarray((field - field.mean()) / field.std(), np.float32)


def distance_to(points: NDArray[np.float64], shape: tuple[int, int], reach: float) -> Field:
    """Return each pixel's distance to the nearest of ``points`` (row, col) [n, 2], in pixels, limited to ``reach``."""
    nearest = np.full(shape, reach, np.float32)
    span = int(np.ceil(reach))
    for row, col in points:
        rows = np.arange(max(int(row) - span, 0), min(int(row) + span + 2, shape[0]))
        cols = np.arange(max(int(col) - span, 0), min(int(col) + span + 2, shape[1]))
        if rows.size and cols.size:
            window = nearest[rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1]
            np.minimum(window, np.hypot(rows[:, None] - row, cols[None] - col), out=window, casting="same_kind")
    return nearest


def ramp(field: NDArray[np.floating], low: float, high: float) -> Field:
    """Return 0 below ``low``, 1 above ``high``, and a smooth transition between them."""
    t = np.clip((field - low) / (high - low), 0, 1)
    return np.asarray(t * t * (3 - 2 * t), np.float32)


def cells(
    rng: np.random.Generator, rows: Field, cols: Field, size: tuple[Field | float, Field | float], angle: Field | float
) -> tuple[NDArray[np.int64], Field]:
    """Draw a rotated brick pattern; return the number of each pixel's brick, and the distance to the brick's edge.

    ``rows`` and ``cols`` are the coordinates of each pixel, ``size`` is the short and the long side in pixels, and
    ``angle`` is in radians. Size and angle may be fields that vary from pixel to pixel.
    """
    across = cols * np.cos(angle) + rows * np.sin(angle)
    along = rows * np.cos(angle) - cols * np.sin(angle)
    course = np.floor(across / size[0]).astype(np.int64)
    along = along + rng.random(4096)[course % 4096] * size[1]
    brick = np.floor(along / size[1]).astype(np.int64)
    in_course, in_brick = across / size[0] - course, along / size[1] - brick
    edge = np.minimum(np.minimum(in_course, 1 - in_course) * size[0], np.minimum(in_brick, 1 - in_brick) * size[1])
    return course * 65536 + brick, np.asarray(edge, np.float32)


def patches(rng: np.random.Generator, rows: Field, cols: Field, pitch: float) -> tuple[NDArray[np.int64], Field]:
    """Draw a jittered Voronoi diagram; return the number of each pixel's cell, and the distance to its border.

    ``rows`` and ``cols`` are the coordinates of each pixel; distort them for bent borders. ``pitch`` is the spacing of
    the cells in pixels.
    """
    row, col = (np.floor(side / pitch).astype(np.int64) for side in (rows, cols))
    height, width = (int(side.max() - side.min()) + 3 for side in (row, col))
    row, col = row - row.min() + 1, col - col.min() + 1
    jitter = rng.random((2, height, width))
    offset = (rows / pitch - np.floor(rows / pitch), cols / pitch - np.floor(cols / pitch))
    first, second = (np.full(rows.shape, np.inf, np.float32) for _ in range(2))
    patch = np.zeros(rows.shape, np.int64)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            there = (row + down, col + right)
            reach = np.hypot(jitter[0][there] + down - offset[0], jitter[1][there] + right - offset[1])
            reach = np.asarray(reach * pitch, np.float32)
            nearer = reach < first
            second = np.where(nearer, first, np.minimum(second, reach))
            patch = np.where(nearer, there[0] * width + there[1], patch)
            first = np.minimum(first, reach)
    return patch, np.asarray((second - first) / 2, np.float32)


def draw_per_cell(rng: np.random.Generator, numbers: NDArray[np.int64], columns: int) -> NDArray[np.float32]:
    """Return uniform random numbers in 0..1, equal for all pixels of a cell: [columns, height, width]."""
    unique, place = np.unique(numbers, return_inverse=True)
    return rng.random((columns, len(unique)), np.float32)[:, place.reshape(numbers.shape)]


UNIT = 512
"""Lengths are in units of 1/512 of the scene's shorter side; parcels, houses and roads have fixed sizes in pixels."""

_BEARING = np.deg2rad(58.0)
"""Direction of the valley in radians, from the direction of rows towards that of columns."""
_HALF_VALLEY = 138.0
"""Half the width of the flood plain, in units."""
_TOWNS = ((-120.0, 118.0, 44.0), (150.0, -126.0, 26.0), (60.0, 160.0, 14.0), (-175.0, -150.0, 15.0))
"""Settlements: position along and across the valley, and radius, in units."""


@dataclass(frozen=True, slots=True)
class SceneMap:
    """Map of the scene. Fields are float32 [height, width]; covers are fractions of a pixel, 0..1."""

    elevation: Field
    """Elevation in metres."""
    hills: Field
    """Hilliness: 0 on the flood plain, 1 in the hills."""
    water: Field
    """Fraction of the pixel under water; the truth is water where it is above a half."""
    depth: Field
    """Depth of the water in metres; negative values are the height of the ground above the water."""
    river: Field
    """Distance to the centre line of the river, in units."""
    road: Field
    """Fraction of the pixel under a road."""
    town: Field
    """Density of buildings, 0 to 1."""
    parcels: NDArray[np.int64]
    """Number of the agricultural field that contains the pixel."""
    parcel_edge: Field
    """Distance to the edge of the agricultural field, in pixels."""


class _Frame:
    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.scale = min(shape) / UNIT
        self.rows, self.cols = np.meshgrid(*(np.arange(n, dtype=np.float32) for n in shape), indexing="ij")
        row, col = (self.rows - shape[0] * 0.5) / self.scale, (self.cols - shape[1] * 0.5) / self.scale
        self.along: Field = np.asarray(row * np.cos(_BEARING) + col * np.sin(_BEARING), np.float32)
        self.across: Field = np.asarray(row * np.sin(_BEARING) - col * np.cos(_BEARING), np.float32)

    def points(self, along: NDArray[np.float64], across: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rows and columns [n, 2] of points that are given along and across the valley, in units."""
        row = self.shape[0] * 0.5 + self.scale * (along * np.cos(_BEARING) + across * np.sin(_BEARING))
        col = self.shape[1] * 0.5 + self.scale * (along * np.sin(_BEARING) - across * np.cos(_BEARING))
        return np.stack([row, col], axis=1)

    def noise(self, rng: np.random.Generator, longest: float, slope: float) -> Field:
        """Return smooth noise whose longest wavelength is given in units."""
        return smooth_noise(rng, self.shape, longest * self.scale, slope)


def draw_map(rng: np.random.Generator, shape: tuple[int, int]) -> SceneMap:
    """Draw a river valley in flood; ``shape`` is height and width in pixels."""
    frame = _Frame(shape)
    river = distance_to(_meanders(rng, frame), shape, 60 * frame.scale)
    bends = distance_to(_cut_off_bends(rng, frame), shape, 20 * frame.scale)
    hills = ramp(np.abs(frame.across + 22 * frame.noise(rng, 160, 1.6)), _HALF_VALLEY, _HALF_VALLEY + 70)
    relief = frame.noise(rng, 190, 1.5)
    town = _towns(rng, frame)
    road = ramp(-distance_to(_roads(frame), shape, 8), -1.9, -0.5)
    ground = _plain(rng, frame, river) + 1.6 * ramp(town, 0.0, 0.4) + hills * (6 + 55 * ramp(relief, -2.2, 2.2))
    ground = np.maximum(ground, 0.8 * ramp(road, 0, 0.1) - 0.1)  # roads run on embankments
    width = frame.scale * (6.5 + 1.2 * frame.noise(rng, 60, 1.5))
    channel = np.maximum(width - river, 0.55 * width - bends)
    depth = -ground
    flood = np.clip(0.5 + depth / np.maximum(np.hypot(*np.gradient(depth)), 1e-3), 0, 1)
    water = np.maximum(flood, np.clip(0.5 + channel, 0, 1)) * (1 - road)
    parcels, edge = _parcels(rng, frame)
    return SceneMap(
        elevation=np.asarray(ground + 9 * hills * frame.noise(rng, 60, 1.4), np.float32),
        hills=hills,
        water=np.asarray(water, np.float32),
        depth=np.asarray(np.maximum(depth, np.minimum(channel, 4.0)), np.float32),
        river=np.asarray(river / frame.scale, np.float32),
        road=road,
        town=town,
        parcels=parcels,
        parcel_edge=edge,
    )


def _meanders(rng: np.random.Generator, frame: _Frame) -> NDArray[np.float64]:
    """Return points on the centre line of the river, a sine-generated curve (Langbein & Leopold 1966)."""
    steps = np.arange(0, 3600, 2.0 / max(frame.scale, 0.5))
    step = steps[1] - steps[0]
    wander = np.interp(steps, np.arange(0, 3800, 200), rng.normal(0, 1, 19))
    angle = (1.25 + 0.3 * wander) * np.sin(2 * np.pi * steps / (300 + 25 * np.sin(steps / 410)) + rng.uniform(0, 6))
    along, across = np.cumsum(np.cos(angle)) * step, np.cumsum(np.sin(angle)) * step
    return frame.points(along - along.mean(), across - 0.7 * _running_mean(across, round(800 / step)))


def _cut_off_bends(rng: np.random.Generator, frame: _Frame) -> NDArray[np.float64]:
    turn = np.linspace(-1.9, 1.9, 90)
    bends = [
        frame.points(
            along + side * radius * np.sin(turn + lean) * (1 + 0.12 * np.sin(2 * turn)),
            across + radius * np.cos(turn + lean) * (1 - 0.16 * np.cos(3 * turn)),
        )
        for along, across, radius, lean, side in zip(
            (-95.0, 165.0, 20.0),
            (78.0, -70.0, -95.0),
            rng.uniform(16, 26, 3),
            rng.uniform(-2.2, 2.2, 3),
            (1, -1, 1),
            strict=True,
        )
    ]
    return np.concatenate(bends)


def _plain(rng: np.random.Generator, frame: _Frame, river: Field) -> Field:
    """Return the height of the plain above the flood in metres, with back swamps, levees, and a rise to the sides."""
    swamps = 0.55 * frame.noise(rng, 150, 1.8) + 0.05 * frame.noise(rng, 20, 1.2)
    levee = 0.35 * np.exp(-(((river / frame.scale - 12) / 8) ** 2))
    rise = 1.5 * ramp(np.abs(frame.across + 15 * frame.noise(rng, 120, 1.6)), 55, 150)
    downstream = 0.0015 * frame.along  # the flood is widest at the lower end
    return np.asarray(0.1 + swamps + levee + rise + downstream, np.float32)


def _towns(rng: np.random.Generator, frame: _Frame) -> Field:
    ragged = frame.noise(rng, 40, 1.2)
    town = np.zeros(frame.shape, np.float32)
    for along, across, radius in _TOWNS:
        away = np.hypot(frame.along - along, (frame.across - across) * 1.3) / radius
        town = np.maximum(town, ramp(np.asarray(1.15 - away + 0.28 * ragged, np.float32), 0.0, 0.6))
    return town


def _roads(frame: _Frame) -> NDArray[np.float64]:
    first, second, third, fourth = ((along, across) for along, across, _ in _TOWNS)
    lines = [
        [(-420.0, 132.0), (-260, 138), first, (-30, 134), third, (190, 150), (420, 128)],
        [(-190.0, 420.0), (-150, 200), first, (-88, 40), (-20, -60), (90, -112), second, (240, -180), (300, -420)],
        [(-420.0, -135.0), fourth, (-60, -142), (60, -128), second],
    ]
    points = [np.empty((0, 2))]
    for line in lines:
        corners = np.array(line)
        length = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(corners, axis=0).T))])
        at = np.arange(0, length[-1], 1 / max(frame.scale, 1.0))
        rounded = [_running_mean(np.interp(at, length, side), 20) for side in corners.T]
        points.append(frame.points(rounded[0], rounded[1]))
    return np.concatenate(points)


def _running_mean(values: NDArray[np.float64], reach: int) -> NDArray[np.float64]:
    window = np.full(2 * reach + 1, 1 / (2 * reach + 1))
    return np.convolve(np.pad(values, reach, mode="edge"), window, mode="valid")


def _parcels(rng: np.random.Generator, frame: _Frame) -> tuple[NDArray[np.int64], Field]:
    rows, cols = (side + 6 * smooth_noise(rng, frame.shape, 60, 1.6) for side in (frame.rows, frame.cols))
    block, border = patches(rng, rows, cols, pitch=95)
    turn, short, long = draw_per_cell(rng, block, 3)
    number, edge = cells(rng, frame.rows, frame.cols, (9 + 11 * short, 30 + 45 * long), np.pi * turn)
    return number + (block << 32), np.minimum(edge, border)


def draw_crops(rng: np.random.Generator, parcels: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return three random numbers for each field, [3, height, width]: its crop, its growth and its brightness."""
    return draw_per_cell(rng, parcels, 3)
