"""What every analyzer promises: analyzers/base.py, as tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, get_args

from hypothesis import HealthCheck, given, settings

from ridgeline import catalog
from ridgeline.diagnose.base import Analyzer, kinds_of
from ridgeline.diagnose.readers.lines import plain
from ridgeline.records.finding import Severity
from ridgeline.testing.contracts import as_lines, mutated

_FOREIGN: tuple[list[str], ...] = (
    [],
    ["Dear all,", "", "the cluster is down on Monday."],
    ["#!/bin/sh", "cd /scratch || exit 1", "exec ./program --size 4"],
    ["Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "ValueError: 3"],
    ["a,b,c", "1,2,3"],
    ['{"a": [1, 2, {"b": null}]}'],
    ["\x00\x01\ufffd" * 200],
)


class AnalyzerContract:
    """Subclasses set `name` and give `samples`: files of its kind, at least one of which has something to report.

    `foreign` are texts of other kinds; an analyzer for which one of them is none leaves it out.
    """

    name: ClassVar[str]
    foreign: ClassVar[tuple[list[str], ...]] = _FOREIGN

    def samples(self) -> Sequence[bytes]:
        raise NotImplementedError("give the content of files of this kind")

    def analyzer(self) -> Analyzer:
        found: Analyzer = catalog.part("analyzers", self.name)
        return found

    def test_it_is_registered_under_its_kind_and_says_what_it_reads(self) -> None:
        analyzer = self.analyzer()
        assert analyzer.kind == self.name
        assert analyzer.what.strip()

    def test_its_mark_is_in_every_file_of_its_kind(self) -> None:
        analyzer = self.analyzer()
        assert self.samples()
        assert all(kinds_of(as_lines(sample), [analyzer]) == [analyzer] for sample in self.samples())

    def test_foreign_text_is_not_its_kind_and_does_it_no_harm(self) -> None:
        for lines in self.foreign:
            assert kinds_of(lines, [self.analyzer()]) == [], lines[:1]
            self.analyzer().analyze("file", lines)

    def test_findings_say_what_to_do_and_quote_the_lines_that_show_it(self) -> None:
        found = 0
        for sample in self.samples():
            lines = as_lines(sample)
            for finding in self.analyzer().analyze("the file", lines):
                found += 1
                assert finding.claim.strip() and finding.advice.strip()
                assert finding.severity in get_args(Severity)
                assert finding.evidence, finding.claim
                for quote in finding.evidence:
                    assert quote.source == "the file"
                    assert 1 <= quote.line_number <= len(lines)
                    _assert_quoted(quote.text, lines[quote.line_number - 1])
        assert found, "none of the samples has anything to report: nothing was tested"

    def test_the_same_findings_again_and_from_lines_that_pass_only_once(self) -> None:
        for sample in self.samples():
            lines = as_lines(sample)
            first = self.analyzer().analyze("file", lines)
            assert self.analyzer().analyze("file", lines) == first
            assert self.analyzer().analyze("file", iter(lines)) == first

    def test_torn_files_give_fewer_findings_and_never_an_error(self) -> None:
        @settings(
            max_examples=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow],
        )
        @given(mutated(self.samples()))
        def check(text: bytes) -> None:
            self.analyzer().analyze("file", as_lines(text))

        check()


def _assert_quoted(quote: str, line: str) -> None:
    shown, line = quote.strip("… "), plain(line)
    assert shown, "an empty line shows nothing"
    # keys and passwords are left out of quotes
    assert all(part.strip() in line for part in shown.split("(hidden)")), f"{quote!r} is not in {line!r}"
