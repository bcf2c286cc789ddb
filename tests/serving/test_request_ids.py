"""Request ids: the id of a client's answer is that of the request in the log and in the trace."""

from __future__ import annotations

import httpx
import pytest
from failures_logged import failures_logged
from geotiffs_by_rasterio import geotiff
from rasterio import Affine
from text_service import text_app
from water_oracle import scene

pytestmark = pytest.mark.engine


@pytest.mark.asyncio(loop_scope="function")
async def test_a_request_is_found_by_its_id_in_the_log_and_in_the_trace(make_async_llm, tmp_path):
    """The header of the answer has the client's own id in it; a failure is one line of the log."""
    trace, names = tmp_path / "trace.json", []
    image = geotiff(scene(1), crs="EPSG:32632", transform=Affine(10, 0, 5e5, 0, -10, 5e6))
    engine = make_async_llm(trace=str(trace))
    try:
        transport = httpx.ASGITransport(text_app(engine, "water"))
        with failures_logged() as lines:
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                for processor, status in (("segmentation", 200), ("DecodeRaises", 500)):
                    sent = {"files": {"image": ("x.tif", image)}, "data": {"processor": processor}}
                    answer = await client.post("/v1/images/edits", headers={"X-Request-Id": "a/1"}, **sent)
                    assert answer.status_code == status, answer.text
                    names.append(answer.headers["x-request-id"])
    finally:
        engine.shutdown()
    assert all(name.startswith("image-a1-") for name in names)
    (line,) = lines
    assert line.startswith(f"{names[1]} failed with 500: the request failed with DecodeError")
    assert all(f'"request":"{name}"' in trace.read_text().replace(" ", "") for name in names)
