"""Names that this package adds to vLLM's modules: its own registries, and old names that model code still imports.

The old names belong to vLLM's first input registries, which vLLM has removed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from vllm_mmout.engine.hooks.hook import Attribute
from vllm_mmout.importing import import_path

FIRST_NAMES = "support code that was written for vLLM's first input registries, which vLLM has removed"


def _added(module: str, name: str, path: str, why: str = FIRST_NAMES) -> Attribute:
    """Return an `Attribute` that adds ``name`` to a module of vLLM.

    The object is imported from ``path`` in this package when the name is added. ``why`` is the purpose, for error
    messages.
    """
    value: partial[Any] = partial(import_path, f"vllm_mmout.{path}", "name")
    return Attribute(module, name, value, why)


ATTRIBUTES: tuple[Attribute, ...] = (
    *(
        _added(
            "vllm.multimodal",
            f"MULTIMODAL_{half.upper()}_REGISTRY",
            f"registry:MULTIMODAL_{half.upper()}_REGISTRY",
            f"offer the {half} half of the split registry",
        )
        for half in ("input", "output")
    ),
    _added("vllm.inputs", "INPUT_REGISTRY", "registry:MULTIMODAL_INPUT_REGISTRY"),
    _added("vllm.inputs", "InputContext", "models.inputs.context:InputContext"),
    _added("vllm.inputs", "DummyData", "models.inputs.context:DummyData"),
    *(
        _added("vllm.multimodal", f"MULTIMODAL_REGISTRY.{name}", f"registry:MULTIMODAL_INPUT_REGISTRY.{name}")
        for name in (
            "register_input_mapper",
            "register_image_input_mapper",
            "register_max_tokens",
            "register_max_image_tokens",
            "register_max_multimodal_tokens",
        )
    ),
)
