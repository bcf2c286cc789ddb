# ruff: noqa: INP001 - scripts are no package
"""The same requests over HTTP: what the server of ``vllm-mmout serve`` answers is what ``LLM.generate`` gave."""

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
"""As of `compared`: requests that come together make other batches."""


def over_http(folder: str, options: dict[str, Any], inputs: list[Any], found: list[Any]) -> str:
    """What differs between results and the answers of a server; "" for nothing."""
    import httpx

    with _served(folder, options) as url, httpx.Client(timeout=START_S) as client:
        ask = partial(_asked, client, url)
        with ThreadPoolExecutor(len(inputs)) as threads:
            answers = list(threads.map(ask, inputs, found))
    return next((f"over HTTP: {said}" for said in answers if said), "")


@contextmanager
def _served(folder: str, options: dict[str, Any]) -> Iterator[str]:
    """The address of a server, in processes of its own."""
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


def _asked(client: Any, url: str, given: Any, found: Any) -> str:
    """What differs for one request."""
    if hasattr(found, "samples"):
        body = {"model": "", "voice": "any", "input": given, "response_format": "pcm"}
        answer = client.post(f"{url}/v1/audio/speech", json=body)
        told = f"{answer.status_code} {answer.text[:200]}"
        if answer.is_error:
            return told
        heard = np.frombuffer(answer.content, "<i2") / 32768
        return _far(heard, found.samples[0].clip(-1, 1), 1 / 16384)
    answer = client.post(f"{url}/pooling", json={"data": _sendable(given), "output_format": "tif"})
    if answer.is_error:
        answer = client.post(f"{url}/pooling", json={"data": _sendable(given)})
    if answer.is_error:
        return f"{answer.status_code} {answer.text[:200]}"
    return _unlike(answer.json()["data"], found)


def _sendable(given: Any) -> Any:
    """A request as JSON: pictures as data URLs, arrays as lists."""
    if hasattr(given, "getbands"):
        buffer = io.BytesIO()
        given.save(buffer, "png")
        return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    if isinstance(given, dict):
        return {name: _sendable(value) for name, value in given.items()}
    if isinstance(given, np.ndarray) and given.dtype == np.uint8:
        from PIL import Image

        return _sendable(Image.fromarray(given))
    if isinstance(given, np.ndarray):
        return {"audio": given.tolist(), "sampling_rate": 16_000} if given.ndim == 1 else given.tolist()
    return [_sendable(one) for one in given] if isinstance(given, list) else given


def _unlike(data: Any, found: Any) -> str:
    from vllm_mmout.geo import read_raster

    if hasattr(found, "arrays"):
        told = data if isinstance(data, dict) else {next(iter(found.arrays)): data}
        return next(filter(None, (_far(told[name], array, CLOSE) for name, array in found.arrays.items())), "")
    if "b64_json" in data:
        array = read_raster(base64.b64decode(data["b64_json"])).array
        return _far(array, found.array, CLOSE if found.array.dtype.kind == "f" else 0)
    return _unlike_json(data, json.loads(found.model_dump_json()))


def _unlike_json(told: Any, expected: Any) -> str:
    if isinstance(expected, dict) and isinstance(told, dict) and expected.keys() == told.keys():
        return next(filter(None, (_unlike_json(told[name], expected[name]) for name in expected)), "")
    if isinstance(expected, list) and isinstance(told, list) and len(expected) == len(told):
        return next(filter(None, map(_unlike_json, told, expected)), "")
    if isinstance(expected, float) and isinstance(told, float | int):
        return _far(told, expected, CLOSE)
    return "" if told == expected else f"{told!r:.60}, not {expected!r:.60}"


def _far(told: Any, expected: Any, close: float) -> str:
    array, expected = np.asarray(told), np.asarray(expected)
    if array.shape != expected.shape:
        return f"shape {list(array.shape)}, not {list(expected.shape)}"
    most = float(np.abs(array.astype(float) - expected).max(initial=0))
    return "" if most <= close * max(float(np.abs(expected).max(initial=0)), 1) else f"values by {most:.2g}"
