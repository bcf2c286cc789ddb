"""Segmentation and regression of scenes: tiles are averaged before classes are chosen and values rounded."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tiles_for_tests import pieces, same_bits, shuffled

from vllm_mmout.errors import DecodeError, OptionError
from vllm_mmout.geo import TileGrid, axis_weights
from vllm_mmout.outputs import RasterOutput, TensorOutput
from vllm_mmout.outputs.base import Source
from vllm_mmout.outputs.stored import StoredRaster
from vllm_mmout.params import OutputParams
from vllm_mmout.processors import (
    ClassificationProcessor,
    DetectionProcessor,
    EmbeddingProcessor,
    ImageProcessor,
    OutputProcessor,
    Part,
    Parts,
    RegressionProcessor,
    SegmentationProcessor,
    TensorProcessor,
)

pytestmark = pytest.mark.engine
GRID = TileGrid(37, 41, 16, 8)


def noise(bands: int, seed: int = 0) -> list[np.ndarray]:
    """Raw outputs of the grid's tiles that contradict each other where they overlap."""
    random = np.random.default_rng(seed)
    return [random.normal(0, 2, (bands, 16, 16)).astype("float32") for _ in range(len(GRID))]


def scene_of(
    processor: OutputProcessor, outputs: list[np.ndarray], valid: np.ndarray | None = None, **options: object
) -> RasterOutput:
    """What a processor makes of a scene of whose tiles the model made these outputs."""
    asked = OutputParams(overlap=GRID.overlap, **options)
    params = OutputParams(overlap=GRID.overlap, **options).of_part()
    parts = []
    for index, output in enumerate(outputs):
        window = GRID.window(index)
        raw = processor.reduce(torch.from_numpy(output)[None], params)[0]
        shown = None if valid is None else valid[window.rows, window.cols]
        parts.append(Part(index, window, processor.decode(raw, params), shown))
    source = Source(size=(GRID.height, GRID.width))
    return processor.assemble(Parts(shuffled(parts, 1), grid=GRID, source=source), asked)


def blended(outputs: list[np.ndarray], blend: str = "cosine") -> np.ndarray:
    """The weighted mean of tiles, by whole arrays."""
    total = np.zeros((len(outputs[0]), GRID.height, GRID.width))
    rows, cols = (axis_weights(starts, 16, size, blend) for starts, size in ((GRID.rows, 37), (GRID.cols, 41)))
    for index, output in enumerate(outputs):
        row, col = divmod(index, len(GRID.cols))
        window = GRID.window(index)
        total[:, window.rows, window.cols] += output * rows[row][:, None] * cols[col]
    return total


def softmax(output: np.ndarray) -> np.ndarray:
    exponents = np.exp(output.astype("float64"))
    return exponents / exponents.sum(axis=0)


@pytest.mark.parametrize("blend", ["cosine", "linear"])
@pytest.mark.parametrize("classes", [2, 5])
def test_probabilities_are_averaged_before_the_class_is_chosen(classes, blend):
    """Classes and confidence of a scene are those of numpy's mean of the tiles' probabilities."""
    outputs = noise(classes)
    mean = blended([softmax(output) for output in outputs], blend)
    processor = SegmentationProcessor(class_names=[f"class {number}" for number in range(classes)])
    probabilities = scene_of(processor, outputs, output="probabilities", blend=blend)
    np.testing.assert_allclose(probabilities.array, mean, atol=1e-6)
    assert (len(probabilities.band_names), math.isnan(probabilities.nodata)) == (classes, True)
    ids = scene_of(processor, outputs, blend=blend)
    sure = np.diff(np.sort(mean, axis=0)[-2:], axis=0)[0] > 1e-5
    assert sure.mean() > 0.99
    np.testing.assert_array_equal(ids.array[0][sure], mean.argmax(axis=0)[sure])
    assert (ids.array.dtype, ids.nodata, ids.band_names, ids.class_names[0]) == ("uint8", 255, ("classes",), "class 0")
    confidence = scene_of(processor, outputs, output="confidence", blend=blend)
    np.testing.assert_allclose(confidence.array[0], mean.max(axis=0), atol=1e-6)
    assert confidence.band_names == ("confidence",)


def test_without_blending_class_ids_are_cut_in_the_middle():
    """With "none" ids travel, and each pixel is that of the tile in whose middle it lies."""
    outputs = noise(3)
    processor = SegmentationProcessor()
    travelling = processor.reduce(torch.zeros(1, 3, 4, 4), OutputParams(overlap=8, blend="none").of_part())
    assert travelling.dtype == torch.uint8
    ids = scene_of(processor, outputs, blend="none")
    expected = blended([output.argmax(axis=0, keepdims=True) for output in outputs], "none")
    np.testing.assert_array_equal(ids.array, expected)


@pytest.mark.parametrize("classes", [2, 255, 256, 300])
def test_classes_are_the_first_of_equal_probabilities(classes):
    """Finished classes are numpy's argmax, ties included, in the dtype that they have without tiles."""
    processor = SegmentationProcessor()
    planes = np.random.default_rng(3).integers(0, 4, (classes, 9, 8)).astype("float32")
    ids = processor._finished_classes(RasterOutput(planes))
    np.testing.assert_array_equal(ids.array[0], planes.argmax(axis=0))
    alone = processor.decode(processor.reduce(torch.from_numpy(planes)[None], OutputParams())[0], OutputParams())
    assert (ids.array.dtype, ids.nodata, same_bits(ids.palette, alone.palette)) == (
        alone.array.dtype,
        alone.nodata,
        True,
    )


def test_a_pixel_that_no_tile_knows_has_no_class():
    """NaN of one tile is left out of the mean; where all have it, or nothing was observed, there is nodata."""
    logits = np.random.default_rng(0).normal(0, 1, (2, 37, 41)).astype("float32")
    outputs = [tile.copy() for tile in pieces(logits, GRID)]
    outputs[0][:] = np.nan
    valid = np.ones((37, 41), bool)
    valid[30, 30] = False
    ids = scene_of(SegmentationProcessor(), outputs, valid).array[0]
    expected = logits.argmax(axis=0).astype("uint8")
    counts = [axis_weights(starts, 16, 41, "cosine")[1] for starts in (GRID.rows, GRID.cols)]
    first = 8 + int(np.flatnonzero(counts[0])[0])  # where the second tile begins to count
    expected[:first, :first] = 255
    expected[30, 30] = 255
    np.testing.assert_array_equal(ids, expected)


def test_an_unknown_output_of_a_scene_is_refused():
    """Assembling refuses what reduce would."""
    parts = Parts(iter([]), grid=GRID, source=Source(size=(37, 41)))
    with pytest.raises(OptionError, match="probs"):
        SegmentationProcessor().assemble(parts, OutputParams(output="probs"))
    with pytest.raises(OptionError, match="probs"):
        RegressionProcessor().assemble(parts, OutputParams(output="probs"))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_values_are_averaged_before_they_are_rounded(dtype):
    """Integers of a scene are the rounded mean of the tiles' values, clipped to what the dtype holds."""
    outputs = noise(2)
    processor = RegressionProcessor(dtype=dtype, scale=60.0, units="m")
    mean = blended([output * np.float32(60) for output in outputs])
    got = scene_of(processor, outputs)
    limits = {"uint8": (0, 254), "int8": (-127, 127), "uint16": (0, 65534), "int16": (-32767, 32767)}[dtype]
    sure = np.abs(mean - np.floor(mean) - 0.5) > 1e-3
    np.testing.assert_array_equal(got.array[sure], np.clip(np.rint(mean[sure]), *limits))
    alone = processor.decode(processor.reduce(torch.zeros(1, 2, 4, 4), OutputParams())[0], OutputParams())
    assert (got.array.dtype, got.nodata, got.units) == (dtype, alone.nodata, ("m", "m"))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float16", "float32"])
@pytest.mark.parametrize("blend", ["cosine", "none"])
def test_a_tiled_scene_is_stored_as_a_whole_one(dtype, blend):
    """Tiles that agree give, bit by bit, what one forward of the scene gives: NaN, rounding and clipping included."""
    values = np.random.default_rng(1).normal(0, 300, (1, 37, 41)).astype("float32").round(1)
    values[0, ::7, ::5] = np.nan
    values[0, 1::7, ::5] = np.inf
    values[0, 2::7, ::5] = 2.5
    processor = RegressionProcessor(dtype=dtype, clip=[-200, None])
    whole = processor.decode(processor.reduce(torch.from_numpy(values)[None], OutputParams())[0], OutputParams())
    tiled = scene_of(processor, pieces(values, GRID), blend=blend)
    assert same_bits(tiled.array, whole.array)


class _Ids(SegmentationProcessor):
    """Gives class ids of its own whatever is asked for."""

    def reduce(self, output, params):
        return output.argmax(dim=1).to(torch.uint8)

    def decode(self, raw, params, state=None):
        return RasterOutput(raw.numpy()[None].copy(), nodata=77)


def test_a_subclass_may_give_class_ids_all_the_same():
    """Ids of a subclass that knows no probabilities are cut in the middle, not averaged."""
    outputs = noise(3)
    ids = scene_of(_Ids(), outputs)
    np.testing.assert_array_equal(ids.array, blended([tile.argmax(axis=0, keepdims=True) for tile in outputs], "none"))
    assert ids.nodata == 77


class _Plain(OutputProcessor):
    modality = "raster"

    def decode(self, raw, params, state=None):
        return RasterOutput(raw.numpy())


class _Count(OutputProcessor):
    def assemble(self, parts, params):
        return sum(1 for _ in parts)


def test_any_processor_of_rasters_joins_tiles():
    """A processor that says nothing of tiles has its rasters blended."""
    outputs = noise(1)
    raster = scene_of(_Plain(), outputs)
    assert isinstance(raster, StoredRaster)
    np.testing.assert_allclose(raster.array, blended(outputs), atol=1e-5)
    single = RasterOutput(outputs[0])
    assert _Plain().assemble(iter([Part(0, None, single)]), OutputParams()) is single


@pytest.mark.parametrize(
    ("processor", "joins"),
    [
        (SegmentationProcessor, True),
        (RegressionProcessor, True),
        (DetectionProcessor, True),
        (_Plain, True),
        (_Count, True),
        (ClassificationProcessor, False),
        (EmbeddingProcessor, False),
        (TensorProcessor, False),
        (ImageProcessor, False),
        (OutputProcessor, False),
    ],
)
def test_processors_say_whether_they_join_tiles(processor, joins):
    """Rasters can be joined, and what has an assemble of its own."""
    assert processor().joins_parts is joins


def test_several_parts_of_anything_else_are_refused():
    """A processor without an assemble takes one part, of a scene or not."""
    tiles = [Part(index, GRID.window(index), TensorOutput(np.zeros(2))) for index in range(2)]
    source = Source(size=(37, 41))
    with pytest.raises(DecodeError, match=r"TensorProcessor .* several parts and has no assemble"):
        TensorProcessor().assemble(Parts(tiles, grid=GRID, source=source), OutputParams())
    single = Parts(tiles[:1], grid=GRID, source=source)
    assert TensorProcessor().assemble(single, OutputParams()) is tiles[0].output


def test_parts_are_given_once_and_empty_ones_when_asked():
    """Iterating passes over parts without an output, every() does not; each part comes once."""
    tiles = [Part(index, None, output) for index, output in enumerate([None, "a", None, "b", None])]
    parts = Parts(tiles, grid=GRID, source=Source())
    assert next(parts).output == "a"
    assert [part.index for part in parts.every()] == [2, 3, 4]
    assert list(parts) == []
    assert [part.output for part in Parts(tiles, grid=GRID, source=Source())] == ["a", "b"]
