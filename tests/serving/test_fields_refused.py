"""Fields of requests that are refused, each by its name."""

from __future__ import annotations

import pytest
from sent_requests import IMAGE, edited, filled, multipart, read, refusal

from vllm_mmout.serving.request.fields import edit_request, generation_request

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("n", "2"), ("n", "0"), ("n", "one"), ("n", "1.5"), ("size", "large"), ("size", "0x5"), ("quality", "high"),
        ("quality", "hd"), ("output_format", "bmp"), ("output_format", "svg"), ("output_compression", "101"),
        ("output_compression", "-1"), ("background", "white"), ("response_format", "b64"), ("stream", "yes"),
        ("stream", "2"), ("partial_images", "4"), ("partial_images", "1"), ("user", "x" * 513),
        ("prompt", "x" * 32_001), ("model", "x" * 513), ("tile", "x"), ("tile", "0"), ("tile", "9" * 5000),
        ("overlap", "-1"), ("overlap", "0x10"), ("bands", "2,,4"), ("bands", "[2"), ("bands", "{}"),
        ("bands", "[[2]]"), ("bands", "[]"), ("bands", "0"), ("bands[]", ""), ("bands", "[" * 5000),
        ("bands[][]", "2"), ("bands[0]", "2"), ("bands[", "2"), ("indices", "-1"), ("indices", "a"), ("scale", "0"),
        ("scale", "nan"), ("scale", "1,x"), ("offset", "inf"), ("window", "1,2,3"), ("window", "0,0,0,0"),
        ("window[row]", "1"), ("window[rows]", "1"), ("bbox", "1,2,3"), ("bbox", "nan,0,1,1"),
        ("bbox_crs", "EPSG:4326"), ("resampling", "cubic"), ("blend", "sharp"), ("simplify", "-1"), ("tile[]", "64"),
        ("aoi", "area.geojson"), ("aoi", "[]"), ("aoi", '{"type": "Point"}'), ("aoi_crs", "EPSG:4326"),
        ("nodata", "none"), ("processor", "a,a"), ("path", "/srv/x.tif"), ("path", "s3:/a/x"), ("part", "true"),
        ("mask", "x"), ("moderation", "low"), ("input_fidelity", "high"), ("svg[model]", "x"), ("style", "vivid"),
        ("band", "2"), ("prompts", "x"), ("x" * 150, "1"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(field, text) -> None:
    """400 with ``param``, for values, spellings and names."""
    name = field.partition("[")[0]
    param = {"bbox_crs": "bbox", "aoi_crs": "aoi", "x" * 150: "x" * 100}.get(name, name)
    error = refusal(filled, (field, text))
    assert error.param == param
    assert len(error.message) < 600


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2}, "n"), ({"n": "1"}, "n"), ({"n": True}, "n"), ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"), ({"bands": "2"}, "bands"), ({"bands": 2}, "bands"), ({"bands": [2.5]}, "bands"),
        ({"bands": [None]}, "bands"), ({"tile": "64"}, "tile"), ({"tile": 64.5}, "tile"),
        ({"tile": 10**18 * 100}, "tile"), ({"nodata": "none"}, "nodata"), ({"nodata": []}, "nodata"),
        ({"prompt": 5}, "prompt"), ({"prompt": ["x"]}, "prompt"), ({"window": {"row": 1}}, "window"),
        ({"window": {"row": "1"}}, "window"), ({"window": [1, 2]}, "window"), ({"path": "x"}, "path"),
        ({"part": True}, "part"), ({"output_format": 3}, "output_format"), ({"partial_images": 2}, "partial_images"),
        ({"processor": {}}, "processor"), ({"tiles": 1}, "tiles"), ({"image": 5}, "image"), ({"image": [5]}, "image"),
        ({"image": {"url": "x"}}, "image"), ({"image": None}, "image"), ({"image": []}, "image"),
        ({"image": ""}, "image"), ({"image": ["data:,x"] * 101}, "image"), ({"images": ["data:,x"]}, "images"),
        ({"aoi": __file__}, "aoi"), ({"aoi": []}, "aoi"), ({"aoi": {"type": "Point"}}, "aoi"),
        ({"mask": "x"}, "mask"), ({"image": [{"file_id": "x"}]}, "image"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_a_wrong_field_of_json_is_named(body, param) -> None:
    """JSON has types: numbers in texts are none."""
    error = refusal(edit_request, {"image": "data:,x"} | body)
    assert error.param == param
    assert len(error.message) < 600


@pytest.mark.parametrize("body", [None, [], "x", 5, ["image"]])
def test_json_that_is_no_object_is_refusal(body) -> None:
    """On both routes that take JSON."""
    refusal(edit_request, body)
    refusal(generation_request, body)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ([("output_format", "png"), ("output_compression", "50")], "output_compression"),
        ([("output_format", "tiff"), ("output_compression", "50")], "output_compression"),
        ([("output_format", "jpg"), ("background", "transparent")], "background"),
        ([("output_format", "tiff"), ("background", "transparent")], "background"),
        ([("output_format", "npz"), ("background", "opaque")], "background"),
        ([("partial_images", "2")], "partial_images"),
        ([("partial_images", "2"), ("stream", "false")], "partial_images"),
        ([("stream", "true"), ("response_format", "url")], "response_format"),
        ([("bands", "2"), ("indices", "1")], "bands"),
        ([("tile", "64"), ("overlap", "33")], "overlap"),
        ([("window", "0,0,1,1"), ("bbox", "0,0,1,1")], "bbox"),
        ([("tile", "64"), ("tile", "64")], "tile"),
        ([("prompt", "a"), ("prompt", "b")], "prompt"),
        ([("bands", "1"), ("bands[]", "2")], "bands"),
        ([("tile", "64"), ("tile[]", "64")], "tile"),
        ([("window", "0,0,1,1"), ("window[row]", "2")], "window"),
        ([("image", "data:,x")], "image"),
    ],
    ids=str,
)
def test_fields_that_do_not_go_together_are_refusal(fields, param) -> None:
    """Nothing is silently ignored."""
    assert refusal(filled, *fields).param == param


@pytest.mark.parametrize(
    "fields",
    [
        [("output_format", "webp"), ("output_compression", "0"), ("background", "transparent")],
        [("output_format", "jpeg"), ("output_compression", "100"), ("background", "opaque")],
        [("output_compression", "50"), ("background", "transparent")],
        [("response_format", "url"), ("output_format", "tiff"), ("background", "auto")],
        [("stream", "1"), ("partial_images", "0")],
        [("quality", "standard")],
    ],
    ids=str,
)
def test_fields_that_go_together_are_taken(fields) -> None:
    """Formats that are chosen later, by the header or the result, are checked later."""
    request = filled(*fields)
    for name, text in fields:
        if name in {"output_format", "background", "response_format"}:
            assert getattr(request, name) == text


def test_messages_help() -> None:
    """A near name, the types in plain words, and what to do instead."""
    assert "did you mean 'bands'" in refusal(filled, ("band", "2")).message
    assert "did you mean 'output_format'" in refusal(filled, ("format", "png")).message
    assert "a list of whole numbers or texts" in refusal(filled, ("bands", "[[2]]")).message
    assert "4 numbers" in refusal(filled, ("bbox", "1,2")).message
    assert "where the server writes" in refusal(filled, ("path", "x")).message
    assert "whole image" in refusal(edited, mask=b"x").message


@pytest.mark.parametrize(
    ("name", "param"), [("bands", "bands"), ("mask", "mask"), ("markup", "markup"), ("file", "file")]
)
def test_a_file_in_another_field_is_refusal(name, param) -> None:
    """Only images are files."""
    assert refusal(read, multipart(IMAGE, (name, ("x.txt", b"2")))).param == param
