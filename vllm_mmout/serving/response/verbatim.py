"""`Verbatim`: a result whose bytes are inserted into a JSON response unchanged, without base64 encoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_mmout.serving.response.result_files import Encoded


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Result whose bytes are inserted into a JSON response unchanged, without base64 encoding."""

    entry: Encoded

    @property
    def nbytes(self) -> int:
        """Return the size of the result in bytes."""
        return self.entry.nbytes

    def read(self, at: int, count: int) -> bytes:
        """Return up to ``count`` bytes of the result from the offset ``at``."""
        return self.entry.read(at, count)

    def close(self) -> None:
        """Close the result."""
        self.entry.close()
