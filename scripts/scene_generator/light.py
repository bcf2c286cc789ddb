"""Light in the embedded scene: reflectance of each surface, shade, clouds, and the sensor's noise."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from scene_generator.scene_map import Field, SceneMap, cells, draw_crops, draw_per_cell, ramp, smooth_noise

# Surface reflectance in blue, green, red, narrow NIR, SWIR 1, SWIR 2 (Sentinel-2 bands 2, 3, 4, 8A, 11, 12): rounded
# values, typical of such surfaces in the USGS Spectral Library Version 7 (Kokaly et al. 2017, USGS Data Series 1035)
# and the ECOSTRESS spectral library (Meerdink et al. 2019); turbid water after Doxaran et al. (2002), Remote Sensing of
# Environment 81, 149-161.
SPECTRA: Final = {
    "clear water": (0.040, 0.046, 0.030, 0.012, 0.006, 0.004),
    "turbid water": (0.080, 0.118, 0.128, 0.072, 0.016, 0.010),
    "lush crop": (0.028, 0.066, 0.032, 0.440, 0.190, 0.085),
    "young crop": (0.050, 0.088, 0.082, 0.290, 0.230, 0.145),
    "meadow": (0.038, 0.078, 0.056, 0.330, 0.225, 0.120),
    "forest": (0.020, 0.040, 0.023, 0.280, 0.115, 0.050),
    "bare soil": (0.082, 0.120, 0.160, 0.240, 0.320, 0.270),
    "stubble": (0.085, 0.135, 0.185, 0.290, 0.350, 0.260),
    "wet soil": (0.050, 0.070, 0.088, 0.130, 0.125, 0.085),
    "concrete": (0.170, 0.200, 0.215, 0.250, 0.270, 0.245),
    "asphalt": (0.085, 0.098, 0.106, 0.125, 0.145, 0.135),
    "roof tiles": (0.085, 0.110, 0.185, 0.250, 0.285, 0.235),
    "metal roof": (0.300, 0.320, 0.330, 0.350, 0.310, 0.280),
    "cloud": (0.640, 0.630, 0.620, 0.640, 0.470, 0.360),
}

_SKYLIGHT = (0.24, 0.17, 0.12, 0.07, 0.03, 0.02)
"""Fraction of the light in each band that comes from the sky, which is the light in a shadow."""
_CLARITY = (0.9, 1.0, 0.8, 0.15, 0.0, 0.0)
"""Visibility of the bottom of shallow water in each band, 0 to 1: water absorbs infrared within millimetres."""
_NOISE = (0.0022, 0.0020, 0.0020, 0.0030, 0.0028, 0.0026)
"""Standard deviation of the sensor's noise in each band, in reflectance."""
_SUN = (np.deg2rad(152.0), np.deg2rad(41.0))
"""Azimuth and elevation of the sun in radians."""


def _column(values: tuple[float, ...]) -> NDArray[np.float32]:  # broadcasts to [6, height, width]
    return np.array(values, np.float32)[:, None, None]


def _lay(image: NDArray[np.float32], cover: Field | float, spectrum: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(image + cover * (spectrum - image), np.float32)


def reflectance(rng: np.random.Generator, scene: SceneMap, pixel_size: float) -> NDArray[np.float32]:
    """Return the reflectance of the ground under sun and sky, float32 [6, height, width]; ``pixel_size`` in metres."""
    land = _fields(rng, scene)
    land = _woods(rng, scene, land)
    land = _built(rng, scene, land)
    texture = smooth_noise(rng, scene.water.shape, 30, 0.7)
    land = land * (1 + 0.045 * texture)
    ground = _lay(land, scene.water, _water(rng, scene, land))
    shade = _shade(scene.elevation, pixel_size)
    sky = _column(_SKYLIGHT)
    return np.asarray(ground * (shade * (1 - sky) + sky), np.float32)


def _fields(rng: np.random.Generator, scene: SceneMap) -> NDArray[np.float32]:
    kind, growth, bright = draw_crops(rng, scene.parcels)
    shares = (0.26, 0.20, 0.22, 0.13, 0.12, 0.07)
    names = ("lush crop", "young crop", "meadow", "bare soil", "stubble", "wet soil")
    towards = ("young crop", "bare soil", "lush crop", "stubble", "meadow", "bare soil")
    first, second = (_column_table(each)[:, np.searchsorted(np.cumsum(shares)[:-1], kind)] for each in (names, towards))
    within = smooth_noise(rng, kind.shape, 40, 1.3)
    image = _lay(first, np.clip(0.55 * growth + 0.08 * within, 0, 1), second) * (0.88 + 0.24 * bright)
    image = _lay(image, scene.hills * ramp(within + 2 * growth, 0.2, 1.4), _column(SPECTRA["meadow"]))
    image = _lay(image, 0.55 * ramp(-scene.parcel_edge, -1.1, -0.2), _column(SPECTRA["young crop"]))
    wet = 0.75 * ramp(scene.depth, -0.35, 0.0) * (1 - scene.hills)
    return _lay(image, wet * (1 - ramp(-scene.river, -6.0, 0.0)), 0.6 * image + 0.4 * _column(SPECTRA["wet soil"]))


def _woods(rng: np.random.Generator, scene: SceneMap, land: NDArray[np.float32]) -> NDArray[np.float32]:
    shape = scene.water.shape
    patches = smooth_noise(rng, shape, 90, 1.3)
    forest = ramp(patches + 1.7 * scene.hills, 1.25, 1.45) * ramp(scene.hills, 0.15, 0.4)
    gallery = ramp(smooth_noise(rng, shape, 30, 1.2) - (np.abs(scene.river - 11) / 4), -0.7, -0.3)
    hedge = 0.7 * ramp(-scene.parcel_edge, -1.5, -0.6) * ramp(smooth_noise(rng, shape, 120, 1.2), 0.5, 0.9)
    trees = np.maximum(np.maximum(forest, gallery), hedge)
    crowns = 1 + 0.16 * smooth_noise(rng, shape, 5, 0.8)
    return _lay(land, trees, _column(SPECTRA["forest"]) * crowns)


def _built(rng: np.random.Generator, scene: SceneMap, land: NDArray[np.float32]) -> NDArray[np.float32]:
    rows, cols = np.meshgrid(*(np.arange(n, dtype=np.float32) for n in scene.water.shape), indexing="ij")
    houses, street = cells(rng, rows, cols, (4.0, 6.0), 0.5)
    kind, bright, garden = draw_per_cell(rng, houses, 3)
    names = ("roof tiles", "concrete", "asphalt", "metal roof")
    roof = _column_table(names)[:, np.searchsorted((0.5, 0.8, 0.96), kind)] * (0.8 + 0.4 * bright)
    land = _lay(land, 0.75 * (garden < 0.9 * scene.town), roof)
    streets = 0.55 * ramp(-street, -1.0, -0.2) * ramp(scene.town, 0.2, 0.5)
    return _lay(land, np.maximum(streets, 0.85 * scene.road), _column(SPECTRA["asphalt"]))


def _water(rng: np.random.Generator, scene: SceneMap, land: NDArray[np.float32]) -> NDArray[np.float32]:
    shape = scene.water.shape
    swirl = smooth_noise(rng, shape, 110, 1.5)
    load = np.clip(0.62 + 0.22 * swirl + 0.4 * ramp(-scene.river, -14.0, -4.0), 0.02, 1.15)
    water = _lay(np.broadcast_to(_column(SPECTRA["clear water"]), land.shape), load, _column(SPECTRA["turbid water"]))
    bottom = 0.5 * np.exp(-np.maximum(scene.depth, 0) / 0.12) * _column(_CLARITY)
    water = _lay(water, np.asarray(0.35 * bottom, np.float32), land)
    plants = 0.75 * ramp(smooth_noise(rng, shape, 26, 1.1) - 2.2 * np.maximum(scene.depth, 0), 0.75, 1.7)
    return _lay(water, plants, _column(SPECTRA["meadow"]))


def _shade(elevation: Field, pixel_size: float) -> Field:
    """Return the direct light on slopes, relative to level ground (Lambert)."""
    azimuth, height = _SUN
    down, right = np.gradient(elevation / pixel_size)
    facing = -right * np.sin(azimuth) * np.cos(height) + down * np.cos(azimuth) * np.cos(height) + np.sin(height)
    return np.asarray(np.clip(facing / np.sqrt(1 + down**2 + right**2) / np.sin(height), 0.15, 1.7), np.float32)


def add_clouds(rng: np.random.Generator, image: NDArray[np.float32], scale: float) -> tuple[NDArray[np.float32], Field]:
    """Add cumulus clouds and their shadows to reflectance [6, height, width]; return the image and the opacity, 0..1.

    ``scale`` is the number of pixels per unit of the map.
    """
    shape = (image.shape[1], image.shape[2])
    heaps = smooth_noise(rng, shape, 80 * scale, 1.6) + 0.16 * smooth_noise(rng, shape, 22 * scale, 1.1)
    heaps = heaps + 0.6 * smooth_noise(rng, shape, 420 * scale, 2.0)
    opacity = ramp(heaps, float(np.quantile(heaps, 0.966)), float(np.quantile(heaps, 0.993)))
    away = 52 * scale
    shift = (round(away * np.cos(_SUN[0])), round(-away * np.sin(_SUN[0])))
    shadow = 0.8 * _moved(np.minimum(opacity * 1.6, 1), shift)
    sky = _column(_SKYLIGHT)
    image = image * (1 - shadow * (1 - sky))
    return _lay(image, opacity * 0.97, _column(SPECTRA["cloud"]) * (0.85 + 0.15 * opacity)), opacity


def _moved(field: Field, shift: tuple[int, int]) -> Field:
    moved = np.zeros_like(field)
    height, width = field.shape
    if abs(shift[0]) < height and abs(shift[1]) < width:
        target = tuple(slice(max(s, 0), n + min(s, 0)) for s, n in zip(shift, field.shape, strict=True))
        source = tuple(slice(max(-s, 0), n + min(-s, 0)) for s, n in zip(shift, field.shape, strict=True))
        moved[target] = field[source]
    return moved


def sense(rng: np.random.Generator, image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the sensor's image of the light, with a little blur, slowly varying haze, and noise."""
    for axis in (1, 2):
        sides = np.take(image, np.arange(-1, image.shape[axis] - 1).clip(0), axis)
        sides = sides + np.take(image, np.arange(1, image.shape[axis] + 1).clip(max=image.shape[axis] - 1), axis)
        image = 0.76 * image + 0.12 * sides
    haze = 0.006 * ramp(smooth_noise(rng, (image.shape[1], image.shape[2]), 400, 2.0), -1.5, 2.0)
    image = image + haze * _column((1.0, 0.7, 0.45, 0.2, 0.05, 0.02))
    return np.asarray(image + _column(_NOISE) * rng.standard_normal(image.shape, np.float32), np.float32)


def _column_table(names: tuple[str, ...]) -> NDArray[np.float32]:
    return np.array([SPECTRA[name] for name in names], np.float32).T
