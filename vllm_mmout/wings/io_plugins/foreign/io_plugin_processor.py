"""IOPluginProcessor: stands for an IO Processor plugin of vLLM's, which makes its results itself."""

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

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw
    from vllm_mmout.wings.io_plugins.foreign.loaded_plugin import Plugin
    from vllm_mmout.wings.io_plugins.foreign.plugin_request import PluginRequest

IO_PLUGIN = "io_plugin:"
"""What stands before the name of a plugin where an output processor is named."""

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
"""First bytes -> media type."""
_UNKNOWN = "application/octet-stream"


class IOPluginProcessor(OwnInputsProcessor):
    """Hands a plugin the model's raw tensors, and gives what it makes of them a form over HTTP.

    `io_plugin_processor` makes the class of a plugin. Without the plugin itself, as in a worker, nothing of it is
    imported.
    """

    modality: ClassVar[str] = "any"
    plugin: ClassVar[str] = ""
    """Its name, that of its entry point."""

    honours: ClassVar[frozenset[str]] = frozenset({"processor", "indices", "partial_images", "part"})
    """Pictures of what grows they have none, as other processors of no rasters."""
    plugin_class: type | None = None
    """Imported before the engine is started."""
    plugin_object: Plugin | None = None
    """Made when the engine is there."""

    def load(self) -> None:
        """Import the plugin."""
        from vllm_mmout.wings.io_plugins.foreign.loaded_plugin import plugin_class

        self.plugin_class = plugin_class(self.plugin)

    def started(self, vllm_config: VllmConfig, renderer: BaseRenderer) -> Self:
        """The same with the plugin's object of an engine."""
        from vllm_mmout.wings.io_plugins.foreign.loaded_plugin import Plugin

        if self.plugin_class is None:
            raise TypeError("load() comes before started()")
        made = type(self)()
        made.plugin_object = Plugin.made(self.plugin, self.plugin_class, vllm_config, renderer)
        return made

    def request(self, pick: str, data: Any, params: OutputParams, limit_s: float) -> PluginRequest:
        """One request through the plugin, see `OwnInputsProcessor.request`."""
        from vllm_mmout.wings.io_plugins.foreign.plugin_request import PluginRequest

        if self.plugin_object is None:
            raise TypeError("started() comes before request()")
        return PluginRequest(self.plugin_object, pick, data, params, limit_s)

    def reduce(self, output: Any, params: OutputParams) -> Raw:
        """Nothing: raw tensors travel. Of several the first does, as vLLM hands on no other."""
        given: Raw = next(iter(output.values())) if isinstance(output, Mapping) else output
        return given

    def decode(self, raw: Any, params: OutputParams, state: Any = None) -> Any:
        """The tensor as it is, for the plugin's ``post_process``."""
        return raw

    def to_response(self, output: Any, params: OutputParams) -> Any:
        """What a client gets of what ``post_process`` returned.

        The decoded bytes and their media type, where it says "b64_json" of itself; else JSON: what the plugin's
        ``output_to_response`` makes of it, or its fields.
        """
        said = _field(output, "data_format")
        if said == "path":
            raise DecodeError(
                f"IO plugin {self.plugin!r} wrote a file on the server though it was asked for b64_json; a client gets"
                " no path. Use it offline, or mend the plugin"
            )
        if said == "b64_json":
            try:
                content = base64.b64decode(_field(output, "data"), validate=True)
            except (ValueError, TypeError) as error:
                raise DecodeError(
                    f"IO plugin {self.plugin!r} returned data_format 'b64_json' and data that is no base64: {error}"
                ) from error
            return content, media_type_of(content)
        respond = None if self.plugin_object is None else self.plugin_object.output_to_response
        if respond is None:
            return _plain(output)
        try:
            return _plain(respond(output))
        except BaseException as error:  # SystemExit too: it must not end a thread of the server
            said = type_and_message(error)
            raise DecodeError(f"IO plugin {self.plugin!r} failed in output_to_response: {said}") from error


@functools.cache
def io_plugin_processor(plugin: str) -> type[IOPluginProcessor]:
    """The class that stands for the plugin of this name; the same object each time."""
    name = f"{IOPluginProcessor.__name__}[{plugin}]"
    members = {"plugin": plugin, "name": IO_PLUGIN + plugin, "__module__": __name__, "__qualname__": name}
    return type(name, (IOPluginProcessor,), members)


class InstalledPlugins:
    """Installed IO Processor plugins as output processors, "io_plugin:NAME"."""

    def installed(self) -> list[Registration]:
        """One of each name; where two packages have one, both are told as its origin."""
        found = {name: " and ".join(map(origin_of, points)) for name, points in installed_plugins().items()}
        return [
            Registration(IO_PLUGIN + name, io_plugin_processor(name), f"IO plugin {origin}")
            for name, origin in found.items()
        ]

    def processor(self, name: str) -> type[IOPluginProcessor]:
        """What stands for a plugin, of which nothing is imported."""
        plugin = name.removeprefix(IO_PLUGIN)
        find_plugin(plugin)
        return io_plugin_processor(plugin)


def media_type_of(content: bytes) -> str:
    """The media type of a file, by its first bytes."""
    for signatures, media_type in _SIGNATURES:
        if content.startswith(signatures):
            return media_type
    return "image/webp" if content[:4] == b"RIFF" and content[8:12] == b"WEBP" else _UNKNOWN


def _field(output: Any, name: str) -> Any:
    """A field of a plugin's output, which is a table or has attributes; None where it has none of that name."""
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def _plain(output: Any) -> Any:
    """What JSON can hold of a model of pydantic or a dataclass; anything else as it is."""
    if hasattr(output, "model_dump") and not isinstance(output, type):
        return output.model_dump(mode="json")
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return dataclasses.asdict(output)
    return output
