"""The code and the commands that README.md and the pages of docs/ show."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"\$ |\. \.venv|([A-Z_]+=\S+ )?(vllm-mmout|vllm|curl|pip|python|make)\b")
"""How a line begins that a reader types."""


@dataclass(frozen=True, slots=True)
class Block:
    """Lines of a page that stand apart as code."""

    page: str
    """Name of the file."""
    line: int
    """Of the page, where the code begins; from 1."""
    kind: str
    """``"python"``, ``"json"``, ``"shell"``, or ``""`` for what is only shown."""
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """All of one page, in order."""
    found, lines = [], page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        first = number
        if lines[number].startswith("```"):
            language = lines[number][3:]
            first = number = number + 1
            while lines[number] != "```":
                number += 1
            text = lines[first:number]
            found.append((first, language or "shell", text))
        elif lines[number].startswith("    ") and not lines[number - 1]:
            indent = len(lines[number]) - len(lines[number].lstrip())
            while number < len(lines) and lines[number].startswith(" " * indent):
                number += 1
            text = [line[indent:] for line in lines[first:number]]
            found.append((first, "shell" if COMMAND.match(text[0]) else "", text))
        number += 1
    return [Block(page.name, first + 1, kind, "\n".join(text) + "\n") for first, kind, text in found]


def all_blocks(kind: str) -> list[Block]:
    """Those of one kind on all pages."""
    return [block for page in PAGES for block in blocks(page) if block.kind == kind]


def commands(block: Block) -> list[tuple[str, str]]:
    """Each command of a block of the shell, and what the page says that it prints."""
    prompted = any(line.startswith("$ ") for line in block.text.splitlines())
    pairs: list[tuple[str, str]] = []
    command = ""
    for line in block.text.splitlines():
        if command or not prompted or line.startswith("$ "):
            command += (line if command else line.removeprefix("$ ")) + "\n"
            if _whole(command):
                pairs.append((command, ""))
                command = ""
        else:
            last, printed = pairs[-1]
            pairs[-1] = (last, printed + line.strip())
    assert not command, f"{block}: {command!r} does not end"
    return pairs


def _whole(command: str) -> bool:
    ends = command.rstrip("\n").endswith(("\\", "|"))
    return (
        not ends
        and subprocess.run(["/bin/bash", "-n", "-c", command], capture_output=True, check=False).returncode == 0
    )
