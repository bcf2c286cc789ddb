"""Register with vLLM the model classes listed in the environment variable ``MMOUT_MODELS``."""

from __future__ import annotations

from vllm_mmout.models.model_folders import announced


def serve_announced() -> None:
    """Register with vLLM the model classes that the parent process announced. The classes are not imported.

    The parent process announces classes in the environment variable ``MMOUT_MODELS``.

    Called when the plugin is loaded, and again before a worker loads its model: a plugin loaded after this one may have
    registered a class for the same architecture, as TerraTorch's does.
    """
    if paths := announced():
        from vllm_mmout.models.vllm_registry import serve  # text models do not need this import

        serve(paths)
