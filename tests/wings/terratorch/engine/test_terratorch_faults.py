"""What vLLM's IO Processor plugins get wrong with TerraTorch's, sent to ours: each answer is right, or a plain 400.

The faults are listed in docs/io-plugins.md; ``python -m benchmarks peer_faults`` sends the same to both.
"""

from __future__ import annotations

import base64
import io
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import rasterio
import rasterio.warp
from asked_server import metric, open_files, posted
from plain_terratorch import check_mask, location_of, read, shares
from serving import START_S, served

pytestmark = pytest.mark.slow
TILE, OVERLAP, CLASSES, NODATA = 224, 64, 4, -9999
ALLOWED = ("--allowed-media-domains", "127.0.0.1", "--allowed-local-media-path")
FETCHING = {"MMOUT_FETCH_TIMEOUT": "5", "MMOUT_FETCH_RETRIES": "0"}


@pytest.fixture(scope="module")
def crops(model_folder):
    """Prithvi tiny with four classes: of two, ids times 255 would be 0 and 255 alone."""
    from make_model import Recipe

    return model_folder(Recipe(classes=CLASSES))


@pytest.fixture(scope="module")
def server(crops, scene):
    """A server of `crops` with our plugin; clients may name files beside the scene, and this machine by its number."""
    flags = ("--dtype", "float32", "--io-processor-plugin", "mmout", *ALLOWED, str(scene.parent))
    with served(crops, *flags, environment=FETCHING) as running:
        yield running


@pytest.fixture(scope="module")
def logits(plain, crops, scene):
    """The plain model's of `scene`, float32 [4, 448, 448]."""
    return plain(crops).by_tiles(read(scene), location_of(scene))


@pytest.fixture
def well(server, scene, logits):
    """Checks that a server is as it was: it is healthy, and answers the next request right."""

    def check():
        assert httpx.get(f"{server.url}/health", timeout=60, trust_env=False).status_code == 200
        check_mask(mask_of(asked(server, scene)), logits)

    return check


@pytest.fixture
def written(scene):
    """Writes pixels beside the scene, with its profile."""

    def write(name, pixels, **fields):
        with rasterio.open(scene) as file:
            profile = {**file.profile, **fields, "count": len(pixels), "dtype": pixels.dtype.name}
        with rasterio.open(scene.with_name(name), "w", **profile) as file:
            file.write(pixels)
        return scene.with_name(name)

    return write


def asked(server, data, *, headers=None, **fields):
    """The answer to a file, or to what else stands in ``data``, as TerraTorch's clients ask for it."""
    named = {"data": str(data), "data_format": "path", "image_format": "tiff", "out_data_format": "b64_json", **fields}
    return posted_json(server, {"data": named, "softmax": False}, headers)


def posted_json(server, body, headers=None):
    """The answer to a body."""
    return httpx.post(f"{server.url}/pooling", json=body, headers=headers, timeout=START_S, trust_env=False)


def opened(answer):
    """The file of a good answer."""
    assert answer.status_code == 200, answer.text
    return rasterio.open(io.BytesIO(base64.b64decode(answer.json()["data"]["data"])))


def mask_of(answer):
    """Class ids [height, width] of a good answer."""
    with opened(answer) as file:
        assert file.count == 1
        return file.read(1)


def check_gaps(answer, gaps, logits):
    """Gaps are nodata, and nothing else is; where something was observed the class is the plain model's."""
    with opened(answer) as file:
        mask = file.read(1)
        assert file.nodata == 255
        np.testing.assert_array_equal(file.read_masks(1) == 0, gaps)
    check_mask(np.where(gaps, logits.argmax(0), mask), logits, least=0.01, most_unsure=5e-4)


def check_refused(answer, param, words):
    """It is the client's mistake, of this field, in the form that OpenAI's clients read."""
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (param, 400, "BadRequestError"), error
    assert words in error["message"], error


class TestRightAnswers:
    def test_class_ids(self, server, scene, logits, well):
        """Four classes are 0, 1, 2, 3, not multiplied by 255; nodata is none of them, nothing is masked."""
        with opened(asked(server, scene)) as file, rasterio.open(scene) as before:
            mask = file.read(1)
            assert (file.dtypes, file.nodata) == (("uint8",), 255)
            assert (file.crs, file.transform, file.shape) == (before.crs, before.transform, before.shape)
            assert file.read_masks(1).all()
        assert np.unique(mask).tolist() == [0, 1, 2, 3]
        assert shares(mask, CLASSES).min() >= 0.1
        check_mask(mask, logits)
        well()

    def test_nodata(self, server, scene_with_gaps, plain, crops, written, well):
        """Nodata of the input is nodata of the result; class 0 is not."""
        pixels, place = read(scene_with_gaps), location_of(scene_with_gaps)
        gaps = (pixels == NODATA).any(0)
        file = written("gaps.tif", pixels, nodata=NODATA)
        check_gaps(asked(server, file), gaps, plain(crops).by_tiles(np.where(gaps, 0, pixels), place))
        well()

    def test_mostly_nodata(self, server, scene, plain, crops, written, well):
        """Of a scene that is -9999 for the most part the rest is scaled as that of any other."""
        pixels = read(scene)
        gaps = np.zeros(pixels.shape[1:], bool)
        gaps[:, :300] = True
        assert np.where(gaps, NODATA, pixels).mean() < 1
        file = written("mostly.tif", np.where(gaps, np.int16(NODATA), pixels), nodata=NODATA)
        logits = plain(crops).by_tiles(np.where(gaps, 0, pixels), location_of(scene))
        check_gaps(asked(server, file), gaps, logits)
        well()

    def test_nan(self, server, scene, plain, crops, written, well):
        """One pixel that is NaN is one pixel of nodata."""
        pixels = read(scene).astype(np.float32)
        gaps = np.zeros(pixels.shape[1:], bool)
        gaps[100, 120] = True
        file = written("nan.tif", np.where(gaps, np.float32(np.nan), pixels))
        check_gaps(asked(server, file), gaps, plain(crops).by_tiles(np.where(gaps, 0, pixels), location_of(scene)))
        well()

    def test_no_crs(self, server, scene, plain, crops, written, well):
        """A file that does not say where it lies is answered without a location."""
        answer = asked(server, written("nowhere.tif", read(scene), crs=None))
        with opened(answer) as file:
            assert file.crs is None
        check_mask(mask_of(answer), plain(crops).by_tiles(read(scene)))
        well()

    def test_overlap(self, server, scene, plain, crops, well):
        """Tiles overlap where a request says so: the probabilities of both fade into each other."""
        side = 2 * TILE - OVERLAP
        with rasterio.open(scene) as file:
            place = file.xy(side / 2 - 0.5, side / 2 - 0.5)
            (longitude,), (latitude,) = rasterio.warp.transform(file.crs, "EPSG:4326", *([value] for value in place))
        pixels, sums = read(scene), np.zeros((CLASSES, side, side))
        for row in (0, side - TILE):
            for col in (0, side - TILE):
                spot = np.s_[:, row : row + TILE, col : col + TILE]
                tile = plain(crops).by_tiles(pixels[spot], (latitude, longitude)).astype(np.float64)
                weights = np.exp(tile - tile.max(0))
                sums[spot] += weights / weights.sum(0) * np.outer(fade(row > 0), fade(col > 0))
        np.testing.assert_allclose(sums.sum(0), 1)
        mask = mask_of(asked(server, scene, window=[0, 0, side, side], overlap=OVERLAP))
        assert (mask == sums.argmax(0)).mean() >= 0.9999
        apart = [plain(crops).by_tiles(pixels[:, :TILE, col : col + TILE], (latitude, longitude)) for col in (0, TILE)]
        assert (mask[:TILE] != np.concatenate(apart, 2).argmax(0)[:, :side]).any()
        well()

    def test_not_square(self, model_folder, plain, scene):
        """Tiles that are not square are not made so."""
        from make_model import Recipe

        folder = model_folder(Recipe(classes=CLASSES, tile=(TILE, 2 * TILE)))
        flags = ("--dtype", "float32", "--io-processor-plugin", "mmout", *ALLOWED, str(scene.parent))
        with served(folder, *flags) as wide:
            mask = mask_of(asked(wide, scene))
        check_mask(mask, plain(folder).by_tiles(read(scene), location_of(scene)), most_unsure=5e-4)


def fade(second):
    """What one of two tiles counts for along an axis: an eighth of a wave in the middle half of what they share."""
    distance = np.arange(TILE) + 0.5 if second else TILE - np.arange(TILE) - 0.5
    return np.sin(np.clip((distance - OVERLAP / 4) / (OVERLAP / 2), 0, 1) * np.pi / 2) ** 2


class TestMistakes:
    @pytest.mark.parametrize(
        ("make", "words"),
        [
            pytest.param(lambda path: path.unlink(), "there is no file", id="missing"),
            pytest.param(lambda path: path.write_text("no raster at all, " * 20), "not an image", id="not a TIFF"),
            pytest.param(
                lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
                "truncated or damaged",
                id="truncated",
            ),
        ],
    )
    def test_files(self, server, scene, written, well, make, words):
        """A file that is none."""
        path = written("broken.tif", read(scene))
        make(path)
        check_refused(asked(server, path), "data", words)
        well()

    @pytest.mark.parametrize("count", [3, 7])
    def test_bands(self, server, scene, written, well, count):
        """A file with fewer bands than the model takes, and one with more; of the latter ``indices`` choose."""
        pixels = read(scene)
        file = written(f"bands{count}.tif", np.concatenate([pixels[:1], pixels])[-count:])
        check_refused(asked(server, file), "data", f"has {count} bands")
        if count > len(pixels):
            chosen = asked(server, file, indices=[1, 2, 3, 4, 5, 6])
            np.testing.assert_array_equal(mask_of(chosen), mask_of(asked(server, scene)))
        well()

    @pytest.mark.parametrize(
        ("data", "param", "words"),
        [
            ({"data": 5}, "data_format", "it must be one of url, path, b64_json"),
            ({"data": 5, "data_format": "path"}, "data", "must be a text"),
            ({"data": 5, "data_format": "url"}, "data", "must be a text"),
            (5, "data", "data must be an object"),
        ],
    )
    def test_file_descriptors(self, server, well, data, param, words):
        """A number is no file, and the server's own files stay open."""
        before = {file for file in open_files(server) if "mmout-result" not in file}  # one may be on its way out
        check_refused(posted_json(server, {"data": data}), param, words)
        assert open_files(server) >= before
        well()

    def test_its_own_address(self, server, well):
        """An address of the server itself is fetched as any other, while the server goes on answering."""
        check_refused(asked(server, f"{server.url}/metrics", data_format="url"), "data", "not an image")
        local = server.url.replace("127.0.0.1", "localhost")
        check_refused(asked(server, f"{local}/metrics", data_format="url"), "data", "not among those")
        well()

    @pytest.mark.parametrize(
        ("address", "words"),
        [
            ("http//host/a.tif", "is no address"),
            ("ftp://127.0.0.1/a.tif", "is no address"),
            ("http://127.0.0.1:9/a.tif", "cannot be fetched"),
            ("http://host.invalid/a.tif", "not among those"),
            ("file:///etc/hostname", "not within the folder"),
        ],
    )
    def test_addresses(self, server, well, address, words):
        """An address that is none, that nobody answers at, or that a client may not name."""
        check_refused(asked(server, address, data_format="url"), "data", words)
        well()

    def test_paths_elsewhere(self, server, scene, tmp_path, well):
        """A client names files of the allowed folder alone."""
        outside = tmp_path / "outside.tif"
        outside.write_bytes(scene.read_bytes())
        scene.with_name("link.tif").symlink_to(outside)
        upwards = f"{scene.parent}/../{tmp_path.name}/outside.tif"
        for path in (outside, upwards, scene.with_name("link.tif")):
            check_refused(asked(server, path), "data", "not within the folder")
        well()

    def test_where_the_server_writes(self, server, scene, tmp_path, well):
        """Is not for a client to say."""
        told = asked(server, scene, out_data_format="path", out_path=str(tmp_path))
        check_refused(told, "out_data_format", "a client cannot choose where the server writes")
        assert asked(server, scene, out_path=str(tmp_path)).status_code == 200  # it is for "path" alone
        assert not list(tmp_path.iterdir())
        well()


class TestManyClients:
    def test_one_request_id(self, server, scene, logits, well):
        """Requests in flight may have one id; each gets its own answer."""
        rows = [0, 224, 0, 224]

        def ask(row):
            where = {"window": [row, 0, TILE, 2 * TILE], "location": location_of(scene)}
            return asked(server, scene, headers={"X-Request-Id": "mine"}, **where)

        with ThreadPoolExecutor(len(rows)) as threads:
            for row, answer in zip(rows, threads.map(ask, rows), strict=True):
                check_mask(mask_of(answer), logits[:, row : row + TILE], least=0.01)
                assert answer.json()["request_id"] == "pooling-mine"
        well()

    def test_who_goes_away(self, server, scene, written, well):
        """A client that closes its connection ends its request: nothing runs on, and no file stays open."""
        large = written("large.tif", np.tile(read(scene), (1, 4, 4)), height=4 * 448, width=4 * 448)
        before = open_files(server)
        body = {"data": {"data": str(large), "data_format": "path"}}
        connection = posted(server, "/pooling", json=body)
        until(lambda: str(large) in open_files(server))
        connection.close()
        until(lambda: metric(server, "vllm:num_requests_running") == 0 and open_files(server) <= before)
        well()

    def test_other_routes(self, server, scene, logits, well):
        """The plugin stands beside the server's other routes, not in their place."""
        with scene.open("rb") as file:
            answer = httpx.post(
                f"{server.url}/v1/images/edits",
                files={"image": file},
                headers={"Accept": "image/tiff"},
                timeout=START_S,
                trust_env=False,
            )
        with rasterio.open(io.BytesIO(answer.raise_for_status().content)) as file:
            check_mask(file.read(1), logits)
        well()


def until(holds):
    """Wait for what comes with time."""
    deadline = time.monotonic() + START_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
