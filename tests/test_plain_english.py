"""Docstrings and comments can be understood at first reading, as far as patterns can tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_english import FOLDERS, findings, texts

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 4
"""Number of texts that match a pattern and read plainly all the same. Lower it whenever the number falls."""


def test_the_number_of_unclear_texts_only_falls():
    """A new docstring or comment matches none of the patterns of ``scripts/plain_english.py``."""
    found, total = findings([ROOT / folder for folder in FOLDERS])
    assert total > 5000
    assert len(found) <= LIMIT, "\n".join(f"{path}:{line}: {text}  {names}" for path, line, text, names in found)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('"""What a file says."""', 1),
        ('def f():\n    """The same for a list."""', 1),
        ('class A:\n    b = 1\n    """Those of a job."""', 3),
        ("a = 1\n# a picture; none where it lies on no input", 2),
    ],
)
def test_each_kind_of_text_is_read(source, line, tmp_path):
    """Docstrings of modules, functions and attributes count, and so do comments."""
    (tmp_path / "module.py").write_text(source)
    (found,), _ = findings([tmp_path])
    assert found.line == line


def test_plain_texts_pass():
    """A docstring that begins with a verb, and directives of linters, are not findings."""
    source = 'def f():\n    """Return the header of the file, or None if it has no header."""\n    pass  # noqa: what'
    assert [text for _, text in texts(source)] == ["Return the header of the file, or None if it has no header."]
