"""Packages that are not installed, as far as imports inside functions can tell."""

from __future__ import annotations

import builtins

import pytest


def without_package(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Let imports of a package, and of what lies below it, fail until the test is over."""
    real = builtins.__import__

    def importing(name, *args):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(name=name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", importing)
