"""Convert a user's input to the data that an IO Processor plugin accepts."""

from __future__ import annotations

import base64
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import InputError, OptionError, type_and_message
from vllm_mmout.geo import is_address
from vllm_mmout.models.inputs.input_forms import as_local_path, is_open_file

if TYPE_CHECKING:
    from vllm_mmout.params import OutputParams

_NOT_IN_NAMES = re.compile(r"[^\w.-]", re.ASCII)


class RequestData:
    """Input of a request to a plugin: a dict whose keys the plugin defines, or a file.

    The bytes of a file are written to a temporary folder if the plugin accepts only paths.
    """

    def __init__(self, name: str, data: Any, params: OutputParams) -> None:
        if isinstance(data, Mapping):
            if params.indices is not None:
                raise OptionError(
                    f"indices are for files, and the input of {name!r} is data of the plugin's own; put them there",
                    param="indices",
                )
        elif not (isinstance(data, str | os.PathLike | bytes | bytearray | memoryview) or is_open_file(data)):
            raise InputError(
                f"the input of {name!r} must be data of the plugin's own (a dict), or one file: a path, a URL, bytes"
                f" or an open file; got {type(data).__name__}"
            )
        self._data = data
        self._params = params
        self.parent: Path | None = None
        """Parent folder for the copy of a file, or None for the system's temporary folder."""
        self.folder: Path | None = None
        """Temporary folder with a copy of the input file. None if the input was not copied."""

    def parse_with(self, parse: Callable[[Any], Any]) -> Any:
        """Let the plugin parse the input with its method ``parse``. Return the parsed data.

        A dict is passed to the plugin unchanged. If its only key is "data", as vLLM's ``encode`` expects, the plugin
        gets the value. A file becomes the table that plugins for rasters expect. Bytes are passed as base64. If the
        plugin refuses base64, as some accept only paths, it gets the path of a copy instead. (TerraTorch's plugins
        can read base64, but their check of a request refuses it.)
        """
        data = self._data
        if isinstance(data, Mapping):
            return parse(data["data"] if set(data) == {"data"} else dict(data))
        if isinstance(data, str) and is_address(data):
            return parse(self._table(data.strip(), "url"))
        if isinstance(data, str | os.PathLike):
            return parse(self._table(str(as_local_path(data)), "path"))
        content = _content(data)
        try:
            return parse(self._table(base64.b64encode(content).decode(), "b64_json"))
        except ValueError as refused:
            path = self._copy(content)
            with suppress(ValueError):
                return parse(self._table(str(path), "path"))
            raise refused from None

    def close(self) -> None:
        """Delete the temporary copy of the input file, if it exists."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _table(self, data: str, data_format: str) -> dict[str, Any]:
        indices = self._params.indices
        table = {"data": data, "data_format": data_format, "image_format": "tiff", "out_data_format": "b64_json"}
        return table | ({} if indices is None else {"indices": list(indices)})

    def _copy(self, content: bytes) -> Path:
        """Write ``content`` to a temporary file with the name of the input file, and return the path.

        Some plugins read a date from the name. An input without a name is called ``input.tif``.
        """
        original = getattr(self._data, "name", None)
        name = _NOT_IN_NAMES.sub("_", Path(original).name if isinstance(original, str) else "")[-100:].lstrip(".")
        self.folder = Path(tempfile.mkdtemp(prefix="mmout-io-plugin-", dir=self.parent))
        path = self.folder / (name or "input.tif")
        path.write_bytes(content)
        return path


def _content(data: Any) -> bytes:
    if not is_open_file(data):
        return bytes(data)
    try:
        if hasattr(data, "seek") and (not hasattr(data, "seekable") or data.seekable()):
            data.seek(0)
        content = data.read()
    except (OSError, ValueError) as error:
        raise InputError(f"the file cannot be read: {type_and_message(error)}") from error
    if not isinstance(content, bytes):
        raise InputError(f"the file gives {type(content).__name__}, not bytes; open it in binary mode")
    return content
