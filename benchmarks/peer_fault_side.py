"""A server that `benchmarks.peer_faults` asks: vLLM's own with TerraTorch's plugin, or ours."""

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
"""What class ids become in uint8."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    """Of HTTP; 0: nothing came."""
    ids: NDArray[np.uint8] | None = None
    """Of a good answer, as the file holds them."""
    nodata: float | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """A server that runs."""

    peer: str
    port: int
    process: int
    count: Path
    cases: Cases

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{HOST}:{self.port}"

    @property
    def received(self) -> int:
        """Bytes from the engine so far."""
        return int.from_bytes(self.count.read_bytes(), "little")

    def ask(self, data: Any, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        """Ask for an answer; data is the name of a scene, a path, or what else stands in ``data``."""
        if isinstance(data, str) and data in self.cases.scenes:
            data = str(self.cases.scenes[data])
        inner = {"data": data, "data_format": "path", "image_format": "tiff", "out_data_format": "b64_json", **fields}
        asked = {"json": {"data": inner, "softmax": False}, "headers": headers, "timeout": PATIENCE_S}
        try:
            answer = httpx.post(f"{self.url}/pooling", trust_env=False, **asked)  # type: ignore[arg-type]
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
        """Whether it answers."""
        try:
            answer = httpx.get(f"{self.url}/health", timeout=HEALTH_S, trust_env=False)
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK

    def classes(self, answer: Answer) -> NDArray[np.int64]:
        """The class ids of a good answer, -1 where there is none."""
        names = STOCK_IDS if self.peer == "stock" else np.arange(CLASSES)
        found = np.full(256, -1)
        found[names] = np.arange(CLASSES)
        return found[answer.ids]

    def agree(self, answer: Answer, name: str, *others: str) -> float:
        """The share of the observed pixels that are right, by the scene's right answer or another that could be."""
        if answer.ids is None:
            return 0.0
        seen = ~self.cases.gaps[name] if name in self.cases.gaps else np.ones(answer.ids.shape, bool)
        found = self.classes(answer)[seen]
        return max(float((found == self.cases.right[one][seen]).mean()) for one in (name, *others))


@contextmanager
def running(peer: str, model: Path, cases: Cases, dtype: str) -> Iterator[Side]:
    """Serve a model by one of the two.

    Args:
        peer: "stock" or "ours".
        model: the folder.
        cases: which files there are.
        dtype: of the network; the stock plugin's inputs are brought to bfloat16, and left as they are for float32.

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
    environment |= {"VLLM_PLUGINS": "terratorch_segmentation"} if peer == "stock" else {}  # nothing of ours
    with served(log, ("-m", *entry, *flags), environment) as (port, process):
        below = psutil.Process(process).children(recursive=True)
        side = Side(peer, port, process, count, cases)
        try:
            yield side
        finally:
            if not side.alive():  # it hangs, or its engine outlives it
                for one in (*below, psutil.Process(process)):
                    with suppress(psutil.NoSuchProcess):
                        one.kill()
