"""Register the model classes that the environment variable ``MMOUT_MODELS`` lists with vLLM."""

from __future__ import annotations

from vllm_mmout.models.model_folders import announced


def serve_announced() -> None:
    """Register the classes in the environment variable ``MMOUT_MODELS`` with vLLM, without importing them.

    Called when the plugin is loaded, and again before a worker loads its model: a plugin loaded after this one may have
    registered a class for the same architecture, as TerraTorch's does.
    """
    if paths := announced():
        from vllm_mmout.models.vllm_registry import serve  # text models do not need this import

        serve(paths)
