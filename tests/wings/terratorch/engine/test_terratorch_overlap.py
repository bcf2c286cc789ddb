"""Overlapping tiles are joined as TerraTorch's own ``tiled_inference`` joins them.

It crops ``delta`` pixels of each tile's border and blends what neighbours share then with a cosine; we leave out a
quarter of what they share on either side and blend in the middle half. With a step instead of a ramp the two are the
same where ``delta`` is half the overlap (it continues the scene by ``delta`` pixels of reflection, which we are given
as part of the scene). No parameters of its own give our ramp: with ``delta`` 0 it goes through all that is shared, with
a quarter it is longer than what is left. Its interface for that is the sink, which weighs its tiles here.
"""

from __future__ import annotations

import numpy as np
import pytest
from plain_terratorch import location_of, read

TILE, OVERLAP, SIZE = 224, 32, 608
CLOSE = 1e-4
"""Of the range of the logits."""


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A scene of three by three overlapping tiles."""
    from make_scene import make_scene

    return make_scene(tmp_path_factory.mktemp("wide") / "wide.tif", SIZE)


@pytest.fixture(scope="module")
def ours(start, flood, wide):
    """Logits of the engine over an array [bands, height, width], joined with a given blend."""
    from vllm_mmout import OutputParams

    place = location_of(wide)

    def join(pixels, blend):
        asked = OutputParams(overlap=OVERLAP, blend=blend, location=place)
        return start(flood, processor="regression").generate(pixels, asked)[0].outputs.read()

    return join


@pytest.fixture(scope="module")
def theirs(plain, flood, wide):
    """Logits of TerraTorch's ``tiled_inference`` over an array [bands, height, width], float32."""
    from terratorch.tasks.tiled_inference import tiled_inference

    model, place = plain(flood), location_of(wide)

    def join(pixels, **how):
        images = model.standardised(pixels)
        stride = TILE - OVERLAP
        return tiled_inference(
            lambda x: model.forward(x, place), images, crop=TILE, stride=stride, batch_size=4, **how
        )[0]

    return join


def close(one, other):
    """Whether logits are the same but for the order of additions."""
    np.testing.assert_allclose(one, np.asarray(other), rtol=0, atol=CLOSE * np.ptp(np.asarray(other)))


def ramp(start):
    """What a tile counts for along an axis: an eighth of a wave in the middle half of what it shares."""
    pixels = np.arange(TILE) + 0.5
    weight = np.ones(TILE)
    for shared, distance in ((start > 0, pixels), (start + TILE < SIZE, TILE - pixels)):
        if shared:
            weight *= np.sin(np.clip((distance - OVERLAP / 4) / (OVERLAP / 2), 0, 1) * np.pi / 2) ** 2
    return weight


class Weighed:
    """A sink of TerraTorch's: adds up its tiles with our ramp."""

    def __init__(self):
        self.sums, self.weights = np.zeros((2, SIZE, SIZE)), np.zeros((SIZE, SIZE))

    def write(self, tile, prediction):
        """Take a tile."""
        rows, cols = tile.input_coords
        weight = np.outer(ramp(rows.start), ramp(cols.start))
        self.sums[:, rows, cols] += prediction.numpy() * weight
        self.weights[rows, cols] += weight

    def finalize(self):
        """The logits, with an axis for the batch."""
        np.testing.assert_allclose(self.weights, 1)
        return (self.sums / self.weights)[None]


def test_steps(ours, theirs, wide):
    """Without a ramp the logits are those of its own joining, with ``delta`` half the overlap."""
    delta = OVERLAP // 2
    inner = (slice(None), slice(delta, -delta), slice(delta, -delta))
    pixels = read(wide)[inner]
    continued = np.pad(pixels, ((0, 0), (delta, delta), (delta, delta)), mode="reflect")
    close(ours(continued, "none")[inner], theirs(pixels, delta=delta, blend_overlaps=False, padding="reflect"))


def test_ramps(ours, theirs, wide):
    """With the cosine ramp they are those of its tiles and its loop, weighed by our ramp."""
    close(ours(read(wide), "cosine"), theirs(read(wide), delta=0, padding=False, sink=Weighed()))


def test_where_nothing_is_shared(ours, theirs, wide):
    """Where one tile alone lies, what it makes with its own ramp is the same."""
    shared = [start + pixel for start in (TILE - OVERLAP, 2 * (TILE - OVERLAP)) for pixel in range(OVERLAP)]
    alone = np.ix_(range(2), *[np.setdiff1d(np.arange(SIZE), shared)] * 2)
    expected = np.asarray(theirs(read(wide), delta=0, padding=False))
    close(ours(read(wide), "cosine")[alone], expected[alone])
