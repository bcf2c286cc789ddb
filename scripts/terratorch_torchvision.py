# ruff: noqa: INP001 - the scripts are not a package
"""Import hook for a torchvision whose compiled part does not load, such as a CUDA build beside torch for the CPU.

TerraTorch imports torchvision but calls nothing in the compiled part. torchvision registers shapes for two of its
operators unconditionally, so this file declares their schemas just before. ``scripts/setup_terratorch.sh`` copies it
into the environment, with a ``.pth`` file that imports it in each process, only if torchvision does not load otherwise.
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
"""Libraries kept alive, because their schemas are removed with them."""


class Schemas(MetaPathFinder):
    """A finder that declares the schemas when their module is looked for, and finds no module itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Declare the schemas once, and return None."""
        if fullname == NEEDS_SCHEMAS:
            sys.meta_path.remove(self)
            declare()
        return None


def declare() -> None:
    """Declare the schemas, unless the compiled part has declared them."""
    import torch
    from torchvision.extension import _has_ops

    if not _has_ops():
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in SCHEMAS:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)


sys.meta_path.insert(0, Schemas())
