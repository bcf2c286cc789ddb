"""The commands of ``vllm-mmout``, one module each, with the functions ``add_parser`` and ``run``."""

from __future__ import annotations

import argparse
from typing import Any, TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[Any]"  # noqa: SLF001 - argparse has no public name for it
