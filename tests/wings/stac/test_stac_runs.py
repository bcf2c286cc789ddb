"""Items through a real engine: a collection, a search on the command line, and a broken item among good ones."""

from __future__ import annotations

import json
import shlex
import shutil
from contextlib import nullcontext

import numpy as np
import pytest
import rasterio
from pages import all_blocks
from scenes_for_tests import classes
from stac_catalogue import BROKEN, DAYS, catalogue, item_path, pixels

from vllm_mmout import Mosaic, OutputParams
from vllm_mmout.cli import main
from vllm_mmout.errors import OptionError, SaveError
from vllm_mmout.wings.stac.public import mosaics, search

pystac = pytest.importorskip("pystac")
pytestmark = [pytest.mark.engine, pytest.mark.heavy]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A static catalogue, which no test changes."""
    return catalogue(tmp_path_factory.mktemp("catalogue"))


def water(tile, day):
    """Return the classes of an item's pixels."""
    array = pixels(tile, day)
    return classes(array, (array != 0).all(axis=0))


@pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning")
def test_each_item_of_a_collection_has_its_result_or_its_error(llm, root, tmp_path):
    """Results are named after the items, and a broken asset fails its own item alone."""
    items = [item_path(root, "sentinel-2", name) for name in (f"S2A_33TUL_{DAYS[0]}", BROKEN)]
    features = [pystac.Item.from_file(str(path)).to_dict(transform_hrefs=False) for path in items]
    for feature, path in zip(features, items, strict=True):
        for asset in feature["assets"].values():
            asset["href"] = str(path.parent / asset["href"])
    (tmp_path / "items.json").write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    options = OutputParams(path=f"{tmp_path}/out/")
    good, bad = llm.generate(str(tmp_path / "items.json"), options, use_tqdm=False)
    np.testing.assert_array_equal(good.outputs.array, water("33TUL", DAYS[0]))
    assert good.outputs.path == f"{tmp_path}/out/S2A_33TUL_{DAYS[0]}.tif"
    assert f"asset 'red' of STAC item {BROKEN}" in str(bad.error)
    with rasterio.open(good.outputs.path) as file:
        assert file.tags()["ACQUISITIONDATETIME"] == DAYS[0]
        assert file.tags()["MMOUT_DESCRIBED_BY"] == f"{tmp_path}/items.json"


@pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning")
def test_an_item_that_is_a_dict_is_an_input(llm, root):
    """Alone, in a list and in a mosaic; its "type" does not make it a prompt of vLLM."""
    path = item_path(root, "sentinel-2", f"S2A_32TQM_{DAYS[0]}")
    item = json.loads(path.read_text())
    for asset in item["assets"].values():
        asset["href"] = str(path.parent / asset["href"])
    for data in (item, [item], Mosaic([item])):
        (result,) = llm.generate(data, use_tqdm=False)
        np.testing.assert_array_equal(result.outputs.array, water("32TQM", DAYS[0]))


def test_a_search_on_the_command_line(llm, root, tmp_path, capsys, monkeypatch):
    """Each item that is found has a file in the folder; one that fails is named, and the status says so."""
    monkeypatch.setattr("vllm_mmout.commands.engine.engine", lambda *_, **__: nullcontext(llm))
    command = ["run", "water-index", str(root), "--stac", "--collections", "sentinel-2"]
    assert main([*command, "--datetime", DAYS[1], "-o", f"{tmp_path}/out/"]) == 0
    assert len(capsys.readouterr().out.split()) == 2
    for tile in ("32TQM", "33TUL"):
        with rasterio.open(tmp_path / "out" / f"S2A_{tile}_{DAYS[1]}.tif") as file:
            np.testing.assert_array_equal(file.read(), water(tile, DAYS[1]))
    assert main([*command, "--datetime", DAYS[2], "-o", f"{tmp_path}/out/"]) == 1
    assert "1 of 2 inputs failed" in capsys.readouterr().err
    item = json.loads(item_path(root, "sentinel-2", f"S2A_32TQM_{DAYS[0]}").read_text())
    (tmp_path / "area.geojson").write_text(json.dumps(item["geometry"]))
    area = ["--datetime", DAYS[0], "--aoi", f"{tmp_path}/area.geojson", "-o", f"{tmp_path}/area/"]
    assert main([*command, *area]) == 0
    assert (tmp_path / "area" / f"S2A_32TQM_{DAYS[0]}.tif").exists()
    assert main(["run", "water-index", str(root), "a.tif", "--stac", "-o", "out/"]) == 2
    assert main(["run", "water-index", "--collections", "hls", "a.tif", "-o", "out/"]) == 2


def test_a_search_gives_a_map_of_each_day(llm, root, tmp_path, capsys, monkeypatch):
    """Both items of a day are in its map, whose record links to them alone, and the collection has both days."""
    monkeypatch.setattr("vllm_mmout.commands.engine.engine", lambda *_, **__: nullcontext(llm))
    when = ["--collections", "sentinel-2", "--datetime", f"{DAYS[0]}/{DAYS[1]}"]
    command = ["run", "water-index", str(root), "--stac", *when, "--each-day", "--stac-collection"]
    assert main([*command, "-o", f"{tmp_path}/days/"]) == 0
    files = [tmp_path / "days" / f"{day}.tif" for day in DAYS[:2]]
    assert capsys.readouterr().out.split() == [*map(str, files), f"{tmp_path}/days/collection.json"]
    for day, file in zip(DAYS, files, strict=False):
        links = json.loads(file.with_suffix(".json").read_text())["links"]
        sources = {link["href"].rpartition("/")[2] for link in links if link["rel"] == "derived_from"}
        assert sources == {f"S2A_{tile}_{day}.json" for tile in ("32TQM", "33TUL")}
        with rasterio.open(file) as made:
            (first,) = made.sample([(699960 + 30 * 20.5, 5300040 - 30 * 30.5)])  # in the first item alone
            assert first == water("32TQM", day)[0, 30, 20]
    assert main([*command, "-o", f"{tmp_path}/days.zarr"]) == 1
    assert "stac_item describes GeoTIFFs" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning")
def test_a_result_gets_an_item_if_asked(llm, root, tmp_path):
    """The item has the model, the options, the software, and links to the item and the files of the input."""
    name = f"S2A_32TQM_{DAYS[0]}"
    path = item_path(root, "sentinel-2", name)
    options = OutputParams(path=f"{tmp_path}/out/", stac_item=True, tile=32)
    (result,) = llm.generate([str(path)], options, use_tqdm=False)
    item = json.loads((tmp_path / "out" / f"{name}.json").read_text())
    assert result.outputs.path == f"{tmp_path}/out/{name}.tif"
    assert item["properties"]["datetime"] == f"{DAYS[0]}T10:00:00Z"
    assert item["properties"]["processing:expression"]["expression"] == {"tile": 32}
    assert item["properties"]["processing:software"].keys() == {"vllm-mmout", "vllm"}
    assert [link["href"] for link in item["links"]] == [str(path)]
    assert (tmp_path / "out" / f"{name}-thumbnail.png").exists()
    with pytest.raises(OptionError, match="stac_item describes the file of a result; give its path"):
        llm.generate(str(path), OutputParams(stac_item=True), use_tqdm=False)
    with pytest.raises(OptionError, match="stac_item describes GeoTIFFs, and the result is png"):
        llm.generate(str(path), OutputParams(path=f"{tmp_path}/a.png", stac_item=True), use_tqdm=False)


@pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning")
def test_the_item_of_a_result_overwrites_no_other_file(llm, root, tmp_path):
    """Before the model runs: the JSON beside a result may be the item of the input. A second run replaces its own."""
    (tmp_path / "map.json").write_text("[1]")
    path = item_path(root, "sentinel-2", f"S2A_32TQM_{DAYS[0]}")
    with pytest.raises(SaveError, match=r"map\.json exists and is no STAC item of map\.tif"):
        llm.generate(str(path), OutputParams(path=f"{tmp_path}/map.tif", stac_item=True), use_tqdm=False)
    assert [file.name for file in tmp_path.iterdir()] == ["map.json"]
    (tmp_path / "new-thumbnail.png").write_text("mine")
    with pytest.raises(SaveError, match=r"new-thumbnail\.png exists and belongs to no STAC item of new\.tif"):
        llm.generate(str(path), OutputParams(path=f"{tmp_path}/new.tif", stac_item=True), use_tqdm=False)
    both = [
        OutputParams(path=f"{tmp_path}/a.tif", stac_item=True),
        OutputParams(path=f"{tmp_path}/a.json", output="areas"),
    ]
    with pytest.raises(OptionError, match=r"would be written to .*a\.json"):
        llm.generate([str(path)] * 2, both, use_tqdm=False)
    for _ in range(2):
        llm.generate(str(path), OutputParams(path=f"{tmp_path}/other.tif", stac_item=True), use_tqdm=False)


@pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning")
def test_items_of_a_day_become_one_map(llm, root, tmp_path):
    """Two tiles in two zones are one GeoTIFF with one item; the pixels of the first tile stay as they are."""
    items = search(str(root), collections="sentinel-2", datetime=DAYS[0])
    options = OutputParams(path=f"{tmp_path}/map.tif", stac_item=True)
    (result,) = llm.generate(mosaics(items), options, use_tqdm=False)
    height, width = result.outputs.height, result.outputs.width
    assert width > 100
    array, tile = result.outputs.array[0], water("32TQM", DAYS[0])[0]
    assert any(
        np.array_equal(array[row : row + 48, col : col + 48], tile)
        for row in range(height - 47)
        for col in (0, width - 48)
    )
    assert json.loads((tmp_path / "map.json").read_text())["assets"]["data"]["proj:code"] == "EPSG:32632"


@pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning")
def test_a_map_is_not_written_over_the_files_of_its_items(llm, root, tmp_path):
    """The files that an item names are inputs, although the request names only the item."""
    copied = shutil.copytree(root.parent, tmp_path / "copy") / root.name
    (file,) = item_path(copied, "sentinel-2", f"S2A_32TQM_{DAYS[0]}").parent.glob("*B04*.tif")
    before = file.read_bytes()
    items = search(str(copied), collections="sentinel-2", datetime=DAYS[0])
    with pytest.raises(SaveError, match="written over its own input"):
        llm.generate(Mosaic(items, "first", skip_failed=True), OutputParams(path=file), use_tqdm=False)
    assert file.read_bytes() == before


@pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning")
def test_the_guide(llm, root, tmp_path, capsys, monkeypatch):
    """The script and the commands of docs/stac.md run in the folder of a catalogue, and make one collection."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vllm.LLM", lambda *_: llm)
    monkeypatch.setattr("vllm_mmout.commands.engine.engine", lambda *_, **__: nullcontext(llm))
    (tmp_path / "sentinel-2").symlink_to(root.parent / "sentinel-2")
    (tmp_path / "hls").symlink_to(root.parent / "hls")
    (tmp_path / "catalog.json").write_bytes(root.read_bytes())
    script = next(block.text for block in all_blocks("python") if block.page == "stac.md")
    exec(compile(script, "stac.md", "exec"), {})  # noqa: S102 - it is the script of our own page
    lines = [line for block in all_blocks("shell") if block.page == "stac.md" for line in block.text.splitlines()]
    made = json.loads((tmp_path / "maps" / "collection.json").read_text())
    assert sum(link["rel"] == "item" for link in made["links"]) == 4
    assert len(capsys.readouterr().out.split()) == 4
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0
    assert json.loads((tmp_path / "maps" / "collection.json").read_text()) == made
