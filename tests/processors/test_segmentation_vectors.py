"""Segmentation as polygons and areas: what travels, what a request gets, how tiles become them."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_mmout.errors import OptionError
from vllm_mmout.geo import Georeference
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.geo.tiling.grid import TileGrid
from vllm_mmout.outputs import AreasOutput, PolygonsOutput, RasterOutput, Source
from vllm_mmout.params import OutputParams
from vllm_mmout.processors import SegmentationProcessor
from vllm_mmout.processors.part import Part
from vllm_mmout.processors.parts import Parts

torch = pytest.importorskip("torch", reason="processors are given torch tensors")
pytestmark = pytest.mark.engine

NAMES = ["a", "b", "c"]
WHERE = Georeference(crs="EPSG:32614", transform=(10.0, 0.0, 0.0, 0.0, -10.0, 0.0))


def logits(height=20, width=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 3, height, width, generator=generator)


def asked(output, **options):
    return OutputParams(output=output, **options)


@pytest.mark.parametrize("output", ["polygons", "areas"])
def test_only_ids_travel_for_vectors(output):
    """As for classes: one byte a pixel; probabilities where tiles are to be averaged."""
    processor = SegmentationProcessor()
    assert torch.equal(processor.reduce(logits(), asked(output)), processor.reduce(logits(), asked("classes")))
    assert processor.reduce(logits(), asked(output, overlap=4).of_part()).shape == (1, 3, 20, 30)


def test_one_input_becomes_polygons_and_areas():
    """Those of its classes, with their names; the tolerance is the request's."""
    processor = SegmentationProcessor(class_names=NAMES)
    ids = processor.decode(processor.reduce(logits(), asked("classes"))[0], asked("classes"))
    params = asked("polygons", simplify=2.0)
    polygons = processor.decode(processor.reduce(logits(), params)[0], params)
    assert isinstance(polygons, PolygonsOutput)
    np.testing.assert_array_equal(polygons.classes.array, ids.array)
    assert polygons.simplify == 2
    assert {one["properties"]["name"] for one in polygons.features()} == set(NAMES)
    areas = processor.decode(processor.reduce(logits(), asked("areas"))[0], asked("areas"))
    assert [one.pixels for one in areas.classes] == np.bincount(ids.array.ravel()).tolist()
    assert areas.placed(Source(georeference=WHERE))["a"].area_m2 == 100 * areas["a"].pixels


@pytest.mark.parametrize("overlap", [0, 4])
@pytest.mark.parametrize("output", ["polygons", "areas"])
def test_tiles_become_what_their_classes_become(output, overlap, tmp_path):
    """Blended as classes are; of areas no file is left."""
    processor = SegmentationProcessor(class_names=NAMES)
    grid = TileGrid(20, 30, tile=12, overlap=overlap)
    whole = logits()

    def assembled(name):
        params = asked(name, overlap=overlap).of_part()
        parts = []
        for index in range(len(grid)):
            window = grid.window(index)
            reduced = processor.reduce(whole[:, :, window.rows, window.cols], params)
            parts.append(Part(index, window, processor.decode(reduced[0], params)))
        source = Source(size=(20, 30), georeference=WHERE)
        joined = Parts(iter(parts), grid=grid, source=source, folder=tmp_path)
        return processor.assemble(joined, asked(name, overlap=overlap))

    classes = assembled("classes")
    found = assembled(output)
    if output == "polygons":
        assert found.to_bytes() == PolygonsOutput(classes).to_bytes()
        found.close()
    else:
        assert found == AreasOutput.of(classes)
        assert found["a"].area_m2 == 100 * found["a"].pixels
    classes.close()
    assert list(tmp_path.iterdir()) == []


def test_formats_are_those_of_what_is_asked_for():
    """Known before anything is run, the usual one first."""
    processor = SegmentationProcessor()
    assert processor.formats(asked("classes")) == processor.formats(OutputParams()) == RasterOutput.formats
    assert next(iter(processor.formats(asked("polygons")))) == ".geojson"
    assert next(iter(processor.formats(asked("areas")))) == ".csv"
    with pytest.raises(OptionError, match=r"known: classes, .*polygons, areas"):
        processor.formats(asked("shapes"))


def test_a_tile_is_a_raster():
    """A part of a scene is joined before polygons are made of it."""
    params = asked("polygons").of_part()
    processor = SegmentationProcessor()
    part = processor.decode(processor.reduce(logits(), params)[0], params)
    assert type(part) is RasterOutput
    assert part.read(Window(0, 0, 2, 2)).shape == (1, 2, 2)
