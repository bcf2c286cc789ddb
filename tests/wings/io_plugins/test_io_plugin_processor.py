"""What stands for an IO plugin: raw tensors travel, and its output gets a form over HTTP."""

from __future__ import annotations

import base64
import dataclasses
import io
from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from vllm_mmout import OutputParams
from vllm_mmout.errors import DecodeError
from vllm_mmout.wings.io_plugins.foreign.io_plugin_processor import io_plugin_processor, media_type_of

pytestmark = pytest.mark.engine
PARAMS = OutputParams()


class Model:
    """As one of pydantic's."""

    def __init__(self, **fields):
        self.fields = fields
        vars(self).update(fields)

    def model_dump(self, mode):
        """The fields."""
        assert mode == "json"
        return self.fields


@dataclasses.dataclass
class Row:
    """A result."""

    count: int
    data_format: str = "rows"


def processor(respond=None):
    """The one of a plugin."""
    made = io_plugin_processor("flood")()
    made.plugin_object = SimpleNamespace(output_to_response=respond)
    return made


def picture(format_):
    """The bytes of a picture."""
    file = io.BytesIO()
    Image.new("RGB", (4, 3)).save(file, format_)
    return file.getvalue()


def tiff(**options):
    """The bytes of a TIFF."""
    file = io.BytesIO()
    tifffile.imwrite(file, np.zeros((3, 4), np.uint8), **options)
    return file.getvalue()


FILES = {
    "TIFF": (tiff(), "image/tiff"),
    "big-endian TIFF": (tiff(byteorder=">"), "image/tiff"),
    "BigTIFF": (tiff(bigtiff=True), "image/tiff"),
    "PNG": (picture("PNG"), "image/png"),
    "JPEG": (picture("JPEG"), "image/jpeg"),
    "GIF": (picture("GIF"), "image/gif"),
    "WebP": (picture("WEBP"), "image/webp"),
    "sound": (b"RIFF\0\0\0\0WAVE", "application/octet-stream"),
    "nothing": (b"", "application/octet-stream"),
}


@pytest.mark.parametrize(("content", "media_type"), FILES.values(), ids=FILES)
@pytest.mark.parametrize("form", [dict, Model])
def test_a_file_in_base64_becomes_its_bytes(content, media_type, form):
    """A table or an object with such fields; what it is the bytes say."""
    output = form(data_format="b64_json", data=base64.b64encode(content).decode(), request_id="7")
    assert processor(lambda _: pytest.fail("not asked")).to_response(output, PARAMS) == (content, media_type)
    assert media_type_of(content) == media_type


@pytest.mark.parametrize("data", ["no base64!", "AAA", None, 5, {}])
def test_damaged_base64_is_the_plugins_fault(data):
    """The message says whose."""
    with pytest.raises(DecodeError, match=r"'flood'.*not base64"):
        processor().to_response({"data_format": "b64_json", "data": data}, PARAMS)


@pytest.mark.parametrize("form", [dict, Model])
def test_no_client_gets_a_path_of_the_server(form):
    """Nor is it in the message."""
    with pytest.raises(DecodeError, match="asked for b64_json") as caught:
        processor(lambda _: "hello").to_response(form(data_format="path", data="/root/secret.tif"), PARAMS)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("output", "response"),
    [
        (Model(a=1, data_format="table"), {"a": 1, "data_format": "table"}),
        (Row(3), {"count": 3, "data_format": "rows"}),
        ({"a": [1, 2]}, {"a": [1, 2]}),
        ([1, "x"], [1, "x"]),
        ("text", "text"),
    ],
)
def test_anything_else_is_json(output, response):
    """Fields of pydantic's models and of dataclasses."""
    assert processor().to_response(output, PARAMS) == response


def test_the_older_interface_makes_the_response():
    """Its ``output_to_response`` gives a model."""
    made = processor(lambda output: Model(request_id="1", data=output["a"]))
    assert made.to_response({"a": 5}, PARAMS) == {"request_id": "1", "data": 5}


@pytest.mark.parametrize("error", [KeyError("a"), SystemExit(3)])
def test_whatever_the_older_interface_raises_is_the_requests_error(error):
    """With the plugin's name, and the cause."""

    def respond(_):
        raise error

    with pytest.raises(DecodeError, match=r"'flood' failed in output_to_response") as caught:
        processor(respond).to_response({}, PARAMS)
    assert caught.value.__cause__ is error


def test_raw_tensors_travel():
    """As they are; of several the first, as vLLM itself hands them on."""
    first, second = torch.ones(2, 3), torch.zeros(2)
    made = processor()
    assert made.reduce(first, PARAMS) is first
    assert made.reduce({"a": first, "b": second}, PARAMS) is first
    assert made.decode(first, PARAMS) is first
