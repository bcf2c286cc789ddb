"""A model whose module can be imported in the process that starts an engine, and in none that it starts."""

from __future__ import annotations

import multiprocessing

from wrong_models_for_tests import RightNet

if multiprocessing.parent_process() is not None:
    raise ImportError("no licence in this process")


class OnlyInParent(RightNet):
    """Right but for that."""
