# ruff: noqa: INP001 - the scripts are not a package
"""Find docstrings and comments that are hard to read: ``python scripts/plain_english.py [FOLDER ...]``.

Each pattern finds a habit that makes a reader go back: a sentence without its subject, a pronoun in place of a noun, an
unusual negation. A text without a match can still be unclear, so the patterns replace no reader.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

FOLDERS = ("vllm_mmout", "benchmarks", "scripts", "examples")
PATTERNS = {
    "begins without a verb or a noun": (r"(?-i:^(Of|As|Those|That|These|None|Once|By|For|In|To|With|At|From|Where) )"),
    "a question word in place of a noun": r"^(What|How|Who|Which) |\bwhat (is|was|are|were|has|they|it|a|an|the) ",
    "a reference to another text": (
        r"\b(the same (for|with|of|as a|without|but)|likewise|as above|as it (is|was|stands))\b"
    ),
    "'one' or 'those' in place of a noun": (
        r"\b(so many|one of (ours|its|their)|of (ours|its own|one's own|theirs)|those (of|that|which|with)"
        r"|each of which|(a|the|each|no|any|which|this) one\b|ones\b)"
    ),
    "'no' or 'none' after a verb": r"\b(is|are|has|have|gives?|takes?|makes?|knows?|gets?|with|of) no(ne|body)? ",
    "a vague verb": (
        r"\b(is|are|was|were) there\b|\b(lies|lie|lay|stands|stand) (in|on|at|beside|below|there|for)\b"
        r"|\blet(s)? go\b|\bhand(s|ed)? (on|over|out)\b"
    ),
    "a clause without a subject after a semicolon": (
        r";\s+(of|as|for|with|without|none|where|what|in|by|else|the others?)\b"
    ),
    "a preposition before 'which'": r"\b(of|by|at|in|with) which\b",
}
_COMPILED = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in PATTERNS.items()}
_NO_PROSE = re.compile(r"#\s*(noqa|type:|!|pragma)")


class Finding(NamedTuple):
    """A text that matches at least one pattern."""

    path: Path
    line: int
    text: str
    patterns: list[str]


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the first paragraph of each docstring, and the line and the text of each comment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) and (
            doc := ast.get_docstring(node)
        ):
            yield getattr(node, "lineno", 1), " ".join(doc.split("\n\n")[0].split())
        body = getattr(node, "body", None)
        for before, after in pairwise(body) if isinstance(body, list) else ():
            match before, after:
                case ((ast.Assign() | ast.AnnAssign()), ast.Expr(ast.Constant(str() as doc))):
                    yield after.lineno, " ".join(doc.split())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not _NO_PROSE.match(token.string):
            yield token.start[0], token.string.lstrip("# ").split("# noqa")[0]


def findings(folders: list[Path]) -> tuple[list[Finding], int]:
    """Return the texts that match a pattern, and the number of all texts."""
    found, total = [], 0
    for path in sorted(file for folder in folders for file in folder.rglob("*.py")):
        for line, text in texts(path.read_text(encoding="utf-8")):
            total += 1
            names = [name for name, pattern in _COMPILED.items() if pattern.search(text)]
            if names:
                found.append(Finding(path, line, text, names))
    return found, total


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    found, total = findings([Path(name) for name in sys.argv[1:]] or [root / name for name in FOLDERS])
    for path, line, text, names in found:
        sys.stdout.write(f"{path}:{line}: {text[:100]}  [{'; '.join(names)}]\n")
    sys.stdout.write(f"{len(found)} of {total} docstrings and comments\n")
