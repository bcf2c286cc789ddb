"""Noise and distance fields, the brushes that the embedded scene is drawn with; numpy only."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Field: TypeAlias = NDArray[np.float32]
"""float32 [height, width]."""


def smooth_noise(rng: np.random.Generator, shape: tuple[int, int], longest: float, slope: float) -> Field:
    """Random field with mean 0 and standard deviation 1 whose amplitudes fall with the frequency to the power -slope.

    Spectral synthesis (Saupe, in Peitgen & Saupe 1988, The Science of Fractal Images): white noise, filtered.

    Args:
        rng: source of randomness.
        shape: height and width, in pixels.
        longest: longest wavelength, in pixels.
        slope: 1 is rough, 2 smooth.

    """
    padded = tuple(length + int(min(longest, length)) for length in shape)  # the Fourier transform wraps around
    spectrum = np.fft.rfft2(rng.standard_normal(padded))
    frequency = np.hypot(np.fft.fftfreq(padded[0])[:, None], np.fft.rfftfreq(padded[1])[None])
    spectrum *= (frequency**2 + longest**-2) ** (-slope / 2)
    spectrum[0, 0] = 0
    field = np.fft.irfft2(spectrum, s=padded)[: shape[0], : shape[1]]
    return np.asarray((field - field.mean()) / field.std(), np.float32)


def distance_to(points: NDArray[np.float64], shape: tuple[int, int], reach: float) -> Field:
    """Distance of each pixel to the nearest of many points, in pixels, ``reach`` where none is nearer.

    Args:
        points: rows and columns, [n, 2].
        shape: height and width.
        reach: largest distance of interest.

    """
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
    """0 below ``low``, 1 above ``high``, smooth between."""
    t = np.clip((field - low) / (high - low), 0, 1)
    return np.asarray(t * t * (3 - 2 * t), np.float32)


def cells(
    rng: np.random.Generator, rows: Field, cols: Field, size: tuple[Field | float, Field | float], angle: Field | float
) -> tuple[NDArray[np.int64], Field]:
    """A turned brickwork of rectangles: the number of each pixel's rectangle, and its distance to the rectangle's edge.

    Args:
        rng: source of the offsets between courses.
        rows: row of each pixel.
        cols: column of each pixel.
        size: short and long side, in pixels; a field where it differs from place to place.
        angle: turn, in radians; a field where it differs from place to place.

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
    """Irregular polygons, a Voronoi diagram of a jittered grid: each pixel's polygon, and its distance to the border.

    Args:
        rng: source of the jitter.
        rows: row of each pixel; distort it for bent borders.
        cols: column of each pixel.
        pitch: mean size of the polygons, in pixels.

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
    """Uniform random numbers in 0..1, the same for all pixels of a cell: [columns, height, width]."""
    unique, place = np.unique(numbers, return_inverse=True)
    return rng.random((columns, len(unique)), np.float32)[:, place.reshape(numbers.shape)]
