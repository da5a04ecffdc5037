"""Rows as a Parquet file: one row group, plain values, uncompressed. A study's table is small; Arrow is 120 MB.

Follows the format's own specification (Thrift compact protocol, data pages of version 1). Every column may lack values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, BinaryIO

from ridgeline.report.table import Row, columns

_MAGIC = b"PAR1"
OPTIONAL, UTF8, PLAIN, RLE, UNCOMPRESSED = 1, 0, 0, 3, 0


class _Type(IntEnum):
    BOOLEAN = 0
    INT64 = 2
    DOUBLE = 5
    BYTE_ARRAY = 6


class _Thrift(IntEnum):
    I32 = 5
    I64 = 6
    BINARY = 8
    LIST = 9
    STRUCT = 12


Field = tuple[int, _Thrift, Any]  # number, type, value; of a list (type of its items, items)


def write_parquet(table: Sequence[Row], stream: BinaryIO) -> None:
    names = columns(table)
    kinds = {name: _kind([row.get(name) for row in table]) for name in names}
    stream.write(_MAGIC)
    at, chunks = len(_MAGIC), []
    for name in names:
        page = _page([row.get(name) for row in table], kinds[name])
        stream.write(page)
        chunks.append(_chunk(name, kinds[name], len(table), at, len(page)))
        at += len(page)
    footer = _struct(
        [
            (1, _Thrift.I32, 1),
            (2, _Thrift.LIST, (_Thrift.STRUCT, [_root(len(names)), *(_element(n, kinds[n]) for n in names)])),
            (3, _Thrift.I64, len(table)),
            (4, _Thrift.LIST, (_Thrift.STRUCT, [_row_group(chunks, at - len(_MAGIC), len(table))])),
            (6, _Thrift.BINARY, b"ridgeline"),
        ]
    )
    stream.write(footer + struct.pack("<I", len(footer)) + _MAGIC)


def _kind(values: Iterable[Any]) -> _Type:
    """The narrowest type that holds every value; text where they differ."""
    seen = {type(value) for value in values if value is not None and value != ""}
    if seen == {bool}:
        return _Type.BOOLEAN
    if seen == {int}:
        return _Type.INT64
    return _Type.DOUBLE if seen and seen <= {int, float} else _Type.BYTE_ARRAY


def _page(values: Sequence[Any], kind: _Type) -> bytes:
    # in CSV an empty cell is nothing, so it is here; only text can be empty on purpose, and nobody could tell
    known = [value for value in values if value is not None and (value != "" or kind is _Type.BYTE_ARRAY)]
    present = [value is not None and (value != "" or kind is _Type.BYTE_ARRAY) for value in values]
    levels = _varint((len(present) + 7) // 8 << 1 | 1) + _bits(present)
    body = struct.pack("<I", len(levels)) + levels + _plain(known, kind)
    header = _struct(
        [
            (1, _Thrift.I32, 0),
            (2, _Thrift.I32, len(body)),
            (3, _Thrift.I32, len(body)),
            (
                5,
                _Thrift.STRUCT,
                [
                    (1, _Thrift.I32, len(values)),
                    (2, _Thrift.I32, PLAIN),
                    (3, _Thrift.I32, RLE),
                    (4, _Thrift.I32, RLE),
                ],
            ),
        ]
    )
    return header + body


def _plain(values: Sequence[Any], kind: _Type) -> bytes:
    if kind is _Type.BOOLEAN:
        return _bits(values)
    if kind is _Type.INT64:
        return struct.pack(f"<{len(values)}q", *values)
    if kind is _Type.DOUBLE:
        return struct.pack(f"<{len(values)}d", *values)
    texts = [str(value).encode(errors="replace") for value in values]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def _bits(flags: Sequence[bool]) -> bytes:
    packed = bytearray((len(flags) + 7) // 8)
    for at, flag in enumerate(flags):
        packed[at // 8] |= bool(flag) << at % 8
    return bytes(packed)


def _root(children: int) -> list[Field]:
    return [(4, _Thrift.BINARY, b"runs"), (5, _Thrift.I32, children)]


def _element(name: str, kind: _Type) -> list[Field]:
    element: list[Field] = [(1, _Thrift.I32, kind), (3, _Thrift.I32, OPTIONAL), (4, _Thrift.BINARY, name.encode())]
    return [*element, (6, _Thrift.I32, UTF8)] if kind is _Type.BYTE_ARRAY else element


def _chunk(name: str, kind: _Type, count: int, at: int, size: int) -> list[Field]:
    meta: list[Field] = [
        (1, _Thrift.I32, kind),
        (2, _Thrift.LIST, (_Thrift.I32, [PLAIN, RLE])),
        (3, _Thrift.LIST, (_Thrift.BINARY, [name.encode()])),
        (4, _Thrift.I32, UNCOMPRESSED),
        (5, _Thrift.I64, count),
        (6, _Thrift.I64, size),
        (7, _Thrift.I64, size),
        (9, _Thrift.I64, at),
    ]
    return [(2, _Thrift.I64, at), (3, _Thrift.STRUCT, meta)]


def _row_group(chunks: list[list[Field]], size: int, rows: int) -> list[Field]:
    return [
        (1, _Thrift.LIST, (_Thrift.STRUCT, chunks)),
        (2, _Thrift.I64, size),
        (3, _Thrift.I64, rows),
    ]


# Thrift's compact protocol: as much of it as a Parquet footer needs


def _struct(fields: Sequence[Field]) -> bytes:
    out, last = b"", 0
    for number, kind, value in fields:
        out += bytes([(number - last) << 4 | kind]) + _value(kind, value)
        last = number
    return out + b"\0"


def _value(kind: _Thrift, value: Any) -> bytes:
    if kind in (_Thrift.I32, _Thrift.I64):
        return _varint(int(value) << 1 if value >= 0 else (-int(value) << 1) - 1)
    if kind is _Thrift.BINARY:
        return _varint(len(value)) + bytes(value)
    if kind is _Thrift.STRUCT:
        return _struct(value)
    of, items = value
    head = bytes([len(items) << 4 | of]) if len(items) < 15 else bytes([0xF0 | of]) + _varint(len(items))
    return head + b"".join(_value(of, item) for item in items)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
