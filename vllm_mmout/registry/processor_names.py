"""Find output processors by name. They are built in or come from installed packages, and any model can use them."""

from __future__ import annotations

from importlib.metadata import entry_points

from vllm_mmout.errors import RegistrationError
from vllm_mmout.registry.registration import ProcessorFamily, Registration
from vllm_mmout.wing import wings

ENTRY_POINT_GROUP = "vllm_mmout.output_processors"
"""Entry point group for the output processors that a package provides, as ``name = pkg.mod:Class``."""

BUILT_IN = {
    "tensor": "vllm_mmout.processors.tensor:TensorProcessor",
    "image": "vllm_mmout.processors.image:ImageProcessor",
    "video": "vllm_mmout.processors.video:VideoProcessor",
    "segmentation": "vllm_mmout.processors.segmentation:SegmentationProcessor",
    "regression": "vllm_mmout.processors.regression:RegressionProcessor",
    "classification": "vllm_mmout.processors.classification:ClassificationProcessor",
    "detection": "vllm_mmout.processors.detection:DetectionProcessor",
    "embedding": "vllm_mmout.processors.embedding:EmbeddingProcessor",
    "embedding_grid": "vllm_mmout.processors.embedding_grid:EmbeddingGridProcessor",
}
"""Output processors of this package, as name -> "pkg.mod:Class".

The table is used instead of entry points, which do not exist if this package is on the path but not installed.
"""


class InstalledProcessors:
    """Table of output processors that any model can use: built in, from extension packages and from entry points.

    The table is read on first use.
    """

    def __init__(self) -> None:
        self._tables: dict[str, list[Registration]] | None = None

    def _read(self) -> dict[str, list[Registration]]:
        """Return a dict from each name to the list of all installed output processors with that name."""
        if self._tables is None:
            tables = {name: [Registration(name, path, "built in")] for name, path in BUILT_IN.items()}
            for wing in wings():
                for name, path in wing.output_processors.items():
                    _add(tables, Registration(name, path, f"wing {wing.name}"))
            for point in entry_points(group=ENTRY_POINT_GROUP):
                package = point.dist.name if point.dist else "unknown package"
                _add(tables, Registration(point.name, f"{point.module}:{point.attr}", f"package {package}"))
            for wing in wings():
                for prefix in wing.processor_families:
                    family: ProcessorFamily = wing.load("processor_families", prefix)()
                    for registration in family.installed():
                        _add(tables, registration)
            self._tables = tables
        return self._tables

    def names(self) -> list[str]:
        """Return the names of all output processors, the built-in processors first."""
        return list(self._read())

    def everything(self) -> list[Registration]:
        """Return all installed output processors as one list. Several processors may have the same name."""
        return [registration for rivals in self._read().values() for registration in rivals]

    def find(self, name: str) -> Registration | None:
        """Return the processor called ``name``, or None. Raise RegistrationError if the name is ambiguous."""
        rivals = self._read().get(name, [])
        if len(rivals) > 1:
            raise RegistrationError(
                f"several output processors are called {name!r}: {', '.join(map(str, rivals))}; write the path of the"
                " one you mean instead of its name, or uninstall a package"
            )
        return rivals[0] if rivals else None


def _add(tables: dict[str, list[Registration]], new: Registration) -> None:
    """Add a registration to the list ``tables[new.name]``, unless the list has the same class already."""
    rivals = tables.setdefault(new.name, [])
    if not any(new.same_target(old) for old in rivals):
        rivals.append(new)
