"""The progress bars of a client: an upload, the tiles of a job, a download; nothing where no terminal is."""

from __future__ import annotations

import sys
from typing import Self

from tqdm.auto import tqdm

from vllm_mmout.client.job import Job


class Bar:
    """One bar, which is left as it is at the end.

    Args:
        what: what it counts, for whoever looks at it.
        total: None while it is not known.
        unit: of what it counts; bytes if not told otherwise.

    """

    def __init__(self, what: str, total: int | None = None, unit: str = "B") -> None:
        scaled = unit == "B"
        self._tqdm = tqdm(
            total=total,
            desc=what,
            unit=unit,
            unit_scale=scaled,
            unit_divisor=1024 if scaled else 1000,
            dynamic_ncols=True,
            disable=not sys.stderr.isatty(),
        )

    def to(self, done: int) -> None:
        """So many are done, more or fewer than before."""
        self._tqdm.update(done - self._tqdm.n)

    def show(self, job: Job) -> None:
        """Show how a job stands."""
        self._tqdm.set_description_str({"queued": "Queued"}.get(job.status, "Tiles"), refresh=False)
        if job.tiles is not None:
            self._tqdm.total = job.tiles.total
            self.to(job.tiles.done)
        self._tqdm.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tqdm.close()


def say(line: str) -> None:
    """Write a line to standard error, above a bar that is there."""
    tqdm.write(line, file=sys.stderr)
