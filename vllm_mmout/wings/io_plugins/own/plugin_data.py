"""Parse the ``data`` of requests to the plugin ``mmout``: TerraTorch's fields, and this package's options."""

from __future__ import annotations

import io
import os
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote
from uuid import uuid4

import msgspec

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import is_address
from vllm_mmout.messages import shown
from vllm_mmout.outputs.formats import suffix_of
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.base import formats_for
from vllm_mmout.serving.errors import ApiError, client_errors
from vllm_mmout.serving.inputs.uploads import Upload
from vllm_mmout.serving.options import flag
from vllm_mmout.serving.request.fields import FIELDS as OF_IMAGES
from vllm_mmout.serving.request.fields import OPTIONS, Fields, made
from vllm_mmout.serving.response.format_choice import FormatChoice, chosen_format
from vllm_mmout.wings.io_plugins.own.target import OutputPath

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.serving.options import ServingOptions

DATA_FORMATS: Final = ("url", "path", "b64_json")
OUT_FORMATS: Final = ("b64_json", "path")
_FORMAT: Final = replace(OF_IMAGES["output_format"], name="image_format")
FIELDS: Final = Fields(
    "data",
    OPTIONS,
    {"each_day": "an answer of the plugin holds one map; use /v1/images/edits"},
    apart=("data", "data_format", "image_format", "out_data_format", "out_path", "output_path"),
    later=OPTIONS,
    where=" in data",
)
"""Fields that the object ``data`` of a request to the IO Processor plugin ``mmout`` may have."""
_UNSET_IF_EMPTY: Final = ("image_format", "out_path", "output_path", "indices")
"""Names of the fields that count as missing if they are empty, as in TerraTorch's plugin."""
_CONFIG: Final = "TERRATORCH_SEGMENTATION_IO_PROCESSOR_CONFIG"
"""Environment variable from which TerraTorch's plugin reads its ``output_path``, as JSON."""


class PluginData(msgspec.Struct, frozen=True, kw_only=True):
    """Parsed request to the plugin ``mmout``, an IO Processor plugin of vLLM.

    Its fields are checked as far as possible without the model.
    """

    data: tuple[str, ...]
    """Input files as URLs, paths or base64 texts. If there are several, they are the files of a single input."""
    names: tuple[str, ...] = ()
    """Band or image names of the files in ``data``, in the same order. Empty if the client did not name the files."""
    data_format: Literal["url", "path", "b64_json"]
    image_format: str | None = None
    """File format of the result, or None for the default format, which is GeoTIFF for rasters."""
    out_data_format: Literal["b64_json", "path", "url"] = "b64_json"
    params: OutputParams = OutputParams()
    """Options of the request. The client's field ``out_path`` becomes the option ``path``."""
    target: OutputPath | None = None
    """File or folder to which the server writes the result. None if the response holds the result."""
    folder: Path | None = None
    """Folder for a result file with a generated name. None if the client chose the path, or if no file is written."""

    @property
    def format_choice(self) -> FormatChoice:
        """Client's choice of the file format (``image_format``), as an argument for the function `chosen_format`."""
        return FormatChoice(self.image_format, as_file=True)

    @property
    def input(self) -> Any:
        """Input for a request to a server: URLs, or files decoded from base64. Decoding blocks the caller."""
        return self._one([self._input(text) for text in self.data])

    @property
    def local_input(self) -> Any:
        """Input files for ``LLM.generate`` in this process: URLs, paths or bytes. Decoding base64 blocks the caller."""
        readers: dict[str, Callable[[str], Any]] = {"path": Path, "b64_json": _decoded, "url": str}
        return self._one([readers[self.data_format](text) for text in self.data])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(data_format={self.data_format!r}, params={self.params!r})"  # data may be large

    def check(self, binding: Binding) -> str:
        """Check that the model supports the request. Return the name of the output processor that the request uses."""
        inputs = binding.inputs
        if inputs is not None and not inputs.opens_files:
            takes = f"the model {binding.model!r} takes {inputs.takes}, and the IO Processor plugin passes files to it"
            raise InputError(f"{takes}; start the server without the plugin", param="data")
        binding.check_params(self.params)
        (name,) = binding.choice.pick(self.params.processor)
        formats = formats_for(binding.processors[name], self.params)
        if formats is None:
            return name
        try:
            result_format = chosen_format(formats, self.format_choice)
        except OptionError as error:
            raise OptionError(str(error), param="image_format") from error
        if self.params.path is not None and self.image_format is not None:
            file = Path(self.params.path)
            # A folder as path gets a file of the default format.
            file_format = formats.get(suffix_of(file)) or next(iter(formats.values()))
            if file_format != result_format:
                raise OptionError(
                    f"image_format is {self.image_format!r}, and a file for out_path {self.params.path!r} would be"
                    f" {file_format}; name a file with the suffix of the format, or leave image_format out",
                    param="image_format",
                )
        return name

    def params_of(self, binding: Binding, name: str) -> OutputParams:
        """Return the options of the request. If `folder` is set, the option ``path`` is a new file in this folder.

        ``name`` is the output processor that `check` returned.
        """
        if self.folder is None:
            return self.params
        formats = formats_for(binding.processors[name], self.params)
        if formats is None:
            raise OptionError(
                f"results of {name} have no default format; name the file with out_path", param="out_path"
            )
        result_format = chosen_format(formats, self.format_choice)
        suffix = next(suffix for suffix, format_name in formats.items() if format_name == result_format)
        return msgspec.structs.replace(self.params, path=str(self.folder / f"{uuid4()}{suffix}"))

    def _input(self, text: str) -> str | Upload:
        if self.data_format == "url":
            return text
        if self.data_format == "b64_json":
            content = _decoded(text)
            return Upload("", io.BytesIO(content), len(content))
        if not text.startswith("/"):
            raise InputError(f"a path must be absolute, beginning with /, got {shown(text)}", param="data")
        return f"file://{quote(text, errors='surrogatepass')}"

    def _one(self, inputs: list[Any]) -> Any:
        if self.names:
            return dict(zip(self.names, inputs, strict=True))
        return inputs[0] if len(inputs) == 1 else inputs


def plugin_data(data: Any, *, local: bool = False, served: ServingOptions | None = None) -> PluginData:
    """Parse and check the ``data`` of a request to the IO Processor plugin ``mmout``.

    Args:
        data: the value that a client sent.
        local: whether the request comes from this process, which may write to any path.
        served: options of the vllm-mmout server, which can store results or write files; None for vLLM's server.

    Raises:
        ApiError: the data is invalid.

    """
    if not isinstance(data, Mapping):
        example = '{"data": "https://host/scene.tif", "data_format": "url"}'
        raise ApiError(400, f"data must be an object such as {example}, got {shown(data)}", param="data")
    fields = {name: value for name, value in data.items() if not _is_unset(name, value)}
    options = FIELDS.of_object(fields)
    for name in ("processor", "output"):
        if isinstance(options.get(name), tuple):
            raise ApiError(400, f"{name} must be one name: an answer of the plugin holds one result", param=name)
    out_formats = OUT_FORMATS if served is None else (*OUT_FORMATS, "url")
    out_data_format = _choice(fields, "out_data_format", out_formats, "b64_json")
    root = None if served is None else served.output_root
    path = _out_path(fields, out_data_format, local=local or root is not None)
    target = None if root is None or out_data_format != "path" else OutputPath.below(root, path or "")
    image_format = _image_format(fields)
    if target is not None:
        image_format, path = target.format_of(image_format), None
    return PluginData(
        data_format=_choice(fields, "data_format", DATA_FORMATS, None),
        data=_texts(fields),
        names=tuple(fields["data"]) if isinstance(fields["data"], Mapping) else (),
        image_format=image_format,
        out_data_format=out_data_format,
        params=made(OutputParams, options, OPTIONS, path=path),
        target=target,
        folder=_default_folder() if out_data_format == "path" and path is None and target is None else None,
    )


def checked_input(data: PluginData, max_bytes: int) -> Any:
    """Return the request's input. Raise InputError if its base64 files exceed ``max_bytes``."""
    if data.data_format == "b64_json" and sum(map(len, data.data)) // 4 * 3 > max_bytes:
        raise InputError(
            f"data holds more than {max_bytes} bytes, the most that this server accepts; send a smaller file, or ask"
            f" the operator to raise {flag('max_upload')}",
            param="data",
        )
    return data.input


def _is_unset(name: Any, value: Any) -> bool:
    """Return whether a request field counts as missing. TerraTorch's clients send some unset fields as empty values."""
    return value is None or (name in _UNSET_IF_EMPTY and isinstance(value, str | list | tuple) and not value)


def _choice(fields: Mapping[str, Any], name: str, choices: tuple[str, ...], default: str | None) -> Any:
    value = fields.get(name, default)
    if isinstance(value, str) and value in choices:
        return value
    rule = f"must be one of {', '.join(choices)}"
    wrong = f"data has no {name}; it {rule}" if value is None else f"{name} {rule}, got {shown(value)}"
    raise ApiError(400, wrong, param=name)


def _texts(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the URLs, paths or base64 texts of the input. Raise ApiError if they are missing or invalid."""
    data = fields.get("data")
    if data is None:
        raise ApiError(400, "data has no data; it must be the input: an address, a path, or base64", param="data")
    values = data.values() if isinstance(data, Mapping) else data if isinstance(data, list | tuple) else [data]
    texts = [str(text) if isinstance(text, Path) else text for text in values]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        wrong = f"data in data must be a text, a list of texts, or texts by name, got {shown(data)}"
        raise ApiError(400, wrong, param="data")
    for text in texts if fields["data_format"] == "url" else ():
        if not is_address(text) and text[:5].lower() not in ("data:", "file:"):
            wrong = f"data_format is 'url', and {shown(text)} is no address; it must be https://host/path, or"
            raise ApiError(400, f"{wrong} data_format path or b64_json", param="data")
    return tuple(texts)


def _image_format(fields: Mapping[str, Any]) -> str | None:
    value = fields.get("image_format")
    with client_errors():
        return None if value is None else str(_FORMAT.checked(value if isinstance(value, str) else shown(value)))


def _decoded(text: str) -> bytes:
    """Decode a file from base64, ignoring whitespace. Raise InputError if the text is not base64."""
    try:
        return b64decode("".join(text.split()), validate=True)
    except ValueError:  # also for text that is not ASCII
        raise InputError(
            f"data_format is 'b64_json', and {shown(text)} is not base64; encode the file's bytes as base64.b64encode"
            " does",
            param="data",
        ) from None


def _out_path(fields: Mapping[str, Any], out_data_format: str, *, local: bool) -> str | None:
    """Return the path that the client named for the result file, or None if it did not name a path."""
    if out_data_format == "path" and not local:
        raise ApiError(
            400,
            "out_data_format 'path' is for Python on the machine itself: a client cannot choose where the server"
            f" writes, unless {flag('output_root')} allows a folder; leave it out for base64, or send the scene as a"
            " job to /v1/scenes and fetch its file",
            param="out_data_format",
        )
    paths = {name: fields[name] for name in ("out_path", "output_path") if name in fields}
    for name, path in paths.items():
        if not isinstance(path, str | Path):
            raise ApiError(400, f"{name} must be a folder or a file, got {shown(path)}", param=name)
    if len(set(map(str, paths.values()))) > 1:
        differ = " and ".join(map(shown, paths.values()))
        raise ApiError(400, f"out_path and output_path differ: {differ}; name only one", param="out_path")
    path = next(iter(paths.values()), None)
    return None if path is None or out_data_format != "path" else str(path)


class _Config(msgspec.Struct):
    output_path: str | None = None


def _default_folder() -> Path:
    """Return the default folder for result files. Raise ApiError if the folder does not exist.

    It is the ``output_path`` that is configured for TerraTorch's plugin, or else the user's home folder.
    """
    try:
        config = msgspec.json.decode(os.environ.get(_CONFIG) or "{}", type=_Config)
    except msgspec.MsgspecError as error:
        wrong = f'{_CONFIG} must be JSON such as {{"output_path": "/results"}}: {error}; or give out_path'
        raise ApiError(400, wrong, param="out_path") from None
    folder = Path(config.output_path or Path.home())
    if not folder.is_dir():
        wrong = f"out_path is not given, and {folder}, which {_CONFIG} names, is not a folder; create it"
        raise ApiError(400, wrong, param="out_path")
    return folder
