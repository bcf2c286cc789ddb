"""A server for `benchmarks.peer_faults`: vLLM's own with TerraTorch's plugin, or ours."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import rasterio
from numpy.typing import NDArray

from benchmarks.peer_fault_files import CLASSES, Cases
from benchmarks.served import HOST, served

PATIENCE_S = 20.0
HEALTH_S = 5.0
STOCK = ("--model-impl", "terratorch", "--skip-tokenizer-init", "--enforce-eager", "--enable-mm-embeds")
STOCK_PLUGIN = (*STOCK, "--io-processor-plugin", "terratorch_segmentation", "--model")
STOCK_IDS = np.arange(CLASSES) * 255 % 256
"""The stock plugin's uint8 value of each class id."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    """The HTTP status, or 0 if no answer came."""
    ids: NDArray[np.uint8] | None = None
    """The pixels of a successful answer, as the file stores them."""
    nodata: float | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """A running server."""

    peer: str
    port: int
    process: int
    count: Path
    cases: Cases

    @property
    def url(self) -> str:
        """The base URL of the server."""
        return f"http://{HOST}:{self.port}"

    @property
    def received(self) -> int:
        """The number of bytes that have come from the engine so far."""
        return int.from_bytes(self.count.read_bytes(), "little")

    def ask(self, data: Any, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        """Send a request. ``data`` is the name of a scene, a path or any other value of the request's ``data``."""
        if isinstance(data, str) and data in self.cases.scenes:
            data = str(self.cases.scenes[data])
        inner = {"data": data, "data_format": "path", "image_format": "tiff", "out_data_format": "b64_json", **fields}
        request = {"json": {"data": inner, "softmax": False}, "headers": headers, "timeout": PATIENCE_S}
        try:
            answer = httpx.post(f"{self.url}/pooling", trust_env=False, **request)  # type: ignore[arg-type]
        except httpx.TransportError:
            return Answer(0)
        if answer.status_code != httpx.codes.OK:
            print(self.peer, answer.status_code, answer.text[:300], flush=True)
            return Answer(answer.status_code)
        if inner["out_data_format"] == "path":
            return Answer(answer.status_code)
        with rasterio.open(io.BytesIO(base64.b64decode(answer.json()["data"]["data"]))) as file:
            return Answer(answer.status_code, file.read(1), file.nodata)

    def alive(self) -> bool:
        """Return whether ``/health`` answers."""
        try:
            answer = httpx.get(f"{self.url}/health", timeout=HEALTH_S, trust_env=False)
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK

    def classes(self, answer: Answer) -> NDArray[np.int64]:
        """Return the class ids of a successful answer, with -1 for values that do not stand for a class."""
        stored_ids = STOCK_IDS if self.peer == "stock" else np.arange(CLASSES)
        class_of_id = np.full(256, -1)
        class_of_id[stored_ids] = np.arange(CLASSES)
        return class_of_id[answer.ids]

    def agree(self, answer: Answer, name: str, *others: str) -> float:
        """Return the share of observed pixels that are correct, by the best match of ``name`` and ``others``."""
        if answer.ids is None:
            return 0.0
        observed = ~self.cases.gaps[name] if name in self.cases.gaps else np.ones(answer.ids.shape, bool)
        classes = self.classes(answer)[observed]
        return max(float((classes == self.cases.right[scene][observed]).mean()) for scene in (name, *others))


@contextmanager
def running(peer: str, model: Path, cases: Cases, dtype: str) -> Iterator[Side]:
    """Serve a model by one of the two servers.

    Args:
        peer: "stock" or "ours".
        model: The model folder.
        cases: The scenes and correct answers.
        dtype: The dtype of the network. The stock plugin's inputs are cast to bfloat16, but left unchanged for float32.

    """
    count, log = cases.folder.parent / f"{peer}.count", cases.folder.parent / f"{peer}.log"
    flags: tuple[str, ...] = ("--dtype", dtype, "--max-num-seqs", "4")
    if peer == "stock":
        flags = (*flags, *STOCK_PLUGIN, str(model))
    else:
        flags = (str(model), *flags, "--io-processor-plugin", "mmout", "--allowed-local-media-path", str(cases.folder))
    entry: tuple[str, ...] = ("benchmarks.peer_server", peer, str(count))
    if (peer, dtype) == ("stock", "float32"):
        entry = ("vllm.entrypoints.openai.api_server",)
    environment = {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "NO_ALBUMENTATIONS_UPDATE": "1"}
    environment |= {"VLLM_PLUGINS": "terratorch_segmentation"} if peer == "stock" else {}  # without our plugin
    with served(log, ("-m", *entry, *flags), environment) as (port, process):
        below = psutil.Process(process).children(recursive=True)
        side = Side(peer, port, process, count, cases)
        try:
            yield side
        finally:
            if not side.alive():  # the server hangs, or its engine outlives it
                for each_process in (*below, psutil.Process(process)):
                    with suppress(psutil.NoSuchProcess):
                        each_process.kill()
