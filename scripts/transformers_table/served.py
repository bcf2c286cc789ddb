# ruff: noqa: INP001 - the scripts are not a package
"""Comparison of the answers of ``vllm-mmout serve`` over HTTP with the results of ``LLM.generate``."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

START_S = 180
CLOSE = 1e-5
"""Tolerance, as in `compared`. Concurrent requests form other batches."""


def over_http(folder: str, options: dict[str, Any], inputs: list[Any], results: list[Any]) -> str:
    """Return the first difference between results and the answers of a server, or "" if there is none."""
    import httpx

    with _served(folder, options) as url, httpx.Client(timeout=START_S) as client:
        ask = partial(_asked, client, url)
        with ThreadPoolExecutor(len(inputs)) as threads:
            answers = list(threads.map(ask, inputs, results))
    return next((f"over HTTP: {difference}" for difference in answers if difference), "")


@contextmanager
def _served(folder: str, options: dict[str, Any]) -> Iterator[str]:
    """Start a server in another process, and yield its address."""
    import httpx

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm_mmout.cli", "serve", folder, "--port", str(port), "--max-num-seqs", "4"]
    command += ["--gpu-memory-utilization", "0.3", "--dtype", "float32", "--distributed-executor-backend", "uni"]
    command += ["--additional-config", json.dumps({"mmout": options})]
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    with Path(folder, "server.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - this interpreter
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < until:
            try:
                if httpx.get(f"{url}/health", trust_env=False).status_code == httpx.codes.OK:
                    break
            except httpx.TransportError:
                time.sleep(0.2)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _asked(client: Any, url: str, request: Any, result: Any) -> str:
    """Send a request, and return the difference of its answer, or "" if there is none."""
    if hasattr(result, "samples"):
        body = {"model": "", "voice": "any", "input": request, "response_format": "pcm"}
        answer = client.post(f"{url}/v1/audio/speech", json=body)
        error = f"{answer.status_code} {answer.text[:200]}"
        if answer.is_error:
            return error
        samples = np.frombuffer(answer.content, "<i2") / 32768
        return _far(samples, result.samples[0].clip(-1, 1), 1 / 16384)
    answer = client.post(f"{url}/pooling", json={"data": _sendable(request), "output_format": "tif"})
    if answer.is_error:
        answer = client.post(f"{url}/pooling", json={"data": _sendable(request)})
    if answer.is_error:
        return f"{answer.status_code} {answer.text[:200]}"
    return _unlike(answer.json()["data"], result)


def _sendable(request: Any) -> Any:
    """Return a request as JSON, with pictures as data URLs and arrays as lists."""
    if hasattr(request, "getbands"):
        buffer = io.BytesIO()
        request.save(buffer, "png")
        return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    if isinstance(request, dict):
        return {name: _sendable(value) for name, value in request.items()}
    if isinstance(request, np.ndarray) and request.dtype == np.uint8:
        from PIL import Image

        return _sendable(Image.fromarray(request))
    if isinstance(request, np.ndarray):
        return {"audio": request.tolist(), "sampling_rate": 16_000} if request.ndim == 1 else request.tolist()
    return [_sendable(item) for item in request] if isinstance(request, list) else request


def _unlike(data: Any, result: Any) -> str:
    from vllm_mmout.geo import read_raster

    if hasattr(result, "arrays"):
        answered = data if isinstance(data, dict) else {next(iter(result.arrays)): data}
        return next(filter(None, (_far(answered[name], array, CLOSE) for name, array in result.arrays.items())), "")
    if "b64_json" in data:
        array = read_raster(base64.b64decode(data["b64_json"])).array
        return _far(array, result.array, CLOSE if result.array.dtype.kind == "f" else 0)
    return _unlike_json(data, json.loads(result.model_dump_json()))


def _unlike_json(answered: Any, expected: Any) -> str:
    if isinstance(expected, dict) and isinstance(answered, dict) and expected.keys() == answered.keys():
        return next(filter(None, (_unlike_json(answered[name], expected[name]) for name in expected)), "")
    if isinstance(expected, list) and isinstance(answered, list) and len(expected) == len(answered):
        return next(filter(None, map(_unlike_json, answered, expected)), "")
    if isinstance(expected, float) and isinstance(answered, float | int):
        return _far(answered, expected, CLOSE)
    return "" if answered == expected else f"{answered!r:.60}, not {expected!r:.60}"


def _far(answered: Any, expected: Any, close: float) -> str:
    array, expected = np.asarray(answered), np.asarray(expected)
    if array.shape != expected.shape:
        return f"shape {list(array.shape)}, not {list(expected.shape)}"
    most = float(np.abs(array.astype(float) - expected).max(initial=0))
    return "" if most <= close * max(float(np.abs(expected).max(initial=0)), 1) else f"values by {most:.2g}"
