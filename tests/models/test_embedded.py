from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vllm_mmout.errors import OptionError, SaveError
from vllm_mmout.models.embedded.folders import embedded_model, found_model
from vllm_mmout.models.embedded.scene import embedded_scene


def test_the_embedded_model_is_a_folder_that_is_whole():
    """The folder has a config and weights, some kilobytes together."""
    assert isinstance(embedded_model(), str), "vLLM takes texts alone"
    folder = Path(embedded_model("water-index"))
    assert folder == Path(embedded_model())
    assert folder.is_absolute()
    files = {file.name: file.stat().st_size for file in folder.iterdir()}
    assert set(files) == {"config.json", "model.safetensors"}
    assert sum(files.values()) < 10_000


@pytest.mark.parametrize(
    ("name", "says"), [("water_index", "did you mean 'water-index'"), ("../..", "no embedded model")]
)
def test_an_unknown_model_lists_the_known_ones(name, says):
    """A wrong name is refused with a close match and what there is."""
    with pytest.raises(OptionError, match=says) as caught:
        embedded_model(name)
    assert "(known: water-index)" in str(caught.value)


def test_the_scene_is_a_georeferenced_file(tmp_path, demo_scene):
    """Rasterio reads from the file what the scene says: pixels, place, nodata, names of bands."""
    rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
    scene, path = demo_scene, embedded_scene(str(tmp_path / "scene.tif"))
    assert path == tmp_path / "scene.tif"
    with rasterio.open(path) as source:
        np.testing.assert_array_equal(source.read(), scene.array)
        assert source.crs.to_epsg() == 32632
        assert source.transform[:6] == scene.transform
        assert source.res == (10, 10)
        assert source.nodata == -9999
        assert source.dtypes == ("int16",) * 6
        assert source.descriptions == scene.bands


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    """An error of saving, not a traceback of the file system."""
    with pytest.raises(SaveError, match="missing"):
        embedded_scene(tmp_path / "missing" / "scene.tif")


def test_a_file_with_other_content_is_kept(tmp_path):
    """The scene replaces no other file, folder or broken link; a copy of the scene is returned untouched."""
    path, folder, link = tmp_path / "river.tif", tmp_path / "folder", tmp_path / "link.tif"
    before = embedded_scene(path).stat()
    assert embedded_scene(path) == path
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    path.write_bytes(b"mine")
    folder.mkdir()
    link.symlink_to("nothing.tif")
    for taken in (path, folder, link):
        with pytest.raises(SaveError, match=f"{taken.name} exists and is not the embedded scene; choose another name"):
            embedded_scene(taken)
    assert path.read_bytes() == b"mine"


def test_a_folder_of_diffusers_is_one_of_a_model(tmp_path):
    """It has an index, and need not have a config.json."""
    (tmp_path / "model_index.json").write_text("{}")
    assert found_model(str(tmp_path)) == str(tmp_path)
