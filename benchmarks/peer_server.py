"""The API server of one of two peers, with a count of the bytes that come from its engine.

``python -m benchmarks.peer_server stock|ours COUNT ARGUMENTS``: stock is vLLM's own server with TerraTorch's IO
Processor plugin, ours is ``vllm-mmout serve``. COUNT is a file that holds the number of bytes as a little-endian
integer of 8 bytes.

TerraTorch's plugin sends float16, whatever the model's dtype is. On a CPU, a forward of 512 x 512 then takes half a
minute instead of a third of a second. In its favour, this server casts its inputs to the model's dtype.
"""

from __future__ import annotations

import mmap
import runpy
import sys
from pathlib import Path
from typing import Any


def count_into(file: Path) -> None:
    """Add the size of each engine message that this process decodes to the number in a file."""
    from vllm.v1 import serial_utils
    from vllm.v1.engine import EngineCoreOutputs

    file.write_bytes(bytes(8))
    with file.open("r+b") as opened:
        counted = mmap.mmap(opened.fileno(), 8)
    decode = serial_utils.MsgpackDecoder.decode

    def counting(self: Any, bufs: Any) -> Any:
        message = decode(self, bufs)
        if isinstance(message, EngineCoreOutputs):
            frames = [bufs] if isinstance(bufs, bytes | bytearray | memoryview) else bufs
            total = int.from_bytes(counted[:], "little") + sum(memoryview(frame).nbytes for frame in frames)
            counted[:] = total.to_bytes(8, "little")
        return message

    serial_utils.MsgpackDecoder.decode = counting  # type: ignore[method-assign]  # a measurement


def cast_inputs() -> None:
    """Patch TerraTorch's plugin to send the model's dtype."""
    from terratorch.vllm.plugins.segmentation import segmentation_io_processor

    plugin = segmentation_io_processor.SegmentationIOProcessor
    pre_process = plugin.pre_process

    def cast(self: Any, *args: Any, **kwargs: Any) -> Any:
        prompts = pre_process(self, *args, **kwargs)
        dtype = self.vllm_config.model_config.dtype
        for prompt in prompts:
            images = prompt["multi_modal_data"]["image"]
            images.update({name: tensor if tensor is None else tensor.to(dtype) for name, tensor in images.items()})
        return prompts

    plugin.pre_process = cast


def main() -> None:
    """Start the server that the arguments name."""
    peer, count, *arguments = sys.argv[1:]
    count_into(Path(count))
    sys.argv = ["vllm-mmout", "serve", *arguments]
    if peer == "ours":
        from vllm_mmout.cli import main as serve

        sys.exit(serve())
    cast_inputs()
    sys.argv[:2] = ["api_server"]
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")  # its main moves between releases


if __name__ == "__main__":
    main()
