"""Watch: how somebody asks for a picture of a scene while it grows."""

from __future__ import annotations


class Watch:
    """Asks for pictures of one request, any number of times and from any thread.

    A picture comes at the next tile that is joined; what was asked several times until then is asked once. What is
    asked after the last tile is forgotten: the result comes next.
    """

    def __init__(self) -> None:
        self._asked = False

    def ask(self) -> None:
        """Ask for a picture; never waits."""
        self._asked = True

    def taken(self) -> bool:
        """Whether a picture was asked for since the last call; for the one thread that joins."""
        if not self._asked:
            return False
        self._asked = False  # who asks between the two lines gets the picture that is made now
        return True
