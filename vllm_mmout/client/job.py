"""Job: what a server says of a scene that it works on."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Id = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,200}$")]
"""Of a job; stands in addresses, and in what a user is told to type."""
Name = Annotated[str, msgspec.Meta(pattern=r"^\w[\w.-]{0,199}$")]
"""Of a processor; stands in names of files here."""


class Tiles(msgspec.Struct, frozen=True):
    """How many of a scene's tiles are done."""

    done: int
    total: int


class Class(msgspec.Struct, frozen=True):
    """One class of a result."""

    id: int
    name: str | None = None


class Output(msgspec.Struct, frozen=True):
    """One result of a job."""

    processor: Name
    output_format: str
    bytes: int
    classes: tuple[Class, ...] | None = None

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes from 0; None where not all have one."""
        found = {one.id: one.name for one in self.classes or () if one.name is not None}
        names = tuple(found[number] for number in range(len(found)) if number in found)
        return names if names and len(names) == len(self.classes or ()) else None


class Failure(msgspec.Struct, frozen=True):
    """Why a job failed."""

    message: str


class Job(msgspec.Struct, frozen=True):
    """A job as the server describes it."""

    id: Id
    status: Literal["queued", "in_progress", "completed", "failed"]
    name: str = ""
    tiles: Tiles | None = None
    outputs: tuple[Output, ...] = ()
    error: Failure | None = None

    @property
    def ended(self) -> bool:
        """Whether it will not change any more."""
        return self.status in ("completed", "failed")
