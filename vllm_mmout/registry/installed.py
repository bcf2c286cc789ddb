"""Output processors that any model can be given by name: the built-in ones, those of packages, and IO plugins."""

from __future__ import annotations

from importlib.metadata import entry_points

from vllm_mmout.errors import RegistrationError
from vllm_mmout.processors.io_plugin import IO_PLUGIN, io_plugin_processor
from vllm_mmout.registry.io_plugins import installed_plugins, origin_of
from vllm_mmout.registry.registration import Registration

ENTRY_POINT_GROUP = "vllm_mmout.output_processors"
"""Group under which a package announces its processors, ``name = pkg.mod:Class``."""

BUILT_IN = {
    "tensor": "vllm_mmout.processors.tensor:TensorProcessor",
    "image": "vllm_mmout.processors.image:ImageProcessor",
    "segmentation": "vllm_mmout.processors.segmentation:SegmentationProcessor",
    "regression": "vllm_mmout.processors.regression:RegressionProcessor",
    "classification": "vllm_mmout.processors.classification:ClassificationProcessor",
    "detection": "vllm_mmout.processors.detection:DetectionProcessor",
    "embedding": "vllm_mmout.processors.embedding:EmbeddingProcessor",
    "vq_image": "vllm_mmout.processors.vq_image:VQImageProcessor",
    "codec_audio": "vllm_mmout.processors.codec_audio:CodecAudioProcessor",
}
"""Name -> class of the processors of this package, which are known also where it is not installed but on the path."""


class InstalledProcessors:
    """The built-in processors, those of the entry points, and IO plugins; reads the entry points at first use, once."""

    def __init__(self) -> None:
        self._tables: dict[str, list[Registration]] | None = None

    def _read(self) -> dict[str, list[Registration]]:
        """Name -> everything that is announced under it; two different classes are an error only when asked for."""
        if self._tables is None:
            tables = {name: [Registration(name, path, "built in")] for name, path in BUILT_IN.items()}
            for point in entry_points(group=ENTRY_POINT_GROUP):
                package = point.dist.name if point.dist else "unknown package"
                new = Registration(point.name, f"{point.module}:{point.attr}", f"package {package}")
                rivals = tables.setdefault(point.name, [])
                if not any(new.same_target(old) for old in rivals):
                    rivals.append(new)
            for name, points in installed_plugins().items():
                origin = f"IO plugin {' and '.join(map(origin_of, points))}"
                tables[IO_PLUGIN + name] = [Registration(IO_PLUGIN + name, io_plugin_processor(name), origin)]
            self._tables = tables
        return self._tables

    def names(self) -> list[str]:
        """All names, the built-in ones first, IO plugins last."""
        return list(self._read())

    def everything(self) -> list[Registration]:
        """All registrations, also rivals for one name."""
        return [registration for rivals in self._read().values() for registration in rivals]

    def find(self, name: str) -> Registration | None:
        """The processor called ``name``, None if there is none.

        Raises:
            RegistrationError: several packages announce different classes under that name.

        """
        rivals = self._read().get(name, [])
        if len(rivals) > 1:
            raise RegistrationError(
                f"several output processors are called {name!r}: {', '.join(map(str, rivals))}; write the path of the"
                " one you mean instead of its name, or uninstall a package"
            )
        return rivals[0] if rivals else None
