"""The ``data`` of the IO Processor plugin: TerraTorch's fields and options of a request become one typed request."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from vllm_mmout.engine.hooks.client_errors import InvalidOptionError
from vllm_mmout.errors import InputError, MMOutError
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.params import OutputParams
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.options import ServingOptions
from vllm_mmout.serving.request.fields import OPTIONS
from vllm_mmout.serving.response.format_choice import FormatChoice
from vllm_mmout.serving.response.result_files import Encoded
from vllm_mmout.wings.io_plugins.own.mmout_io_processor import _ClientRequest
from vllm_mmout.wings.io_plugins.own.plugin_data import FIELDS, checked_input, plugin_data

pytestmark = pytest.mark.engine
URL = "https://host/scene.tif"
BLOG = {"data": URL, "data_format": "url", "image_format": "tiff", "out_data_format": "b64_json"}


def refusal(given, **how):
    """The error of data that is refused."""
    with pytest.raises(ApiError) as caught:
        plugin_data(given, **how)
    assert caught.value.status == 400
    return caught.value


def test_what_terratorchs_clients_send():
    """The blog's JSON, and ``indices``, which count from 0; what is null was not sent."""
    asked = plugin_data({**BLOG, "indices": [5, 0], "out_path": None})
    assert (asked.data, asked.data_format, asked.out_data_format) == ((URL,), "url", "b64_json")
    assert asked.input == URL
    assert asked.format_choice == FormatChoice("tiff", as_file=True)
    assert asked.params == OutputParams(indices=(5, 0))
    least = plugin_data({"data": URL, "data_format": "url"})
    assert (least.format_choice, least.params) == (FormatChoice(as_file=True), OutputParams())


STUDIO = {**BLOG, "out_data_format": "path", "output_path": "run 7/"}


def test_where_the_geospatial_studio_wants_its_result(tmp_path):
    """Below the server's output root, in folders that are made; a file of a suffix is of that format."""
    served = ServingOptions(output_root=str(tmp_path))
    folder = plugin_data(STUDIO, served=served)
    written = folder.target.write(Encoded(b"tiff", "tiff"))
    assert (written.parent, written.suffix, written.read_bytes()) == (tmp_path / "run 7", ".tif", b"tiff")
    for name in ("a/mask.png", f"{tmp_path}/a/mask.png"):
        file = plugin_data({**STUDIO, "output_path": name, "image_format": None}, served=served)
        assert (file.target.path, file.image_format) == (tmp_path / "a/mask.png", "png")
    assert plugin_data({**STUDIO, "out_data_format": "url"}, served=served).target is None
    assert plugin_data({**BLOG, "output_path": "/anywhere"}).target is None


def test_no_result_lies_elsewhere_or_over_its_input(tmp_path):
    """Not by "..", a whole path, or a link; without a root nothing is written."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root/link").symlink_to(tmp_path)
    served = ServingOptions(output_root=str(tmp_path / "root"))
    for path in ("../x.tif", "/etc/x.tif", "link/x.tif", "a/../../x", "\0"):
        error = refusal({**STUDIO, "output_path": path}, served=served)
        assert (error.param, "--mmout-output-root" in error.message) == ("output_path", True)
    assert refusal({**STUDIO, "output_path": "x.png"}, served=served).param == "image_format"
    assert refusal({**STUDIO, "out_path": "other"}, served=served).param == "out_path"
    assert refusal(STUDIO).param == refusal({**BLOG, "out_data_format": "url"}).param == "out_data_format"
    target = plugin_data({**STUDIO, "output_path": "in.tif"}, served=served).target
    for name in (f"{tmp_path}/root/in.tif", f"file://{tmp_path}/root/in.tif"):
        with pytest.raises(ApiError, match="over its own input"):
            target.check_input((name,))


def test_options_stand_in_data():
    """Each option of a request but where it is written, with JSON's types."""
    asked = plugin_data({**BLOG, "overlap": 64, "output": "confidence", "window": [0, 1, 30, 40], "nodata": "nan"})
    assert asked.params.nodata != asked.params.nodata
    assert (asked.params.overlap, asked.params.output, asked.params.window) == (64, "confidence", Window(0, 1, 30, 40))
    assert {*FIELDS.apart, *FIELDS.options} - set(OPTIONS) == {
        "data",
        "data_format",
        "image_format",
        "out_data_format",
        "out_path",
        "output_path",
    }


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        (5, "data", "data must be an object"),
        (None, "data", "got None"),
        ([BLOG], "data", "data must be an object"),
        ("https://host/scene.tif", "data", "data must be an object"),
        ({}, "data_format", "data has no data_format; it must be one of url, path, b64_json"),
        ({"data_format": "url"}, "data", "data has no data"),
        ({**BLOG, "data": 5}, "data", "must be a text, a list of texts, or texts by name, got 5"),
        ({**BLOG, "data": []}, "data", "must be a text"),
        ({**BLOG, "data": ["", URL]}, "data", "must be a text"),
        ({**BLOG, "data": {"a": 5}}, "data", "or texts by name, got {'a': 5}"),
        ({**BLOG, "data": {}}, "data", "must be a text"),
        ({**BLOG, "data": "/etc/passwd"}, "data", "'/etc/passwd' is no address"),
        ({**BLOG, "data_format": "bytes"}, "data_format", "must be one of url, path, b64_json, got 'bytes'"),
        ({**BLOG, "data_format": ["url"]}, "data_format", "got ['url']"),
        ({**BLOG, "out_data_format": "url"}, "out_data_format", "must be one of b64_json, path, got 'url'"),
        ({**BLOG, "image_format": "bmp"}, "image_format", "image_format must be one of png, webp, jpeg"),
        ({**BLOG, "image_format": 5}, "image_format", "got '5'"),
        (
            {**BLOG, "overlapp": 3},
            "overlapp",
            "unknown field 'overlapp' in data; did you mean 'overlap'? (known: data,",
        ),
        ({**BLOG, "path": "out/x.tif"}, "path", "unknown field 'path'"),
        ({**BLOG, "part": True}, "part", "unknown field 'part'"),
        ({**BLOG, "overlap": "much"}, "overlap", "overlap must be whole number"),
        ({**BLOG, "indices": [-1]}, "indices", "must count from 0, got -1"),
        ({**BLOG, "indices": [0], "bands": [1]}, "bands", "bands and indices are both set"),
        ({**BLOG, "processor": ["segmentation"]}, "processor", "must be one name"),
        ({**BLOG, "out_data_format": "path"}, "out_data_format", "/v1/scenes"),
        ({**BLOG, "out_path": 5}, "out_path", "must be a folder or a file, got 5"),
        ({**BLOG, "image_format": 0}, "image_format", "got '0'"),
        ({**BLOG, "data_format": ""}, "data_format", "must be one of url, path, b64_json, got ''"),
        ({**BLOG, "bands": []}, "bands", "bands"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_mistakes_name_their_field(given, param, words):
    """Each is 400, says which field it is about, and what may stand there."""
    error = refusal(given)
    assert words in error.message
    assert error.param == param


def test_a_long_value_is_shown_by_its_begin():
    """A message quotes no megabytes, and no repr of a request does."""
    assert len(refusal({**BLOG, "data": "x" * 1_000_000}).message) < 400
    assert len(refusal({**BLOG, "data_format": "y" * 1_000_000}).message) < 400
    assert len(refusal({**BLOG, "z" * 1_000_000: 1}).message) < 600
    assert len(repr(plugin_data({"data": "A" * 1_000_000, "data_format": "b64_json"}))) < 500


def test_base64_is_a_file():
    """As TerraTorch decodes it, with line breaks too; what is none is an error."""
    text = base64.encodebytes(bytes(range(200))).decode()
    asked = plugin_data({"data": text, "data_format": "b64_json"})
    upload = asked.input
    assert (upload.file.read(), upload.size) == (bytes(range(200)), 200)
    assert asked.local_input == bytes(range(200))
    for wrong in ("§§", "AAA", "A=AA", "AA*A"):
        with pytest.raises(InputError, match="is not base64") as caught:
            _ = plugin_data({"data": wrong, "data_format": "b64_json"}).input
        assert caught.value.param == "data"
    checked_input(asked, 300)
    with pytest.raises(InputError, match="more than 100 bytes"):
        checked_input(asked, 100)


def test_paths_over_http_are_those_of_file_addresses():
    """A path goes the way of a ``file://`` address, whatever signs it has; one that is not whole is refused."""
    path = "/data/a b#c?d%41 ü.tif"
    from urllib.parse import unquote, urlsplit

    address = plugin_data({"data": path, "data_format": "path"}).input
    parts = urlsplit(address)
    assert (parts.scheme, unquote(parts.path), parts.query, parts.fragment) == ("file", path, "", "")
    for wrong in ("scene.tif", "../scene.tif", "file:///data/scene.tif"):
        with pytest.raises(InputError, match="must be absolute"):
            _ = plugin_data({"data": wrong, "data_format": "path"}).input


def test_several_files_are_one_input():
    """A list is the files of one input, as bands or dates; names tell which is which."""
    asked = plugin_data({"data": ["/a.tif", "/b.tif"], "data_format": "path"}, local=True)
    assert asked.local_input == [Path("/a.tif"), Path("/b.tif")]
    assert asked.input == ["file:///a.tif", "file:///b.tif"]
    asked = plugin_data({"data": {"red": "/a.tif", "blue": "/b.tif"}, "data_format": "path"}, local=True)
    assert asked.local_input == {"red": Path("/a.tif"), "blue": Path("/b.tif")}
    assert asked.input == {"red": "file:///a.tif", "blue": "file:///b.tif"}


def test_a_caller_on_this_machine_says_where_to(tmp_path):
    """``out_path`` with ``out_data_format`` "path"; with another one it is nothing, as to TerraTorch's plugin."""
    given = {"data": tmp_path / "in.tif", "data_format": "path", "out_data_format": "path", "out_path": tmp_path}
    asked = plugin_data(given, local=True)
    assert (asked.params.path, asked.folder) == (str(tmp_path), None)
    assert asked.params_of(Binding(), "classes") == asked.params
    assert asked.local_input == tmp_path / "in.tif"
    assert plugin_data({**BLOG, "out_path": str(tmp_path)}) == plugin_data(BLOG)


@pytest.mark.parametrize("empty", [{"image_format": ""}, {"indices": []}, {"out_path": ""}, {"indices": ()}], ids=str)
def test_empty_fields_are_as_left_out(empty):
    """TerraTorch's plugin takes them so."""
    least = {"data": URL, "data_format": "url"}
    assert plugin_data({**least, **empty}) == plugin_data(least)


class TestNoPath:
    """``out_data_format`` "path" of a caller on this machine who says no ``out_path``."""

    GIVEN = {"data": "/in.tif", "data_format": "path", "out_data_format": "path"}  # noqa: RUF012 - not changed
    CONFIG = "TERRATORCH_SEGMENTATION_IO_PROCESSOR_CONFIG"

    @pytest.mark.parametrize("config", [None, "", "{}", '{"output_path": null}', '{"output_path": "", "other": 1}'])
    def test_it_goes_home(self, monkeypatch, tmp_path, config):
        """As TerraTorch's plugin has it, to a file of its own."""
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv(self.CONFIG, raising=False)
        if config is not None:
            monkeypatch.setenv(self.CONFIG, config)
        paths = {Path(plugin_data(self.GIVEN, local=True).params_of(Binding(), "classes").path) for _ in range(2)}
        assert len(paths) == 2
        assert {(path.parent, path.suffix) for path in paths} == {(tmp_path, ".tif")}

    @pytest.mark.parametrize(
        ("asked", "suffix"), [({}, ".tif"), ({"image_format": "png"}, ".png"), ({"output": "areas"}, ".json")]
    )
    def test_a_configured_folder(self, monkeypatch, tmp_path, asked, suffix):
        """That of TerraTorch's plugin; the name ends as the result's format wants it."""
        folder = tmp_path / "results"
        folder.mkdir()
        monkeypatch.setenv(self.CONFIG, json.dumps({"output_path": str(folder)}))
        data = plugin_data({**self.GIVEN, **asked}, local=True)
        assert data.check(Binding()) == "classes"
        path = Path(data.params_of(Binding(), "classes").path)
        assert (path.parent, path.suffix) == (folder, suffix)
        assert not list(folder.iterdir())

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            ('{"output_path": "/no/such/folder"}', "/no/such/folder, which TERRATORCH_"),
            ('{"output_path": 5}', "must be JSON such as"),
            ("no json", "or give out_path"),
        ],
    )
    def test_what_is_wrong_with_it(self, monkeypatch, config, words):
        """Is said with the name of the variable."""
        monkeypatch.setenv(self.CONFIG, config)
        error = refusal(self.GIVEN, local=True)
        assert words in error.message
        assert self.CONFIG in error.message
        assert error.param == "out_path"

    def test_results_without_a_format(self, monkeypatch, tmp_path):
        """Of those nobody knows how a file is called."""
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv(self.CONFIG, raising=False)
        binding = Binding()
        binding.processors = {"any": type("Any", (), {"formats": lambda self, params: None})()}
        with pytest.raises(MMOutError, match="results of any have no default format; name the file with out_path"):
            plugin_data(self.GIVEN, local=True).params_of(binding, "any")


class Processor:
    """Says what it makes."""

    def formats(self, params):
        """Rasters, or areas."""
        return {".json": "json"} if params.output == "areas" else {".tif": "tiff", ".png": "png"}


class Binding:
    """Of a model with one processor."""

    model = "any"
    inputs = None
    processors = {"classes": Processor()}  # noqa: RUF012 - a stand-in

    class choice:  # noqa: N801 - a stand-in
        """Picks it."""

        @staticmethod
        def pick(processor):
            """The one."""
            return ("classes",)

    def check_params(self, params):
        """All are known."""


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"image_format": "tiff", "output": "areas"}, "image_format"),
        ({"image_format": "webp"}, "image_format"),
        ({"image_format": "tiff", "out_data_format": "path", "out_path": "a.png"}, "image_format"),
        ({"image_format": "png", "out_data_format": "path", "out_path": "out/"}, "image_format"),
    ],
    ids=str,
)
def test_a_format_that_the_result_cannot_have(given, param):
    """It is refused before the model runs, by the field that the client sent."""
    asked = plugin_data({"data": "/a.tif", "data_format": "path", **given}, local=True)
    with pytest.raises(MMOutError) as caught:
        asked.check(Binding())
    assert caught.value.param == param


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"image_format": "GeoTIFF"},
        {"image_format": "png"},
        {"output": "areas"},
        {"image_format": "png", "out_data_format": "path", "out_path": "a.png"},
        {"image_format": "tiff", "out_data_format": "path", "out_path": "out/"},
    ],
    ids=str,
)
def test_formats_that_it_can_have(given):
    """The name of the processor comes back."""
    asked = plugin_data({"data": "/a.tif", "data_format": "path", **given}, local=True)
    assert asked.check(Binding()) == "classes"


def test_a_model_that_takes_no_files_is_named():
    """The plugin hands a model files, which not every mapper takes."""

    class Inputs:
        opens_files = False
        takes = "what its input mapper takes"

    binding = Binding()
    binding.inputs = Inputs()
    with pytest.raises(
        InputError, match="takes what its input mapper takes, and the IO Processor plugin passes files to it"
    ):
        plugin_data(BLOG).check(binding)


def test_uploads_stand_at_their_start():
    """What the server opens is read from its start on."""
    upload = plugin_data({"data": base64.b64encode(b"abc").decode(), "data_format": "b64_json"}).input
    assert isinstance(upload.file, io.BytesIO)
    assert upload.file.tell() == 0


@pytest.mark.parametrize(("name", "value"), [("size", "99999x99999"), ("num_inference_steps", 99_999)])
def test_limits_of_what_a_model_makes_hold_on_routes_of_vllm(name, value):
    """A request that reaches the plugin through vLLM is refused as it is on this package's own route."""
    asked = plugin_data({"data": URL, "data_format": "url", name: value})
    engine = SimpleNamespace(output_processor=SimpleNamespace(binding=Binding()))
    request = _ClientRequest(asked, None, ServingOptions())  # no source is opened
    with pytest.raises(InvalidOptionError, match=name) as caught:
        asyncio.run(anext(request.outputs(engine, "request-1", {})))
    assert caught.value.parameter == name
