"""The common form of benchmark results: rows of figures with their targets."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

import msgspec


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A quantity over the rounds of a benchmark. Its name, a key of `Row.figures`, ends with its unit."""

    median: float
    least: float | None = None
    most: float | None = None
    rounds: int = 1
    at_most: float | None = None
    """Upper bound of the median, if the target has one."""
    at_least: float | None = None

    @classmethod
    def of(cls, values: Iterable[float], *, at_most: float | None = None, at_least: float | None = None) -> Self:
        """Return the figure of values with one value per round."""
        values = list(values)
        return cls(statistics.median(values), min(values), max(values), len(values), at_most, at_least)

    @classmethod
    def ratio(
        cls,
        numerators: Iterable[float],
        denominators: Iterable[float],
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> Self:
        """Return the figure of the ratios of paired values, of rounds in which two sides took turns."""
        pairs = zip(numerators, denominators, strict=True)
        return cls.of((numerator / denominator for numerator, denominator in pairs), at_most=at_most, at_least=at_least)

    @property
    def met(self) -> bool | None:
        """Whether the median meets its bounds, or None for a figure without bounds."""
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
    """One measurement: a row of the table. A plain number in ``figures`` is a figure that was measured once."""

    name: str
    figures: Mapping[str, float | Figure]
    asked: str = ""
    """The target in words, if the bounds of the figures do not say it."""
    met: bool | None = None
    """Whether the target in words is met, or None if only the bounds of the figures count."""

    def each(self) -> Iterator[tuple[str, Figure]]:
        """Yield the name and the figure of each entry of ``figures``, with plain numbers as figures."""
        for name, value in self.figures.items():
            yield name, value if isinstance(value, Figure) else Figure(value)

    @property
    def rounds(self) -> int:
        """The largest number of rounds among the figures."""
        return max((figure.rounds for _, figure in self.each()), default=1)

    @property
    def asks(self) -> str:
        """The whole target in words: ``asked`` and the bounds of the figures."""
        parts = [self.asked] if self.asked else []
        for name, figure in self.each():
            bounds = (("≤", figure.at_most), ("≥", figure.at_least))
            parts += [f"{name} {sign} {bound:g}" for sign, bound in bounds if bound is not None]
        return ", ".join(parts)

    @property
    def is_met(self) -> bool | None:
        """Whether the row meets its whole target, or None for a row without a target."""
        known_results = [met for met in (self.met, *(figure.met for _, figure in self.each())) if met is not None]
        return all(known_results) if known_results else None


_set: dict[str, str] = {}


def setting(name: str, default: str) -> str:
    """Return an environment variable that changes a run, usually to make it shorter, and record a value that is set."""
    value = os.environ.get(name, default)
    if value != default:
        _set[name] = value
    return value


def settings() -> dict[str, str]:
    """Return the settings of this run that differ from their defaults, by name."""
    return dict(_set)


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the value that ``percent`` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def as_table(rows: Iterable[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| measurement | figures | rounds | target | met |", "|---|---|---|---|---|"]
    for row in rows:
        figures = ", ".join(f"{name} {figure}" for name, figure in row.each())
        lines.append(f"| {row.name} | {figures} | {row.rounds} | {row.asks} | {told(row.is_met)} |")
    return "\n".join(lines) + "\n"


def told(met: bool | None) -> str:  # noqa: FBT001 - the value to translate, not an option
    """Return "yes", "**NO**" or an empty string for a row without a target."""
    return {True: "yes", False: "**NO**", None: ""}[met]
