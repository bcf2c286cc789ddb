"""What goes wrong between a client and its server."""

from __future__ import annotations

from vllm_mmout.errors import MMOutError


class ServerError(MMOutError):
    """A server refused, failed, or cannot be reached; where it said why, in its own words.

    Args:
        message: what is said.
        status: of the answer, where there is one.

    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class BrokenError(Exception):
    """A request failed for a reason that may pass.

    Args:
        words: what happened.
        wait_s: seconds that the server asks to wait.
        answered: whether the server said so itself; else the connection failed, or a proxy gave an answer.

    """

    def __init__(self, words: str, *, wait_s: float = 0.0, answered: bool = False) -> None:
        super().__init__(words)
        self.wait_s = wait_s
        self.answered = answered
