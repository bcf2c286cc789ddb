"""schemathesis, imported so that hypothesis stays as it was for all other tests.

It replaces parts of hypothesis when it is imported, its printer of examples among them.
"""

from __future__ import annotations

import pytest
from hypothesis import core
from hypothesis.internal import entropy
from hypothesis.internal.conjecture import engine
from hypothesis.strategies._internal import collections
from hypothesis.strategies._internal import core as strategies

_BEFORE = [(module, dict(vars(module))) for module in (core, entropy, engine, collections, strategies)]

schemathesis = pytest.importorskip("schemathesis", reason="it makes the requests")
from schemathesis import GenerationMode  # noqa: E402, F401 - for those who import this module
from schemathesis.generation.hypothesis import setup  # noqa: E402
from schemathesis.specs.openapi import checks as described  # noqa: E402, F401

setup()  # now, if it was not yet: it does its work once
for _module, _names in _BEFORE:
    vars(_module).update(_names)
