# ruff: noqa: INP001 - scripts are no package
"""Lets torchvision be imported where its compiled part does not load, as a build for CUDA beside torch for the CPU.

TerraTorch imports torchvision and calls nothing of that part, but torchvision registers shapes for two of its operators
unconditionally: their schemas are declared just before it does. ``scripts/setup_terratorch.sh`` puts this file into the
environment, with a ``.pth`` file that imports it in every process, only where torchvision does not load without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NEEDS_SCHEMAS = "torchvision._meta_registrations"
SCHEMAS = ("nms", "qnms")

_declared: list[object] = []
"""Schemas are gone when the library that declares them is."""


class Schemas(MetaPathFinder):
    """Finds no module; declares the schemas when the module that needs them is looked for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Declare them once."""
        if fullname == NEEDS_SCHEMAS:
            sys.meta_path.remove(self)
            declare()
        return None


def declare() -> None:
    """Declare the schemas, unless the compiled part has."""
    import torch
    from torchvision.extension import _has_ops

    if not _has_ops():
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in SCHEMAS:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)


sys.meta_path.insert(0, Schemas())
