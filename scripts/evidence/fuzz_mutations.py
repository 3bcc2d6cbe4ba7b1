"""Changes of files at random: of their bytes, and of what they hold by the rules of their format."""

from __future__ import annotations

import copy
import csv
import io
import json
import sqlite3
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.random import Generator

Mutation = Callable[[Generator, bytes], bytes]

JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, -(2**63), 2**64, 10**400, 0.5, -1e308, 1e308),
    *("", "x", "\0", "../../etc/passwd", "9" * 5000, "\ud800", "a" * 100_000, "[" * 2000),
    *("!!python/object/apply:os.system [id]", [], {}, [[]], [None], {"x": 1}),
)
NAMES = (
    "../../../tmp/x",
    "/etc/passwd",
    "..",
    ".",
    "a/../b",
    "C:\\x",
    "a\0b",
    "a\nb",
    "",
    "~/.ssh",
    "$(id)",
    "x" * 5000,
)
CELLS = (
    *("", " ", "nan", "inf", "-inf", "1e400", "-1e308", "1e-400", "0x10", "1_000", "1,5", "9" * 5000, "١٢٣", "true"),
    *("2020-02-30", "0000-00-00", "99999-01-01", "2020-01-01T25:00", "1677-01-01", "9999-12-31", "today", "\0", '"'),
    *("=cmd()", "../../etc/passwd", "x" * 20_000, "\ud800", "﻿", "Date", "date", "cash", "ticker", "-1", "-0.0", "[]"),
)
SCALARS = (
    *("null", "~", ".nan", ".inf", "-.inf", "1e400", "9" * 5000, "0o777", "yes", "''", '"\\ud800"', "2020-13-45"),
    *("[" * 300, "{" * 300, "[" * 20_000, "&a [*a]", "*missing", "<<: 1", "? [a]", "!!binary x", "!!set {a}"),
    *("!!python/object/apply:os.system [id]", "!!python/name:os.system", "!!float x", "!!timestamp 0-0-0", "!!int ''"),
    *(
        "- - - -",
        "|\n  x",
        "{a: 1, a: 2}",
        "../../../etc/passwd",
        "/dev/zero",
        "%TAG ! x",
        "--- a\n--- b",
        "\t",
        "@",
        "`",
    ),
)


def flipped(rng: Generator, content: bytes) -> bytes:
    """One to eight bits."""
    changed = bytearray(content)
    for _ in range(int(rng.integers(1, 9))):
        changed[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def truncated(rng: Generator, content: bytes) -> bytes:
    """Cut short, or a piece left out."""
    start, end = sorted(int(place) for place in rng.integers(0, len(content), 2))
    return content[:start] if rng.random() < 0.5 else content[:start] + content[max(end, start + 1) :]


def overwritten(rng: Generator, content: bytes) -> bytes:
    """A stretch of noise, zeros or other bytes of the file, or something appended."""
    start, size = int(rng.integers(len(content))), int(2 ** rng.uniform(0, 14))
    elsewhere = int(rng.integers(len(content)))
    piece = (rng.bytes(size), bytes(size), content[elsewhere : elsewhere + size])[int(rng.integers(3))]
    return content + piece if rng.random() < 0.2 else content[:start] + piece + content[start + size :]


def replaced(rng: Generator, content: bytes) -> bytes:
    """Bytes of no file at all: noise, zeros, text, or nothing."""
    size = int(2 ** rng.uniform(0, 12))
    return (rng.bytes(size), bytes(size), b"[" * (100 * size), b"", b"\xff\xfe" + content[:size])[int(rng.integers(5))]


def spliced(rng: Generator, content: bytes) -> bytes:
    """The beginning of the file, and its end from another place on."""
    first, second = (int(place) for place in rng.integers(0, len(content) + 1, 2))
    return content[:first] + content[second:]


BYTES: tuple[Mutation, ...] = (flipped, truncated, overwritten, spliced, replaced)


def csv_changed(rng: Generator, content: bytes) -> bytes:
    """Cells, rows, columns and the header of a table; quotes, ends of lines and encodings."""
    rows = list(csv.reader(io.StringIO(content.decode())))
    for _ in range(int(rng.integers(1, 4))):
        row = 0 if rng.random() < 0.3 else int(rng.integers(len(rows)))
        column = int(rng.integers(len(rows[0])))
        kind = int(rng.integers(8))
        if kind < 3 and column < len(rows[row]):
            rows[row][column] = _any(rng, CELLS)
        elif kind == 3:
            rows.insert(int(rng.integers(len(rows) + 1)), list(rows[row]))
        elif kind == 4 and len(rows) > 1:
            del rows[row]
        elif kind == 5:
            rows = [[*one, one[min(column, len(one) - 1)] if one else ""] for one in rows]
        elif kind == 6:
            rows = [one[:column] + one[column + 1 :] for one in rows]
        else:
            rows[row] = rows[row] * int(rng.integers(0, 50))
        if not rows or not rows[0]:
            break
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator=("\n", "\r\n", "\r")[int(rng.integers(3))])
    try:
        writer.writerows(rows)
    except csv.Error:  # of a row that is empty text alone
        return stream.getvalue().encode("utf-8", "surrogatepass")
    text = stream.getvalue()
    if rng.random() < 0.1:
        text = text.replace(",", (";", "\t", '"', ',"')[int(rng.integers(4))], int(rng.integers(1, 20)))
    encoding = ("utf-16", "latin-1", "utf-8-sig")[int(rng.integers(3))] if rng.random() < 0.1 else "utf-8"
    return text.encode(encoding, "surrogatepass" if encoding.startswith("utf") else "replace")


def json_changed(rng: Generator, content: bytes) -> bytes:
    """Values of an object, or of one of several lines, replaced or taken away; keys twice, and deep nesting."""
    lines = [content.decode()] if content.startswith(b"{\n") else content.decode().splitlines()
    place = int(rng.integers(len(lines)))
    found = json.loads(lines[place])
    for _ in range(int(rng.integers(1, 4))):
        found = value_changed(rng, found)
    kind = rng.random()
    text = json.dumps(found)
    if kind < 0.05:
        text = "[" * 100_000
    elif kind < 0.1:
        text = text[:-1] + ', "a": ' + "[" * 3000 + "]" * 3000 + "}"
    elif kind < 0.15 and text.startswith("{") and len(text) > 2:
        text = text[:-1] + ", " + text[1:]
    elif kind < 0.2:
        text = json.dumps(_any(rng, JUNK))
    elif kind < 0.25:
        text = text.replace(":", ": NaN, ", 1) if rng.random() < 0.5 else text.replace('"', "'", 2)
    lines[place] = text
    if len(lines) > 1 and rng.random() < 0.1:
        lines.insert(place, lines[int(rng.integers(len(lines)))])
    return ("\n".join(lines) + "\n" * (rng.random() < 0.9)).encode("utf-8", "surrogatepass")


def value_changed(rng: Generator, found: Any) -> Any:
    """A copy in which one value at a place that was drawn is another, or gone, or a branch of others."""
    found = copy.deepcopy(found)
    place = found
    while isinstance(place, dict | list) and len(place):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = keys[int(rng.integers(len(keys)))]
        if not isinstance(place[key], dict | list) or not len(place[key]) or rng.random() < 0.25:
            kind = rng.random()
            if kind < 0.2:
                del place[key]
            elif kind < 0.3 and isinstance(place, dict):
                place[_any(rng, NAMES)] = place.pop(key)
            elif kind < 0.4 and isinstance(place[key], int | float) and not isinstance(place[key], bool):
                place[key] = (-place[key], float(place[key] % 1000) * 1e300, repr(place[key]), [place[key]])[
                    int(rng.integers(4))
                ]
            else:
                place[key] = copy.deepcopy(_any(rng, JUNK))
            break
        place = place[key]
    return found


def yaml_changed(rng: Generator, content: bytes) -> bytes:
    """Scalars, tags, anchors, indentation, and keys twice."""
    lines = content.decode().splitlines()
    for _ in range(int(rng.integers(1, 4))):
        place = int(rng.integers(len(lines)))
        line, kind = lines[place], int(rng.integers(7))
        if kind < 3:
            lines[place] = f"{line.partition(':')[0]}: {_any(rng, SCALARS)}"
        elif kind == 3:
            lines.insert(place, line)
        elif kind == 4:
            lines[place] = " " * int(rng.integers(0, 6)) + line.lstrip()
        elif kind == 5:
            lines[place] = line.replace(":", (" :", "", ": !!python/tuple", ": &x", ":\n -")[int(rng.integers(5))], 1)
        else:
            found = value_changed(rng, yaml.safe_load(content))
            try:
                lines = yaml.safe_dump(found).splitlines() or [""]
            except (yaml.YAMLError, UnicodeError):
                lines = [str(found)]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def parquet_changed(rng: Generator, content: bytes) -> bytes:
    """Other types, names, values and indices of a table; a footer that lies; many rows in few bytes."""
    kind = rng.random()
    if kind < 0.1:  # the length of the footer
        size = (0, 1, len(content), 2**31, int.from_bytes(content[-8:-4], "little") - 3)[int(rng.integers(5))]
        return content[:-8] + size.to_bytes(4, "little") + content[-4:]
    if kind < 0.3:  # the footer itself, in which numbers are of variable length
        size = int.from_bytes(content[-8:-4], "little")
        changed = bytearray(content)
        for _ in range(int(rng.integers(1, 5))):
            changed[len(content) - 8 - size + int(rng.integers(size))] = int(rng.integers(256))
        return bytes(changed)
    if kind < 0.32:
        return many_rows()
    frame = pd.read_parquet(io.BytesIO(content))
    stream = io.BytesIO()
    try:
        for _ in range(int(rng.integers(1, 3))):
            frame = _frame_changed(rng, frame)
        frame.to_parquet(stream)
    except Exception:  # not everything can be an index of pandas, or be written
        return content[: len(content) // 2]
    return stream.getvalue()


def _frame_changed(rng: Generator, frame: pd.DataFrame) -> pd.DataFrame:
    column, rows = int(rng.integers(frame.shape[1])), len(frame)
    values: tuple[Any, ...] = (
        *(rng.random(rows) < 0.5, [None] * rows, [b"\xff"] * rows, ["x"] * rows, [[1.0]] * rows, [{"a": 1}] * rows),
        *(np.full(rows, np.nan), np.full(rows, np.inf), np.full(rows, 2**62), pd.Categorical(["a"] * rows)),
        *(pd.date_range("1700", periods=rows, tz="UTC"), pd.timedelta_range("1D", periods=rows), [2.5 + 1j] * rows),
        *(np.zeros(rows, np.float16), np.full(rows, -1.0), pd.period_range("2000", periods=rows, freq="D")),
    )
    kind = int(rng.integers(7))
    if kind < 3:
        frame = frame.copy()
        frame.isetitem(column, values[int(rng.integers(len(values)))])
        return frame
    if kind == 3:
        names = list(frame.columns)
        names[column] = _any(rng, (*NAMES, "Date", "Close", "ticker", 1, names[0]))
        return frame.set_axis(names, axis=1)
    if kind == 4:
        return frame.iloc[rng.integers(0, rows, int(rng.integers(0, rows)))] if rows else frame
    if kind == 5:
        return frame.set_index([frame.iloc[:, column], frame.index])
    return frame.drop(columns=frame.columns[column]) if frame.shape[1] > 1 else frame.T


@cache
def many_rows() -> bytes:
    """A billion cells of one value, in a file of a few kilobytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 2_000_000
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array(["2020-01-01"]))
    stream = io.BytesIO()
    pq.write_table(pa.table(dict.fromkeys(["Date", *map(str, range(500))], column)), stream, compression="zstd")
    return stream.getvalue()


def npz_changed(rng: Generator, content: bytes) -> bytes:
    """Members renamed, taken away or twice; headers of arrays that lie; objects; a compressed bomb; other arrays."""
    with zipfile.ZipFile(io.BytesIO(content)) as stored:
        members = [(name, stored.read(name)) for name in stored.namelist()]
    method = zipfile.ZIP_STORED
    for _ in range(int(rng.integers(1, 3))):
        place = int(rng.integers(len(members)))
        (name, data), kind = members[place], int(rng.integers(8))
        if kind == 0:
            members[place] = (_any(rng, NAMES).replace("\0", "_")[:1000] or "x", data)
        elif kind == 1 and len(members) > 1:
            del members[place]
        elif kind == 2:
            members.append(members[place])
        elif kind == 3:
            members[place] = (name, _header_changed(rng, data))
        elif kind == 4:
            members[place] = (name, _array(np.array([None, {"a": 1}], dtype=object)))
        elif kind == 5 and rng.random() < 0.1:
            members[place], method = (name, data[:128] + bytes(300_000_000)), zipfile.ZIP_DEFLATED
        elif kind == 6:
            members[place] = (name, (flipped, truncated, overwritten)[int(rng.integers(3))](rng, data))
        else:
            try:
                members[place] = (name, _member_changed(rng, name, data))
            except Exception:  # a member that an earlier change has spoilt
                members[place] = (name, data[:-1])
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as made:
        for name, data in members:
            made.writestr(zipfile.ZipInfo(name), data, method)
    return stream.getvalue()


def _member_changed(rng: Generator, name: str, data: bytes) -> bytes:
    """Another array of a member, or other facts in that of the facts."""
    array = np.load(io.BytesIO(data))
    if not name.startswith("meta"):
        return _array(_array_changed(rng, array))
    facts = value_changed(rng, json.loads(array.tobytes()))
    text = json.dumps(facts) if rng.random() < 0.9 else "[" * 100_000
    return _array(np.frombuffer(text.encode("utf-8", "replace"), np.uint8))


def _header_changed(rng: Generator, data: bytes) -> bytes:
    """Of one array: its shape, type and order in the words of NumPy's format."""
    size = int.from_bytes(data[8:10], "little")
    huge = int(2 ** rng.uniform(8, 66))
    shape = (f"({huge},)", f"({huge}, {huge})", "(-1,)", "()", "(0, 5)", "[" * 500, "__import__('os')")
    types = ("'|O'", "'<f8'", "'<U1000000000'", "[('a', '<f8')]", "'V8'", "'<M8[D]'", "'x'", "None")
    words = f"{{'descr': {_any(rng, types)}, 'fortran_order': {rng.random() < 0.5}, 'shape': {_any(rng, shape)}, }}"
    text = words.encode()
    return data[:8] + len(text).to_bytes(2, "little") + text + data[10 + size :]


def _array_changed(rng: Generator, array: Any) -> Any:
    types = ("<f4", "<f8", "<i4", "<i8", "|b1", "<U5", "<c16", "<M8[D]")
    with np.errstate(all="ignore"):
        changed = (
            lambda: array[: len(array) // 2] if array.ndim else array,
            lambda: array.astype(_any(rng, types)),
            lambda: np.full_like(array, np.nan if array.dtype.kind == "f" else 1),
            lambda: array[..., None],
            lambda: np.zeros((0, 3)),
            lambda: array.reshape(-1),
        )
        return changed[int(rng.integers(len(changed)))]()


def _array(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)  # written for readers to refuse; nothing here loads it
    return stream.getvalue()


def sqlite_changed(rng: Generator, content: bytes, path: Path) -> bytes:
    """Values, rows and tables of a database."""
    path.write_bytes(content)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        connection.execute("PRAGMA ignore_check_constraints = ON")
        full = [name for name in names if connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]]
        for _ in range(int(rng.integers(1, 4))):
            table = _any(rng, full)
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            if not columns:  # an earlier change took the table away
                continue
            column, kind = _any(rng, columns), rng.random()
            change = {0: f"DROP TABLE {table}", 1: f"DELETE FROM {table}", 2: f"ALTER TABLE {table} RENAME TO other"}
            try:
                if kind < 0.15:
                    connection.execute(change[int(rng.integers(3))])
                else:
                    some = "" if rng.random() < 0.5 else " WHERE rowid = 1"
                    junk = (
                        None,
                        -1,
                        2**40,
                        1e308,
                        "x",
                        "",
                        b"\xff",
                        "NaN",
                        "[" * 20_000,
                        '{"a": []}',
                        "inf",
                        "COMPLETE",
                    )
                    connection.execute(f"UPDATE {table} SET {column} = ?{some}", (_any(rng, junk),))
            except sqlite3.Error:  # a constraint, or a table that is gone
                continue
    finally:
        connection.close()
    return path.read_bytes()


def _any(rng: Generator, choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]
