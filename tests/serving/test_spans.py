"""OpenTelemetry's spans, where vLLM traces: a user's request with those of its tiles below it."""

from __future__ import annotations

import secrets

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from scene_clients import ask
from scenes_for_tests import pixels, write

rasterio = pytest.importorskip("rasterio", reason="makes the scenes")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]


def attributes(span):
    """What a span says, numbers and texts."""
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


def traced(guarded_server, collector, content, count, path="/v1/images/edits", **form):
    """An answer, and the spans below that of a client: one of the request, then those of the engine's."""
    trace_id, client = secrets.token_bytes(16), secrets.token_bytes(8)
    headers = {"Authorization": "Bearer secret", "traceparent": f"00-{trace_id.hex()}-{client.hex()}-01"}
    said = ask(guarded_server, "POST", path, files={"image": content}, data=form, headers=headers)
    found = collector.of_trace(trace_id, count)
    (ours,) = [span for span in found if span.name == "mmout_request"]
    assert ours.parent_span_id == client
    below = [span for span in found if span is not ours]
    assert {span.parent_span_id for span in below} <= {ours.span_id}
    return said, ours, below


def test_the_tiles_of_a_scene_lie_below_its_request(guarded_server, collector, tmp_path):
    """Which lies below the client's span; it says how many tiles there were, and of how many pixels."""
    content = write(tmp_path / "scene.tif", pixels(3, height=80, width=160)).read_bytes()
    said, ours, below = traced(guarded_server, collector, content, 1 + 6, tile=64)
    assert said.status_code == httpx.codes.OK, said.text
    assert {span.name for span in below} == {"llm_request"}
    assert attributes(ours)["mmout.tiles"] == len(below) == 6
    assert attributes(ours)["mmout.pixels"] == 80 * 160
    assert all(ours.start_time_unix_nano <= span.end_time_unix_nano <= ours.end_time_unix_nano for span in below)


def test_a_single_input_and_one_that_fails(guarded_server, collector, tmp_path):
    """The one has a span of the engine's below it, the other its error."""
    content = write(tmp_path / "scene.tif", pixels(3, height=80, width=80)).read_bytes()
    _, ours, below = traced(guarded_server, collector, content, 2)
    assert (len(below), ours.status.code) == (1, Status.STATUS_CODE_UNSET)
    said, ours, below = traced(guarded_server, collector, content, 1, bands="1,2")
    assert said.status_code == httpx.codes.BAD_REQUEST
    assert (below, ours.status.code) == ([], Status.STATUS_CODE_ERROR)


def test_a_job_lies_below_the_client_that_asked_for_it(guarded_server, collector, tmp_path):
    """As a request does that waits for its answer."""
    content = write(tmp_path / "scene.tif", pixels(3, height=80, width=160)).read_bytes()
    said, ours, below = traced(guarded_server, collector, content, 1 + 6, path="/v1/scenes", tile=64)
    assert said.json()["status"] == "queued"
    assert attributes(ours)["mmout.tiles"] == len(below) == 6
