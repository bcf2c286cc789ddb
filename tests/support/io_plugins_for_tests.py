"""A package of somebody else with IO Processor plugins of vLLM's of both generations, as pip would have installed it.

Their prompts are tiles of 16 rows of a picture [6, height, 8] that ``data`` describes, or that is read from a file.
"""

from __future__ import annotations

from pathlib import Path

CODE = '''
import base64
import io
import os
import threading
import time

import numpy as np
import torch
from pydantic import BaseModel
from pathlib import Path
from vllm import PoolingParams
from vllm.plugins.io_processors.interface import IOProcessor

CALLS = []
"""(plugin, method, request id, name of the thread)"""
RELEASE = threading.Event()
"""Lets what hangs go on."""
HANGS_S = 60
"""How long that hangs else."""


class Data(BaseModel):
    data: object = None
    data_format: str = ""
    out_data_format: str = "b64_json"
    image_format: str = ""
    indices: list[int] | None = None
    rows: int = 16
    seed: int = 0
    fail: str = ""
    at: str = ""
    out: str = "dict"


class Output(BaseModel):
    data_format: str
    data: str
    request_id: str | None = None


def failing(data, method):
    """Fail as the data says."""
    if data.at != method:
        return
    if data.fail == "hang":
        Path(data.data).touch()
        RELEASE.wait(HANGS_S)
    errors = {"exit": SystemExit, "interrupt": KeyboardInterrupt, "value": ValueError, "key": KeyError, "os": OSError}
    if data.fail in errors:
        raise errors[data.fail](f"no {method} today")


class New(IOProcessor):
    """Of today's interface."""

    def __init__(self, vllm_config, renderer):
        super().__init__(vllm_config, renderer)
        assert renderer.model_config is vllm_config.model_config
        self.requests = {}

    def note(self, method, request_id):
        CALLS.append((type(self).__name__, method, request_id, threading.current_thread().name))

    def parse_data(self, data):
        parsed = Data(**data)
        failing(parsed, "parse_data")
        return parsed

    def merge_pooling_params(self, params=None):
        return params or PoolingParams()

    def pre_process(self, prompt, request_id=None, **kwargs):
        self.note("pre_process", request_id)
        failing(prompt, "pre_process")
        if prompt.fail == "no prompts":
            return []
        if prompt.fail == "no prompt":
            return [3.5]
        assert request_id not in self.requests, request_id
        self.requests[request_id] = prompt
        pixels = self.pixels(prompt)
        if prompt.fail == "dtype":
            pixels = pixels.astype("complex64")
        if prompt.fail == "bands":
            pixels = pixels[:4]
        if prompt.fail == "tokens":
            return {"prompt_token_ids": [1]}
        tiles = [pixels[:, row : row + 16] for row in range(0, pixels.shape[1], 16)]
        return [{"prompt_token_ids": [1], "multi_modal_data": {"image": self.image(tile)}} for tile in tiles]

    def image(self, tile):
        return tile

    def pixels(self, prompt):
        if prompt.data_format == "":
            return np.random.default_rng(prompt.seed).integers(1, 9000, (6, prompt.rows, 8), np.uint16)
        import tifffile

        if prompt.data_format == "path":
            pixels = tifffile.imread(prompt.data)
        else:
            assert prompt.data_format == "b64_json"
            pixels = tifffile.imread(io.BytesIO(base64.b64decode(prompt.data)))
        pixels = pixels if pixels.shape[0] == 6 else np.moveaxis(pixels, -1, 0)
        return pixels[list(prompt.indices)] if prompt.indices else pixels

    def post_process(self, model_output, request_id=None, **kwargs):
        self.note("post_process", request_id)
        prompt = self.requests.pop(request_id)
        failing(prompt, "post_process")
        if prompt.fail == "nothing":
            return None
        logits = torch.cat([output.outputs.data for output in model_output], dim=1)
        classes = logits.argmax(0).to(torch.uint8).numpy()
        if prompt.out == "dict":
            return {
                "plugin": type(self).__name__,
                "id": request_id,
                "finished": all(output.finished for output in model_output),
                "ids": [output.request_id for output in model_output],
                "token_ids": [output.prompt_token_ids for output in model_output],
                "dtype": str(logits.dtype),
                "shape": list(logits.shape),
                "logits": logits.tolist(),
            }
        if prompt.out == "path":
            return Output(data_format="path", data="/somewhere/on/the/server.tif")
        if prompt.out == "broken":
            return Output(data_format="b64_json", data="no base64")
        import tifffile

        file = io.BytesIO()
        tifffile.imwrite(file, classes)
        return Output(data_format="b64_json", data=base64.b64encode(file.getvalue()).decode(), request_id=request_id)


class Tiff(New):
    """Gives files by default, as plugins for rasters do; takes data of that one form."""

    def parse_data(self, data):
        if data.get("data_format") not in ("path", "b64_json"):
            raise ValueError("data_format must be path or b64_json")
        return super().parse_data({"out": "file", **data})


class PathsAlone(Tiff):
    """Refuses base64, and reads names of files."""

    def parse_data(self, data):
        if data.get("data_format") != "path":
            raise ValueError("data_format must be path")
        CALLS.append(("PathsAlone", "path", data["data"], ""))
        return super().parse_data(data)


class Keywords(New):
    """Makes tensors by keyword of forward, as plugins of models written for vLLM do."""

    def image(self, tile):
        return {"pixel_values": torch.from_numpy(tile.astype("float32"))}


class OldPlugin(IOProcessor):
    """Of the interface before vLLM 0.17: no renderer, other names."""

    def __init__(self, vllm_config):
        super().__init__(vllm_config)
        self.requests = {}

    def parse_request(self, request):
        return Data(**request)

    def validate_or_generate_params(self, params=None):
        return params or PoolingParams(task="plugin")

    pre_process = New.pre_process
    post_process = New.post_process
    note, image, pixels = New.note, New.image, New.pixels

    def output_to_response(self, plugin_output):
        if plugin_output["shape"] == [2, 32, 8]:
            raise KeyError("no response today")
        return Output(data_format="table", data=plugin_output["plugin"])


class AsyncAlone(New):
    """Does its work in the asynchronous forms."""

    def pre_process(self, prompt, request_id=None, **kwargs):
        raise NotImplementedError

    def post_process(self, model_output, request_id=None, **kwargs):
        raise NotImplementedError

    async def pre_process_async(self, prompt, request_id=None, **kwargs):
        return New.pre_process(self, prompt, request_id)

    async def post_process_async(self, model_output, request_id=None, **kwargs):
        outputs = [pair async for pair in model_output]
        assert [number for number, _ in outputs] == list(range(len(outputs)))
        return New.post_process(self, [output for _, output in outputs], request_id)


class CannotBeMade(New):
    def __init__(self, vllm_config, renderer):
        raise KeyError("pretrained_cfg")


def new():
    return "io_plugins_code.New"


def tiff():
    return "io_plugins_code.Tiff"


def paths():
    return "io_plugins_code.PathsAlone"


def keywords():
    return "io_plugins_code.Keywords"


def old_plugin():
    return "io_plugins_code.OldPlugin"


def async_alone():
    return "io_plugins_code.AsyncAlone"


def broken():
    return "io_plugins_code.CannotBeMade"


def missing():
    return "io_plugins_code.NoSuchClass"


def nothing():
    return None
'''
POINTS = {
    "new": "new",
    "tiff": "tiff",
    "paths": "paths",
    "key-words": "keywords",
    "old": "old_plugin",
    "async": "async_alone",
    "broken": "broken",
    "missing": "missing",
    "nothing": "nothing",
}
"""Name of a plugin -> the function that its entry point names."""


SERVED = ["segmentation", *(f"io_plugin:{name}" for name in ("new", "tiff", "paths", "key-words", "old", "async"))]
"""Value of "output_processor": an ordinary one, and all plugins that work."""


def install(folder: Path) -> Path:
    """Put it into a folder for ``PYTHONPATH``."""
    info = folder / "io_plugins-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "io_plugins_code.py").write_text(CODE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: io-plugins\nVersion: 1.0\n")
    lines = [f"{name} = io_plugins_code:{function}" for name, function in POINTS.items()]
    (info / "entry_points.txt").write_text("\n".join(["[vllm.io_processor_plugins]", *lines, ""]))
    return folder
