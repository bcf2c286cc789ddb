"""The notebook ``examples/flood.ipynb`` runs as it stands, shows what it says, and leaves nothing running."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from notebooks import EXAMPLES, cells_of, picture_of, printed, run_notebook
from processes import left_running, new_mark

NOTEBOOK = EXAMPLES / "flood.ipynb"


@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_is_kept_without_outputs(notebook):
    """What is committed holds no outputs, no counts and nothing of the machine it was written on."""
    for cell in cells_of(notebook).values():
        assert (cell["outputs"], cell["execution_count"], cell["metadata"]) == ([], None, {})
    metadata = json.loads(notebook.read_text(encoding="utf-8"))["metadata"]
    assert metadata["kernelspec"]["name"] == "python3"
    assert metadata["language_info"] == {"name": "python"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder in which the notebook ran, with an engine in processes of its own."""
    place = tmp_path_factory.mktemp("notebook")
    mark = new_mark()
    run_notebook(NOTEBOOK, place, tmp_path_factory.mktemp("jupyter"), **mark)
    (place / "mark.json").write_text(json.dumps(mark))
    return place


@pytest.fixture(scope="module")
def cells(place):
    """The cells with what they gave."""
    return cells_of(place / "ran.ipynb")


@pytest.fixture(scope="module")
def water(place):
    """The saved map as rasterio reads it: classes, nodata, colours by class, metres a pixel."""
    rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
    with rasterio.open(place / "water.tif") as file:
        return file.read(1), file.nodata, file.colormap(1), file.transform.a


@pytest.mark.engine
@pytest.mark.slow
class TestRun:
    def test_every_cell_ran(self, cells):
        """All cells ran in their order and none raised."""
        assert [cell["execution_count"] for cell in cells.values()] == list(range(1, len(cells) + 1))
        assert not [output for cell in cells.values() for output in cell["outputs"] if output["output_type"] == "error"]

    def test_shows_the_scene(self, cells, place):
        """The picture of the scene has its red, green and blue, and black beyond the swath."""
        rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
        picture, _ = picture_of(cells["scene"])
        with rasterio.open(place / "scene.tif") as scene:
            stored, seen = scene.read([3, 2, 1]), scene.read_masks(1) > 0
        np.testing.assert_allclose(picture[..., :3], np.moveaxis(stored.clip(0, 2500), 0, 2) * (255 / 2500), atol=1)
        assert not picture[~seen][:, :3].any()
        assert picture[seen][:, :3].std(axis=0).min() > 10

    def test_shows_the_map(self, cells, water):
        """The result's own picture has the colour of each class in the saved file and is clear where that is nodata."""
        classes, nodata, colours, _ = water
        picture, text = picture_of(cells["mask"])
        assert re.fullmatch(r"RasterOutput\(1 x 512 x 512 uint8, nodata=255, EPSG:32632\)", text)
        assert picture.shape == (512, 512, 4)
        assert set(np.unique(classes)) == {0, 1, nodata}
        for value in (0, 1):
            assert {tuple(pixel) for pixel in picture[classes == value].tolist()} == {colours[value]}
        assert colours[0] != colours[1]
        assert not picture[classes == nodata][:, 3].any()

    def test_lays_the_water_over_the_scene(self, cells, water):
        """The last picture is the scene where there is no water, and bluer where there is."""
        scene, _ = picture_of(cells["scene"])
        over, _ = picture_of(cells["laid"])
        wet = water[0] == 1
        np.testing.assert_array_equal(over[~wet], scene[~wet])
        assert (over[wet].astype(int) - scene[wet]).mean(axis=0)[2] > 30

    def test_says_the_area(self, cells, water):
        """Square kilometres are those that the saved file has by its own pixel size."""
        classes, nodata, _, metres = water
        wet, seen = ((mask.sum() * metres**2) / 1e6 for mask in (classes == 1, classes != nodata))
        expected = f"{wet:.2f} km² of {seen:.2f} km² are under water (EPSG:32632, 10 m a pixel)\n"
        assert printed(cells["area"]) == expected

    def test_shows_the_probabilities(self, cells, water):
        """A part of the map, enlarged, in colours between land and water that are nearer to the class of the map."""
        classes, _, colours, _ = water
        picture, _ = picture_of(cells["probabilities"])
        classes = classes[60:240, 20:260].repeat(3, axis=0).repeat(3, axis=1)
        assert picture.shape == (*classes.shape, 4)
        land, wet = (np.linalg.norm(picture[..., :3] - np.array(colours[value][:3], float), axis=2) for value in (0, 1))
        assert (land[classes == 0] <= wet[classes == 0] + 2).all()
        assert (wet[classes == 1] <= land[classes == 1] + 2).all()
        assert len(np.unique(picture[..., 0])) > 80

    def test_writes_what_it_says(self, place):
        """The scene and the map, with the names of its classes beside it, lie in the folder, and nothing else."""
        written = {file.name for file in place.iterdir()} - {"ran.ipynb", "mark.json"}
        assert written == {"scene.tif", "water.tif", "water.tif.aux.xml", "water.qml", "water.png"}

    def test_is_quiet(self, cells):
        """No cell prints more than two lines: two of the engine's processes say one before they set up their log."""
        said = {name: printed(cell) + printed(cell, "stderr") for name, cell in cells.items() if name != "after"}
        assert {name: text for name, text in said.items() if text.count("\n") > 2} == {}

    def test_the_engine_ends_with_its_cell(self, cells):
        """While the kernel still lives none of the engine's processes does."""
        assert printed(cells["after"]) == "[]\n"

    def test_nothing_is_left_running(self, place):
        """Once the kernel has ended there is no process of the notebook."""
        assert left_running(json.loads((place / "mark.json").read_text())) == []
