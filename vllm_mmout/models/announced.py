"""Serving the model classes that the process which started this one has announced."""

from __future__ import annotations

from vllm_mmout.models.model_folders import announced


def serve_announced() -> None:
    """Put the announced classes into vLLM's registry of models; none is imported.

    Done when the plugin is loaded, and again before a worker loads its model: a plugin that was loaded after this one
    may have registered a class for the same architecture, as TerraTorch's does.
    """
    if paths := announced():
        from vllm_mmout.models.vllm_registry import serve  # no text model needs it

        serve(paths)
