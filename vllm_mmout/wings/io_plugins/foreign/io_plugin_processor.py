"""Output processors that wrap IO Processor plugins of other packages."""

from __future__ import annotations

import base64
import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vllm_mmout.errors import DecodeError, type_and_message
from vllm_mmout.processors.base import OwnInputsProcessor
from vllm_mmout.registry.registration import Registration
from vllm_mmout.wings.io_plugins.foreign.plugin_entry_points import find_plugin, installed_plugins, origin_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.renderers import BaseRenderer

    from vllm_mmout.engine.request.request import Request
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw
    from vllm_mmout.wings.io_plugins.foreign.loaded_plugin import Plugin
    from vllm_mmout.wings.io_plugins.foreign.plugin_request import PluginRequest

IO_PLUGIN = "io_plugin:"
"""Prefix of an output processor's name if it wraps an IO Processor plugin."""

_SIGNATURES = (
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), "image/tiff"),
    ((b"\x89PNG\r\n\x1a\n",), "image/png"),
    ((b"\xff\xd8\xff",), "image/jpeg"),
    ((b"GIF87a", b"GIF89a"), "image/gif"),
    ((b"\x00\x00\x00\x0cjP  ", b"\xff\x4f\xff\x51"), "image/jp2"),
    ((b"\x89HDF\r\n\x1a\n",), "application/x-hdf5"),
    ((b"CDF\x01", b"CDF\x02", b"CDF\x05"), "application/x-netcdf"),
    ((b"PK\x03\x04",), "application/zip"),
)
"""First bytes of a file in each format, with the format's media type."""
_UNKNOWN = "application/octet-stream"


class IOPluginProcessor(OwnInputsProcessor):
    """Output processor that passes the model's raw tensors to an IO Processor plugin, which makes the result.

    `io_plugin_processor` creates the subclass for a plugin. A worker does not load the plugin, and imports none of its
    code.
    """

    modality: ClassVar[str] = "any"
    plugin: ClassVar[str] = ""
    """Name of the plugin's entry point."""

    honours: ClassVar[frozenset[str]] = frozenset({"processor", "indices", "partial_images", "part"})
    """Names of the request options that this processor accepts. Options about previews are accepted but ignored,
    because plugins cannot make previews."""
    plugin_class: type | None = None
    """Class of the plugin, imported before the engine starts."""
    plugin_object: Plugin | None = None
    """Instance of the plugin, created after the engine has started."""

    def load(self) -> None:
        """Import the plugin's class, so that errors appear before the engine starts."""
        from vllm_mmout.wings.io_plugins.foreign.loaded_plugin import plugin_class

        self.plugin_class = plugin_class(self.plugin)

    def started(self, vllm_config: VllmConfig, renderer: BaseRenderer) -> Self:
        """Return a copy of this processor that has a new instance of the plugin.

        This method is called once the engine has started.
        """
        from vllm_mmout.wings.io_plugins.foreign.loaded_plugin import Plugin

        if self.plugin_class is None:
            raise TypeError("load() comes before started()")
        processor = type(self)()
        processor.plugin_object = Plugin.create(self.plugin, self.plugin_class, vllm_config, renderer)
        return processor

    def request(self, pick: str, data: Any, request: Request, limit_s: float) -> PluginRequest:
        """Return a `PluginRequest`, which runs the IO Processor plugin on the input ``data``.

        No plugin code runs before the engine starts the request. ``pick`` is the name of the output processor.
        ``limit_s`` is the time limit of each plugin call in seconds.
        """
        from vllm_mmout.wings.io_plugins.foreign.plugin_request import PluginRequest

        if self.plugin_object is None:
            raise TypeError("started() comes before request()")
        return PluginRequest(self.plugin_object, pick, data, request, limit_s)

    def reduce(self, output: Any, params: OutputParams) -> Raw:
        """Return the model's output tensor. If the output is a dict of tensors, return only the first tensor.

        IO Processor plugins receive a single tensor from vLLM.
        """
        raw: Raw = next(iter(output.values())) if isinstance(output, Mapping) else output
        return raw

    def decode(self, raw: Any, params: OutputParams, state: Any = None) -> Any:
        """Return the tensor unchanged, because the plugin's ``post_process`` decodes it."""
        return raw

    def to_response(self, output: Any, params: OutputParams) -> Any:
        """Convert the plugin's result to the body of an HTTP response: file bytes with a media type, or a JSON value.

        If the result's ``data_format`` is "b64_json", return the decoded bytes and their media type. Otherwise return
        a JSON value: the return value of the plugin's ``output_to_response``, or the fields of the result.
        """
        data_format = _field(output, "data_format")
        if data_format == "path":
            raise DecodeError(
                f"IO plugin {self.plugin!r} wrote a file on the server though it was asked for b64_json; a client gets"
                " no path. Use it offline, or correct the plugin"
            )
        if data_format == "b64_json":
            try:
                content = base64.b64decode(_field(output, "data"), validate=True)
            except (ValueError, TypeError) as error:
                raise DecodeError(
                    f"IO plugin {self.plugin!r} returned data_format 'b64_json' and data that is not base64: {error}"
                ) from error
            return content, media_type_of(content)
        respond = None if self.plugin_object is None else self.plugin_object.output_to_response
        if respond is None:
            return _plain(output)
        try:
            return _plain(respond(output))
        except BaseException as error:  # SystemExit too, as it must not end a thread of the server
            reason = type_and_message(error)
            raise DecodeError(f"IO plugin {self.plugin!r} failed in output_to_response: {reason}") from error


@functools.cache
def io_plugin_processor(plugin: str) -> type[IOPluginProcessor]:
    """Return the output processor class for a plugin. The class is created once per plugin, and then cached."""
    name = f"{IOPluginProcessor.__name__}[{plugin}]"
    members = {"plugin": plugin, "name": IO_PLUGIN + plugin, "__module__": __name__, "__qualname__": name}
    return type(name, (IOPluginProcessor,), members)


class InstalledPlugins:
    """Provider of the output processors "io_plugin:NAME", one for each installed IO Processor plugin."""

    def installed(self) -> list[Registration]:
        """Return a registry entry for each installed IO Processor plugin.

        The entry's ``origin`` names the packages that define the plugin.
        """
        origins = {name: " and ".join(map(origin_of, points)) for name, points in installed_plugins().items()}
        return [
            Registration(IO_PLUGIN + name, io_plugin_processor(name), f"IO plugin {origin}")
            for name, origin in origins.items()
        ]

    def processor(self, name: str) -> type[IOPluginProcessor]:
        """Return a plugin's output processor class. Raise RegistrationError if the plugin is missing or ambiguous.

        The plugin is not imported.
        """
        plugin = name.removeprefix(IO_PLUGIN)
        find_plugin(plugin)
        return io_plugin_processor(plugin)


def media_type_of(content: bytes) -> str:
    """Return the media type of a file, judged by its first bytes."""
    for signatures, media_type in _SIGNATURES:
        if content.startswith(signatures):
            return media_type
    return "image/webp" if content[:4] == b"RIFF" and content[8:12] == b"WEBP" else _UNKNOWN


def _field(output: Any, name: str) -> Any:
    """Return the value of the key or attribute ``name`` of a plugin's output. Return None if ``name`` is missing."""
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def _plain(output: Any) -> Any:
    """Convert a pydantic model or a dataclass to plain data. Return other objects unchanged."""
    if hasattr(output, "model_dump") and not isinstance(output, type):
        return output.model_dump(mode="json")
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return dataclasses.asdict(output)
    return output
