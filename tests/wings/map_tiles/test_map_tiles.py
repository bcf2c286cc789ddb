"""Map tiles of stored results, compared with rasterio's own warp, and read by OWSLib."""

from __future__ import annotations

import asyncio
import math
from io import BytesIO

import httpx
import numpy as np
import pytest
from PIL import Image

pytest.importorskip("vllm", reason="the server is vLLM's")

import rasterio
from fastapi import FastAPI
from rasterio import Affine
from rasterio.warp import Resampling, reproject, transform

from vllm_mmout.geo import Georeference, GroundControlPoint
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.serving.image_routes import results
from vllm_mmout.serving.response.result_files import Encoded
from vllm_mmout.serving.response.store import ResultStore
from vllm_mmout.serving.service import Service
from vllm_mmout.wings.map_tiles import tile_routes
from vllm_mmout.wings.map_tiles.map_layer import MapLayer
from vllm_mmout.wings.map_tiles.tile_routes import TileRoutes

pytestmark = pytest.mark.engine

PALETTE = np.array([[200, 180, 20], [20, 40, 200], [0, 160, 60]], np.uint8)
NAMES = ("bare <soil>", "water", "trees")
PLACE = Georeference(crs="EPSG:32632", transform=(10.0, 0.0, 500000.0, 0.0, -10.0, 5000000.0))
NOISE = np.random.default_rng(5)
RADIUS = 6378137.0


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of results."""
    made = ResultStore(tmp_path_factory.mktemp("results") / "store", 600, 1 << 30)
    yield made
    made.close()


@pytest.fixture(scope="module")
def get(store):
    """Ask a server with the routes of map tiles, which has the store, for one path or for several at once."""
    app = FastAPI()
    app.add_api_route("/v1/images/results/{name}", results, methods=["GET"], name="mmout_result")
    routes = TileRoutes()
    routes.attach(app)
    app.state.mmout = Service(None, None, None, store, None)

    def ask(*paths, **headers):
        async def asked():
            await routes.start(app.state.mmout, app.state)
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://maps.example") as client:
                every = (client.get(f"/v1/images/results/{path}", headers=headers) for path in paths)
                return await asyncio.gather(*every)

        answers = asyncio.run(asked())
        return answers[0] if len(paths) == 1 else answers

    return ask


def kept(store, array, georeference=PLACE, **metadata):
    """Store a raster and return its name."""
    return store.keep(Encoded(RasterOutput(array, georeference=georeference, **metadata).to_bytes("tiff"), "tiff"))


@pytest.fixture(scope="module")
def classes(store):
    """A result of three classes with nodata, large enough for one overview."""
    array = NOISE.integers(0, 3, (1, 60, 60)).astype(np.uint8).repeat(10, 1).repeat(10, 2)
    array[:, 100:200, :50] = 255
    items = {"MMOUT_MODEL": "a<b>", "MMOUT_PROCESSOR": "segmentation"}
    return kept(store, array, nodata=255, palette=PALETTE, class_names=NAMES, metadata=items)


@pytest.fixture(scope="module")
def heights(store):
    """A result of floating point with nodata."""
    array = NOISE.normal(50, 9, (1, 300, 300)).astype(np.float32)
    array[:, 40:70, 90:120] = -9999
    return kept(store, array, nodata=-9999)


def at(longitude, latitude, zoom):
    """Return the column and row of the tile around a point, by the formulas of the slippy map."""
    y = (1 - math.asinh(math.tan(math.radians(latitude))) / math.pi) / 2
    return int((longitude + 180) / 360 * 2**zoom), int(y * 2**zoom)


def bounds(zoom, column, row):
    """Return a tile's (left, bottom, right, top) in metres."""
    half, side = math.pi * RADIUS, 2 * math.pi * RADIUS / 2**zoom
    return column * side - half, half - (row + 1) * side, (column + 1) * side - half, half - row * side


def warped(path, zoom, column, row, side, resampling, level=None):
    """Warp a file to a tile by hand: its band, and the mask of the pixels that it covers and that are not nodata."""
    options = {} if level is None else {"overview_level": level}
    left, _, right, top = bounds(zoom, column, row)
    step = (right - left) / side
    place = {"dst_transform": Affine(step, 0, left, 0, -step, top), "dst_crs": "EPSG:3857"}
    with rasterio.open(path, **options) as file:
        band, mask = np.zeros((side, side), file.dtypes[0]), np.zeros((side, side), np.uint8)
        reproject(rasterio.band(file, 1), band, resampling=resampling, **place)
        here = {"src_transform": file.transform, "src_crs": file.crs}
        reproject(file.read_masks(1), mask, resampling=Resampling.nearest, **here, **place)
    return band, mask > 0


def pixels(answer):
    """The pixels of a tile."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "image/png"
    return np.asarray(Image.open(BytesIO(answer.content)))


@pytest.mark.parametrize(
    ("zoom", "level", "ending", "side"),
    [(14, None, "", 256), (15, None, "@2x", 512), (12, 0, "", 256)],
    ids=["whole", "doubled", "overview"],
)
def test_classes_have_their_colours(get, store, classes, zoom, level, ending, side):
    """Classes are warped by nearest neighbour, from an overview if it is fine enough, in the saved colours."""
    column, row = at(9.003, 45.14, zoom)
    drawn = pixels(get(f"{classes}/tiles/{zoom}/{column}/{row}{ending}.png"))
    band, valid = warped(store.folder / classes, zoom, column, row, side, Resampling.nearest, level)
    assert valid.any()
    assert not valid.all()
    assert drawn.shape == (side, side, 4)
    assert np.array_equal(drawn[..., 3] == 255, valid)
    assert np.array_equal(drawn[valid][:, :3], PALETTE[band[valid]])


def test_measurements_are_grey_by_the_statistics_of_the_file(get, store, heights):
    """Values are interpolated and stretched between the file's extremes, so that neighbouring tiles fit together."""
    column, row = at(9.01, 45.14, 14)
    drawn = pixels(get(f"{heights}/tiles/14/{column}/{row}.png"))
    with rasterio.open(store.folder / heights) as file:
        items = file.tags(1)
    low, high = float(items["STATISTICS_MINIMUM"]), float(items["STATISTICS_MAXIMUM"])
    band, _ = warped(store.folder / heights, 14, column, row, 256, Resampling.bilinear)
    seen = band != -9999
    assert seen.any()
    assert not seen.all()
    assert np.array_equal(drawn[..., 1] == 255, seen)
    assert np.array_equal(drawn[seen][:, 0], np.rint((band[seen].astype(float) - low) / (high - low) * 255))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "float64"])
def test_three_bands_are_colours_and_other_bands_are_left_out(get, store, dtype):
    """Pixels outside of a result without nodata are transparent in each dtype."""
    array = NOISE.integers(0, 99, (3, 64, 64)).astype(dtype)
    column, row = at(9.0, 45.15, 13)
    for name, bands in ((kept(store, array), 4), (kept(store, array[:2]), 2)):
        drawn = pixels(get(f"{name}/tiles/13/{column}/{row}.png"))
        _, valid = warped(store.folder / name, 13, column, row, 256, Resampling.bilinear)
        assert drawn.shape[2] == bands
        assert np.array_equal(drawn[..., -1] == 255, valid)
        assert 0 < valid.sum() < valid.size


def test_a_band_with_nodata_hides_the_pixel(get, store):
    """A pixel is transparent if one of its three bands is nodata, as in the picture of the result."""
    array = np.full((3, 64, 64), 7, np.uint16)
    array[1, :, :32] = 0
    name = kept(store, array, nodata=0)
    column, row = at(9.004, 45.152, 15)
    drawn = pixels(get(f"{name}/tiles/15/{column}/{row}.png"))
    _, valid = warped(store.folder / name, 15, column, row, 256, Resampling.bilinear)
    left, _, right, _ = bounds(15, column, row)
    middle = transform("EPSG:32632", "EPSG:3857", [500320], [4999700])[0][0]
    edge = round((middle - left) / (right - left) * 256)
    assert not drawn[:, : edge - 2, 3].any()
    assert np.array_equal(drawn[:, edge + 2 :, 3] == 255, valid[:, edge + 2 :])
    assert valid[:, edge + 2 :].any()


def test_tiles_elsewhere_are_transparent(get, classes):
    """A tile without any pixel of the result is transparent, and no error, as map clients expect."""
    assert not pixels(get(f"{classes}/tiles/3/0/0.png"))[..., -1].any()


def test_a_result_across_180_degrees_has_tiles_on_both_sides(get, store):
    """West of the 180th meridian as well as east of it."""
    grid = Georeference(crs="EPSG:32660", transform=(1000.0, 0.0, 600000.0, 0.0, -1000.0, 200000.0))
    name = kept(store, np.ones((1, 200, 300), np.uint8), grid)
    west, east = (pixels(get(f"{name}/tiles/6/{column}/31.png"))[..., -1] for column in (63, 0))
    assert west[:, -1].any()
    assert east[:, 0].any()
    assert not east[:, -1].any()
    assert get(f"{name}/tilejson.json").json()["bounds"][::2] == [-180, 180]
    assert pixels(get(f"{name}/tiles/0/0/0.png"))[..., -1].any()


def test_a_turned_grid_has_tiles(get, store):
    """The area is that of its corners, and pixels lie where rasterio's warp puts them."""
    turned = Georeference(crs="EPSG:32632", transform=(8.0, -6.0, 500000.0, -6.0, -8.0, 5000000.0))
    name = kept(store, NOISE.integers(0, 3, (1, 200, 300)).astype(np.uint8), turned, palette=PALETTE)
    column, row = at(9.0, 45.14, 13)
    drawn = pixels(get(f"{name}/tiles/13/{column}/{row}.png"))
    band, valid = warped(store.folder / name, 13, column, row, 256, Resampling.nearest)
    assert 0 < valid.sum() < valid.size
    assert np.array_equal(drawn[..., 3] == 255, valid)
    assert np.array_equal(drawn[valid][:, :3], PALETTE[band[valid]])
    ends = transform(
        "EPSG:32632", "EPSG:4326", [500000 - 200 * 6, 500000 + 300 * 8], [5000000 - 200 * 8, 5000000 - 300 * 6]
    )
    document = get(f"{name}/tilejson.json").json()
    assert document["bounds"][::2] == pytest.approx(ends[0], abs=1e-4)


def test_the_whole_world_has_tiles(get, store):
    """A grid in degrees reaches the poles, which the map does not show."""
    degrees = Georeference(crs="EPSG:4326", transform=(1.0, 0.0, -180.0, 0.0, -1.0, 90.0))
    name = kept(store, np.ones((1, 180, 360), np.uint8), degrees)
    assert pixels(get(f"{name}/tiles/0/0/0.png"))[..., -1].all()
    document = get(f"{name}/tilejson.json").json()
    assert document["bounds"] == pytest.approx([-180, -85.0511, 180, 85.0511], abs=1e-4)
    assert document["maxzoom"] >= 1


def test_tilejson_says_where_the_tiles_are(get, classes):
    """Addresses, area, zooms and the legend; text from the file is escaped where clients may read it as HTML."""
    document = get(f"{classes}/tilejson.json").json()
    west, south, east, north = document["bounds"]
    corner = transform("EPSG:32632", "EPSG:4326", [500000, 506000, 500000], [5000000, 5000000, 4994000])
    assert (west, east, south) == pytest.approx((corner[0][0], corner[0][1], corner[1][2]), abs=1e-4)
    assert document["center"][:2] == pytest.approx([(west + east) / 2, (south + north) / 2])
    # A pixel of 10 metres at this latitude is 14.2 metres of the map; those of zoom 14 are 9.6.
    assert (document["minzoom"], document["maxzoom"]) == (0, 14)
    assert document["tiles"] == [f"http://maps.example/v1/images/results/{classes}/tiles/{{z}}/{{x}}/{{y}}.png"]
    assert document["attribution"] == "a&lt;b&gt; segmentation"
    assert document["classes"][1] == {"id": 1, "name": "water", "color": "#1428c8"}
    assert "range" not in document


def test_owslib_reads_the_capabilities(get, classes):
    """A WMTS client finds the layer, the address of its tiles and the standard's grid."""
    wmts = pytest.importorskip("owslib.wmts", reason="it reads WMTS")
    answer = get(f"{classes}/wmts?SERVICE=WMTS&REQUEST=GetCapabilities")
    service = wmts.WebMapTileService("http://maps.example/wmts", xml=answer.content)
    layer = service.contents["result"]
    west, south, east, north = get(f"{classes}/tilejson.json").json()["bounds"]
    assert layer.boundingBoxWGS84 == pytest.approx((west, south, east, north))
    assert layer.title == "a<b> segmentation"
    matrices = service.tilematrixsets["WebMercatorQuad"]
    assert matrices.crs == "urn:ogc:def:crs:EPSG::3857"
    assert matrices.tilematrix["0"].scaledenominator == pytest.approx(559082264.0287178)  # 17-083r4, table D.1
    limits = layer.tilematrixsetlinks["WebMercatorQuad"].tilematrixlimits["14"]
    assert (limits.mintilecol, limits.mintilerow) == at(west, north, 14)
    assert (limits.maxtilecol, limits.maxtilerow) == at(east, south, 14)
    column, row = at(9.03, 45.13, 14)
    address = service.buildTileResource(
        layer="result", tilematrixset="WebMercatorQuad", tilematrix="14", row=row, column=column, format="image/png"
    )
    assert address == f"http://maps.example/v1/images/results/{classes}/tiles/14/{column}/{row}.png"


def test_a_tile_is_asked_for_once(get, classes):
    """Clients keep a tile as long as the server keeps its result, and learn that it did not change."""
    path = f"{classes}/tiles/14/8602/5880.png"
    first = get(path)
    assert first.headers["cache-control"] == "private, max-age=600, immutable"
    again = get(path, **{"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_few_tiles_are_drawn_at_once(get, classes, monkeypatch):
    """Requests wait for their turn, and tiles that are drawn at the same time are those that are drawn alone."""
    column, row = at(9.003, 45.14, 14)
    paths = [f"{classes}/tiles/14/{column + right}/{row + down}.png" for right in range(3) for down in range(2)]
    alone = [get(path).content for path in paths]
    running, most, draw = [], [], MapLayer.tile

    def counted(layer, tile):
        running.append(tile)
        most.append(len(running))
        try:
            return draw(layer, tile)
        finally:
            running.remove(tile)

    monkeypatch.setattr(MapLayer, "tile", counted)
    assert [answer.content for answer in get(*paths)] == alone
    assert len(most) == len(paths)
    assert max(most) <= tile_routes._AT_ONCE


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("2/4/0.png", "x of a tile at zoom 2 must be 0 to 3, got 4"),
        ("2/0/4.png", "y of a tile at zoom 2 must be 0 to 3, got 4"),
        ("25/0/0.png", "a zoom of at most 24, got 25"),
        ("2/-1/0.png", "Z/X/Y.png"),
        ("2/0/0.jpg", "Z/X/Y.png"),
    ],
)
def test_a_tile_that_does_not_exist_is_refused(get, classes, path, message):
    """The error says which number is wrong."""
    answer = get(f"{classes}/tiles/{path}")
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


PIXELS = np.zeros((1, 8, 8), np.uint8)
CORNERS = tuple(GroundControlPoint(col, row, 9 + col, 45 - row, 0) for col, row in ((0, 0), (8, 0), (0, 8), (8, 8)))
MOON = 'GEOGCS["Moon",DATUM["Moon",SPHEROID["Moon",1737400,0]],PRIMEM["0",0],UNIT["degree",0.0174532925199433]]'


@pytest.mark.parametrize(
    ("georeference", "message"),
    [
        (None, "no georeference"),
        (Georeference(gcps=CORNERS, gcps_crs="EPSG:4326"), "control points"),
        (Georeference(crs=MOON, transform=(1.0, 0.0, 0.0, 0.0, -1.0, 9.0)), "cannot be converted to Web Mercator"),
        (Georeference(crs="EPSG:3031", transform=(10.0, 0.0, 0.0, 0.0, -10.0, 90.0)), "beyond Web Mercator"),
    ],
    ids=["none", "points", "moon", "pole"],
)
def test_a_result_that_has_no_place_on_the_map_is_refused(get, store, georeference, message):
    """Each route says why there are no tiles."""
    name = kept(store, PIXELS, georeference)
    for path in ("tiles/0/0/0.png", "tilejson.json", "wmts"):
        answer = get(f"{name}/{path}")
        assert answer.status_code == 400, path
        assert message in answer.json()["error"]["message"]


def test_a_large_file_without_overviews_is_refused(get, store, tmp_path):
    """Each tile would read all of it."""
    path = tmp_path / "plain.tif"
    options = {"driver": "GTiff", "count": 1, "dtype": "uint8", "SPARSE_OK": True, "tiled": True}
    with rasterio.open(
        path, "w", **options, width=9000, height=16, crs=4326, transform=Affine(0.01, 0, 0, 0, -0.01, 0)
    ):
        pass
    answer = get(f"{store.keep(Encoded(path.read_bytes(), 'tiff'))}/tiles/0/0/0.png")
    assert answer.status_code == 400
    assert "no overviews" in answer.json()["error"]["message"]


def test_other_results_are_refused(get, store):
    """A picture has no tiles, a damaged file none either, and a name that is not there is not found."""
    picture, damaged = store.keep(Encoded(b"png", "png")), store.keep(Encoded(b"II*\0", "tiff"))
    answers = [get(f"{name}/tilejson.json") for name in (picture, damaged, "x" * 43 + ".tif", "..%2Fsecret.tif")]
    assert [answer.status_code for answer in answers] == [400, 400, 404, 404]
    assert "ask for output_format=tiff" in answers[0].json()["error"]["message"]
    assert "cannot be read as GeoTIFF" in answers[1].json()["error"]["message"]


def test_a_server_without_results_has_no_tiles():
    """A model that gives no rasters has no results here."""
    app = FastAPI()
    TileRoutes().attach(app)
    app.state.mmout = "no output processor"

    async def asked():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://maps.example") as client:
            return await client.get("/v1/images/results/x/tilejson.json")

    assert asyncio.run(asked()).status_code == 404
