"""The version of this package, which is set in setup.cfg."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("vllm-mmout")
