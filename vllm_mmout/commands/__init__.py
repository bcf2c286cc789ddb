"""One module for each command of ``vllm-mmout``; each has ``add_parser`` and runs through ``run``."""

from __future__ import annotations

import argparse
from typing import Any, TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[Any]"  # noqa: SLF001 - argparse has no public name for it
