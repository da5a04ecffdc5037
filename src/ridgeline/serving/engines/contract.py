"""What every serving engine promises, without the engine: engines/base.py, as tests.

`contracts.workloads` holds the two workloads of the same engine to what campaigns need.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import ClassVar

from hypothesis import HealthCheck, given, settings

from ridgeline.serving.engines.base import (
    DATASET,
    MODEL,
    OFFLINE_RESULT,
    PORT,
    EngineLog,
    OfflineBatch,
    ServerLaunch,
    ServingEngine,
    Span,
    engine_named,
)
from ridgeline.serving.engines.failures import cause_of, leading_cause, signatures
from ridgeline.testing.contracts import as_lines, mutated

_quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.differing_executors]
_few = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=_quiet)
_ARGUMENTS = ["--some-flag", "it's 1"]


class EngineContract:
    """Subclasses set `name`. They may give `logs`, which the engine really wrote, and `failed`: a line that it printed
    when it failed -> the kind of failure."""

    name: ClassVar[str]
    failed: ClassVar[Mapping[str, str]] = {}

    def engine(self) -> ServingEngine:
        return engine_named(self.name)

    def logs(self) -> Sequence[bytes]:
        return ()

    def test_it_is_one_engine_of_that_name(self) -> None:
        engine = self.engine()
        assert isinstance(engine, ServingEngine)
        assert engine.name == self.name
        assert engine.packages, "whose version is the engine's?"
        assert engine.flags.engine == self.name

    def test_a_session_and_a_service_start_the_same_program(self) -> None:
        engine = self.engine()
        launch = ServerLaunch("/py", "/a model", _ARGUMENTS, "10.0.0.1", 30_007, served_name="small")
        argv = engine.server_argv(launch)
        assert [word for word in _ARGUMENTS if word not in argv] == []
        assert "10.0.0.1" in argv and "30007" in argv and "small" in argv
        entry = engine.entry("/a model", 1)
        at = argv.index("/py") + 1
        assert argv[at : at + len(entry)] == entry
        started = _words(engine.serve("/py", _ARGUMENTS, Span()))
        assert started[: 1 + len(entry)] == ["/py", *engine.entry("MODEL", 1)]
        assert [word for word in (*_ARGUMENTS, "PORT") if word not in started] == []

    def test_every_node_is_given_its_rank_and_their_number(self) -> None:
        engine, over = self.engine(), Span(3, "10.0.0.9", "20005", "2")
        flags = engine.over_nodes(over)
        if not flags:
            return  # it never spans several
        assert {"3", "2"} <= set(flags) and "10.0.0.9" in " ".join(flags) and "20005" in " ".join(flags)
        first = _words(engine.serve("/py", [], Span(3)), rank="0")
        last = _words(engine.serve("/py", [], Span(3)), rank="2")
        assert last[-len(engine.follower_argv) :] == list(engine.follower_argv) or not engine.follower_argv
        assert not set(engine.follower_argv) & set(first)

    def test_its_benchmark_reads_our_data_and_leaves_its_result(self) -> None:
        engine = self.engine()
        text = engine.offline("/py", _ARGUMENTS, OfflineBatch(7, 3, 0), engine.latest, Span())
        words = _words(text)
        assert DATASET in words and OFFLINE_RESULT in words and "MODEL" in words
        assert [word for word in _ARGUMENTS if word not in words] == []

    def test_every_failure_that_it_prints_has_a_meaning_and_advice(self) -> None:
        engine = self.engine()
        for text in engine.failure_texts:
            assert text.meaning.claim and text.meaning.advice.format(memory_flag=engine.memory_flag)

    def test_log_run_and_diagnosis_agree_on_why_it_failed(self) -> None:
        """One table: the log's reader, the judge of a run and `diagnose` all see the same failure in a line."""
        engine = self.engine()
        rows = signatures(engine.flags, engine.failure_texts, engine.memory_flag)
        sure = [text for text in engine.failure_texts if text.sure]
        for line, kind in self.failed.items():
            log = engine.read([line])
            assert [failure[0] for failure in log.failures] == [kind], line
            cause, leading = cause_of(log.failures, weights_loaded=True), leading_cause(log.failures)
            assert cause is not None and leading is not None and leading[0] == kind
            shown = next((text for text in sure if text.pattern.search(line)), None)
            judged = next((row for row in rows if row.pattern.search(line)), None)
            assert (judged is None) == (shown is None), line
            if judged is not None and shown is not None:
                assert judged.kind is shown.meaning.kind, line

    def test_metrics_of_one_page_are_its_own(self) -> None:
        names = self.engine().metrics
        if not names.running:
            return  # it has no such page, or nobody has read it
        used = (names.running, names.waiting, names.kv_share, names.prompt_tokens, names.output_tokens)
        assert all((*used, names.made, names.ttft, names.e2e)), "`keep` and plans look at these"
        assert names.live and names.progress
        prefixes = {name.partition(":")[0] for name in (*used, *names.live, *names.progress, names.ttft, names.e2e)}
        assert len(prefixes) == 1

    def test_ports_follow_from_the_one_it_is_given(self) -> None:
        engine = self.engine()
        for offsets in (engine.port_offsets, engine.rendezvous_offsets):
            assert offsets[0] == 0 and len(set(offsets)) == len(offsets)
        assert all(row.source for row in (*engine.derived_ports, *engine.rendezvous_ports))

    def test_whatever_is_printed_is_read_without_an_error(self) -> None:
        texts = [*self.logs(), *(line.encode() for line in self.failed), b"", b"{}\n"]

        @_few
        @given(mutated(texts))
        def check(raw: bytes) -> None:
            assert isinstance(self.engine().read(as_lines(raw), 2), EngineLog)
            self.engine().offline_result(raw.decode(errors="replace"), as_lines(raw))

        check()


def _words(text: str, rank: str = "0") -> list[str]:
    """What a shell makes of a command, with the session's variables set to their own short names."""
    known = f"rank={rank} {PORT}=PORT {MODEL}=MODEL RIDGELINE_HEAD=HEAD RIDGELINE_RENDEZVOUS=RENDEZVOUS"
    program = f"{known}\nprintf '%s\\0' {text}\n"
    done = subprocess.run(["sh", "-euc", program], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]
