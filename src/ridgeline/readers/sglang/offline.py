"""What SGLang's offline_throughput says at its end: a block in the log, or a line of the file of --result-filename."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ridgeline.readers.lines import number, whole
from ridgeline.readers.sglang.facts import OfflineResult

_RESULT_LABELS = {
    "Backend": "backend",
    "Successful requests": "successful_requests",
    "Benchmark duration (s)": "total_latency",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Last generation throughput (tok/s)": "last_gen_throughput",
    "Request throughput (req/s)": "request_throughput",
    "Input token throughput (tok/s)": "input_throughput",
    "Output token throughput (tok/s)": "output_throughput",
    "Total token throughput (tok/s)": "total_throughput",
}


def read_offline_jsonl(lines: Iterable[str]) -> tuple[OfflineResult, ...]:
    """Results that offline_throughput appended to its --result-filename; other lines are skipped."""
    results = []
    for line_number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict):
            result = _offline_result({str(k): str(v) for k, v in values.items()}, line_number)
            if result is not None:
                results.append(result)
    return tuple(results)


class ResultBlock:
    """Reads the block between its two rules; other messages may stand in between."""

    def __init__(self) -> None:
        self.row: dict[str, str] | None = None
        self.line = 0

    def read(self, line: int, message: str) -> OfflineResult | None:
        """The result, when `message` is the rule that ends its block."""
        if "Offline Throughput Benchmark Result" in message:
            self.row, self.line = {}, line
            return None
        if self.row is None:
            return None
        label, separator, value = message.partition(":")
        if separator and label.strip() in _RESULT_LABELS:
            self.row[_RESULT_LABELS[label.strip()]] = value.strip()
        elif "=====" in message and self.row:
            row, self.row = self.row, None
            return _offline_result(row, self.line)
        return None


def _offline_result(row: dict[str, str], line: int) -> OfflineResult | None:
    requests, duration = whole(row.get("successful_requests")), number(row.get("total_latency"))
    inputs, outputs = whole(row.get("total_input_tokens")), whole(row.get("total_output_tokens"))
    if requests is None or duration is None or inputs is None or outputs is None:
        return None
    return OfflineResult(
        backend=row.get("backend", ""),
        successful_requests=requests,
        duration_s=duration,
        input_tokens=inputs,
        output_tokens=outputs,
        request_s=number(row.get("request_throughput")),
        input_tok_s=number(row.get("input_throughput")),
        output_tok_s=number(row.get("output_throughput")),
        total_tok_s=number(row.get("total_throughput")),
        line=line,
    )
