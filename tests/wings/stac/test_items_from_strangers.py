"""STAC items in requests to a server: their files are opened as addresses of the client would be."""

from __future__ import annotations

import asyncio
import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from http_server import a_running_server, a_server  # noqa: F401 - fixtures
from scenes_for_tests import classes
from several_files import mapper
from stac_catalogue import item, pixels

from vllm_mmout import Mosaic
from vllm_mmout.engine.mosaic.async_mosaic import AsyncMosaic
from vllm_mmout.errors import InputError
from vllm_mmout.models.inputs.catalogued import with_catalogued
from vllm_mmout.params import OutputParams
from vllm_mmout.serving.inputs.sources import Sources
from vllm_mmout.serving.inputs.uploads import Upload
from vllm_mmout.serving.options import ServingOptions

pytestmark = pytest.mark.engine
TILE, DAY = "32TQM", "2024-06-01"
ARRAY = pixels(TILE, DAY)


@pytest.fixture
def served(server, tmp_path):
    """An item on a server, as a dict with relative addresses, and the address of its JSON."""
    made = item(tmp_path, TILE, DAY)
    for path in (tmp_path / made["id"]).glob("*.tif"):
        server.serve(f"/items/{path.name}", path.read_bytes())
    return made, server.serve("/items/a.json", json.dumps(made).encode())


def seen(data, domains=("127.0.0.1",), **limits):
    """Return what a model of six bands gets from the input of a request."""
    sources = Sources(ServingOptions(**limits), local_path=None, domains=list(domains))
    model = mapper("blue", "green", "red", "narrow NIR", "SWIR 1", "SWIR 2")
    with sources.opened(data) as opened:
        return model(opened, OutputParams()).tensors["pixel_values"]


def upload(made):
    """Return an item as a client uploads it."""
    content = json.dumps(made).encode()
    return Upload("a.json", io.BytesIO(content), len(content))


def test_an_address_a_dict_and_an_upload(server, served):
    """The bands are fetched from the addresses in the item, and only those that the model takes."""
    made, address = served
    np.testing.assert_array_equal(seen(address), ARRAY)
    assert not server.of("/items/visual.tif")
    made["links"] = [{"rel": "self", "href": address}]
    np.testing.assert_array_equal(seen(made), ARRAY)
    np.testing.assert_array_equal(seen(upload(made)), ARRAY)


@pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning")
def test_addresses_of_items_make_a_mosaic(llm, server, served, tmp_path):
    """A mosaic of items that a client names has their names, dates and addresses, and pixels of both."""
    addresses = [served[1]]
    other = item(tmp_path, "33TUL", "2024-06-11")
    for path in (tmp_path / other["id"]).glob("*.tif"):
        server.serve(f"/more/{path.name}", path.read_bytes())
    addresses.append(server.serve("/more/b.json", json.dumps(other).encode()))
    sources = Sources(ServingOptions(), local_path=None, domains=["127.0.0.1"])
    with sources.opened(addresses) as opened:
        (result,) = llm.generate(Mosaic(opened, "first"), use_tqdm=False)
    metadata = result.outputs.metadata
    assert metadata["MMOUT_INPUTS"].split("\n") == [f"S2A_{TILE}_{DAY}", "S2A_33TUL_2024-06-11"]
    assert metadata["MMOUT_DATES"].split("\n") == [f"{DAY}T10:00:00Z", "2024-06-11T10:00:00Z"]
    assert metadata["MMOUT_DESCRIBED_BY"].split("\n") == addresses
    assert (result.outputs.array == 1).sum() > (classes(ARRAY, ARRAY.all(axis=0)) == 1).sum()


def test_files_of_items_count_while_they_are_open(server, served, monkeypatch):
    """A file of an item closes with its raster, so that more items fit a request than may be open at once."""
    monkeypatch.setattr("vllm_mmout.serving.inputs.request_files._MOST", 9)
    monkeypatch.setattr("vllm_mmout.serving.inputs.request_files._MOST_BESIDE_RECORDS", 3)
    sources = Sources(ServingOptions(), local_path=None, domains=["127.0.0.1"])
    model = mapper("blue", "green", "red", "narrow NIR", "SWIR 1", "SWIR 2")
    with sources.opened([served[1], served[1]]) as items:
        for record in items * 2:
            np.testing.assert_array_equal(model(record, OutputParams()).tensors["pixel_values"], ARRAY)
        with model.open(items[0], OutputParams()) as view:
            with pytest.raises(InputError, match="more than 9 files would be open at once"):
                model.open(items[1], OutputParams())
            np.testing.assert_array_equal(view.raster.read().array, ARRAY)
        late = items[1].files[0]
        left_open = late.opener.file(late.address)
    assert left_open.closed
    with pytest.raises(InputError, match="after the end of its request"):
        late.opener.file(late.address)


def test_scenes_of_many_files_take_turns():
    """As many scenes of a mosaic run at once as have files that may be open together."""
    running, most = [], []

    async def generate(data, params, name):
        running.append(name)
        most.append(len(running))
        await asyncio.sleep(0)
        running.remove(name)
        yield SimpleNamespace(finished=True)

    scenes = [SimpleNamespace(data=None, files=20, tiles=1) for _ in range(6)]
    plan = SimpleNamespace(scenes=scenes)
    run = SimpleNamespace(plan=plan, params=str, take=lambda *_: None, result=lambda name: name, abort=lambda: None)

    async def results():
        return [result async for result in AsyncMosaic(run, "map", generate).results()]

    assert asyncio.run(results())[-1] == "map"
    assert (len(most), max(most)) == (6, 2)


HREFS = {
    "/etc/passwd.tif": "local file|no address",
    "file:///etc/passwd.tif": "local file|no address",
    "http://10.0.0.1/red.tif": "10.0.0.1",
    "http://169.254.169.254/latest/red.tif": "169.254.169.254",
    "s3://private/red.tif": "lies below no address of --mmout-read-from",
}


@pytest.mark.parametrize("href", HREFS)
@pytest.mark.parametrize("with_link", [True, False])
def test_an_item_cannot_name_what_its_client_may_not(served, href, with_link):
    """Local files, private addresses and buckets of the operator are refused, whatever the item says of itself."""
    made, address = served
    made["links"] = [{"rel": "self", "href": address}] * with_link
    for asset in made["assets"].values():
        asset["href"] = href
    with pytest.raises(InputError, match=HREFS[href]):
        seen(made)
    with pytest.raises(InputError, match=HREFS[href]):
        seen(upload(made))


def test_limits_of_files_hold_for_those_of_items(served):
    """A raster of too many pixels is refused before it is read."""
    with pytest.raises(InputError, match="--mmout-max-pixels"):
        seen(served[1], max_pixels=1000)


def test_an_item_in_an_open_file_opens_no_other_file(tmp_path):
    """The engine cannot know whose item it is. It names local files here, which exist."""
    made = item(tmp_path, TILE, DAY)
    for asset in made["assets"].values():
        asset["href"] = str(tmp_path / made["id"] / asset["href"])
    (tmp_path / "a.json").write_text(json.dumps(made))
    with (tmp_path / "a.json").open("rb") as file, pytest.raises(InputError, match="is not opened for it"):
        mapper("red")(with_catalogued(file), OutputParams())
