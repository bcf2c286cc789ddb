from __future__ import annotations

import html
import re

import pytest

from benchmarks.page import drawings, page, write_page
from benchmarks.records import RESULTS, Machine, Record, keep, read
from benchmarks.report import Figure, Row, as_table


def record(*rows):
    return Record("What it measures", "2026-01-02", Machine(2, "a CPU"), {"vllm": "0.32.0"}, list(rows), plotted=["ms"])


class TestCommitted:
    def test_the_page_is_made_of_the_records(self):
        """docs/benchmarks.md is what `python -m benchmarks --page` writes of the records beside it."""
        assert RESULTS.parent.with_suffix(".md").read_text(encoding="utf-8") == page(read())

    def test_the_plots_show_the_records(self):
        """Each plot of the page is there, none is left over, and what it was drawn of are the records' figures."""
        wanted = {drawing.file: drawing.data for drawing in drawings(read())}
        texts = {path.name: path.read_text(encoding="utf-8") for path in RESULTS.parent.glob("*.svg")}
        described = re.compile(r"<dc:description>(.*)</dc:description>")
        found = {name: html.unescape(described.findall(text)[0]) for name, text in texts.items()}
        assert found == wanted


class TestPage:
    def test_a_semicolon_ends_a_remark(self):
        """The note of a record becomes a list with an item for each remark."""
        noted = record(Row("a", {"ms": 1.0}))
        noted.note = "a shared machine; ours is in bfloat16"
        assert "\n\n- A shared machine.\n- Ours is in bfloat16.\n\n" in page({"one": noted})


class TestKept:
    def test_a_run_replaces_its_own_record_alone(self, tmp_path):
        """The records of other benchmarks stay as they are, spreads and bounds included."""
        results = tmp_path / "results.json"
        one, other = record(Row("a", {"ms": Figure.of([1.0, 3.0, 2.0], at_most=2)})), record(Row("b", {"ms": 1.0}))
        keep("one", record(Row("before", {"ms": 9.0})), results)
        keep("other", other, results)
        keep("one", one, results)
        assert read(results) == {"one": one, "other": other}

    @pytest.mark.heavy
    def test_the_same_records_give_the_same_bytes(self, tmp_path):
        """Page and plots have nothing in them that changes from day to day; plots of records that are gone go."""
        pytest.importorskip("matplotlib")
        written = []
        for name in ("first", "second"):
            results = tmp_path / name / "results.json"
            keep("one", record(Row("a", {"ms": Figure.of([1.0, 3.0])}), Row("b", {"ms": 400.0})), results)
            (results.parent / "gone-ms.svg").touch()
            write_page(read(results), results)
            written.append({path.name: path.read_bytes() for path in results.parent.iterdir()})
        assert written[0] == written[1]
        assert set(written[0]) == {"results.json", "one-ms.svg"}


class TestAsked:
    @pytest.mark.parametrize(
        ("figure", "met"), [(2.0, None), (Figure(2, at_most=2), True), (Figure(2, at_least=3), False)]
    )
    def test_bounds_say_whether_it_is_met(self, figure, met):
        """A figure without bounds says nothing; its bound holds for the median."""
        assert Row("a", {"ms": figure}).is_met is met

    def test_words_and_bounds_must_both_be_met(self):
        """What is asked in words does not hide a bound that is missed."""
        row = Row("a", {"ms": Figure.ratio([4.0, 9.0], [2.0, 3.0], at_most=2)}, "no tile lost", met=True)
        assert row.is_met is False
        assert "| ms 2.5 (2 to 3) | 2 | no tile lost, ms ≤ 2 | **NO** |" in as_table([row])
