"""The common form of what benchmarks find: rows of figures, and what is asked of them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

import msgspec


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One quantity over the rounds of a benchmark; its name, in `Row.figures`, ends with its unit."""

    median: float
    least: float | None = None
    most: float | None = None
    rounds: int = 1
    at_most: float | None = None
    """What is asked of the median."""
    at_least: float | None = None

    @classmethod
    def of(cls, values: Iterable[float], *, at_most: float | None = None, at_least: float | None = None) -> Self:
        """Of one value a round."""
        values = list(values)
        return cls(statistics.median(values), min(values), max(values), len(values), at_most, at_least)

    @classmethod
    def ratio(
        cls,
        ones: Iterable[float],
        others: Iterable[float],
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> Self:
        """Of rounds in which both took turns: the ratio of each pair."""
        pairs = zip(ones, others, strict=True)
        return cls.of((one / other for one, other in pairs), at_most=at_most, at_least=at_least)

    @property
    def met(self) -> bool | None:
        """Whether the median is what is asked, None where nothing is."""
        if self.at_most is None and self.at_least is None:
            return None
        return (self.at_most is None or self.median <= self.at_most) and (
            self.at_least is None or self.median >= self.at_least
        )

    def __str__(self) -> str:
        spread = "" if self.least is None or self.most is None else f" ({_short(self.least)} to {_short(self.most)})"
        return f"{_short(self.median)}{spread}"


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


class Row(msgspec.Struct, omit_defaults=True):
    """What one measurement found; a plain number is a figure that was measured once."""

    name: str
    figures: Mapping[str, float | Figure]
    asked: str = ""
    """What is asked, in words, where the bounds of its figures do not say it."""
    met: bool | None = None
    """Whether that is met, None where the bounds of its figures decide."""

    def each(self) -> Iterator[tuple[str, Figure]]:
        """Its figures by name."""
        for name, value in self.figures.items():
            yield name, value if isinstance(value, Figure) else Figure(value)

    @property
    def rounds(self) -> int:
        """The most of its figures."""
        return max((figure.rounds for _, figure in self.each()), default=1)

    @property
    def asks(self) -> str:
        """All that is asked, in words."""
        said = [self.asked] if self.asked else []
        for name, figure in self.each():
            bounds = (("≤", figure.at_most), ("≥", figure.at_least))
            said += [f"{name} {sign} {bound:g}" for sign, bound in bounds if bound is not None]
        return ", ".join(said)

    @property
    def is_met(self) -> bool | None:
        """Whether all that is asked is met, None where nothing is."""
        known = [met for met in (self.met, *(figure.met for _, figure in self.each())) if met is not None]
        return all(known) if known else None


_set: dict[str, str] = {}


def setting(name: str, default: str) -> str:
    """A variable of the environment that makes another run, most often a shorter one; where set, it is recorded."""
    value = os.environ.get(name, default)
    if value != default:
        _set[name] = value
    return value


def settings() -> dict[str, str]:
    """What this run was asked to do otherwise."""
    return dict(_set)


def percentile(values: Iterable[float], percent: float) -> float:
    """The value that ``percent`` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def as_table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| measurement | figures | rounds | asked | met |", "|---|---|---|---|---|"]
    for row in rows:
        figures = ", ".join(f"{name} {figure}" for name, figure in row.each())
        lines.append(f"| {row.name} | {figures} | {row.rounds} | {row.asks} | {told(row.is_met)} |")
    return "\n".join(lines) + "\n"


def told(met: bool | None) -> str:  # noqa: FBT001 - it is what is told
    """Whether it is met, in a word."""
    return {True: "yes", False: "**NO**", None: ""}[met]
