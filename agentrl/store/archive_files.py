"""Files of an archive: a table a file, as JSON lines or as Parquet, written and read a few rows at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from agentrl.errors import NotReadyError, UsageError
from agentrl.store.archive_values import Value, from_json, to_json

FORMATS = ("jsonl", "parquet")
BATCH_ROWS = 1000
BATCH_BYTES = 16 * 2**20

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class TableWriter(Protocol):
    """Takes the rows of one table in order."""

    def write(self, row: list[Value], size: int) -> None: ...

    def close(self) -> None: ...


def open_writer(path: Path, columns: Mapping[str, str]) -> TableWriter:
    """A writer for the format that the name ends with; columns -> their types in the database."""
    return (ParquetWriter if path.suffix == ".parquet" else JsonlWriter)(path, columns)


def read_rows(path: Path, columns: Mapping[str, str]) -> Iterator[list[Value]]:
    """The rows of a file, with bounded memory. `UsageError` naming the file when it holds anything else."""
    read = _read_parquet if path.suffix == ".parquet" else _read_jsonl
    try:
        yield from read(path, columns)
    except (ValueError, TypeError, KeyError, OSError) as e:
        raise UsageError(f"{path} does not hold rows of an archive: {type(e).__name__}: {e}") from e


class JsonlWriter:
    """One JSON object a line, its keys the columns."""

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        self._file = path.open("w", encoding="utf-8", newline="\n")
        self._columns = [(name, to_json(kind)) for name, kind in columns.items()]

    def write(self, row: list[Value], size: int) -> None:
        fields = {
            name: value if value is None or convert is None else convert(value)
            for (name, convert), value in zip(self._columns, row, strict=True)
        }
        self._file.write(_JSON.encode(fields) + "\n")

    def close(self) -> None:
        self._file.close()


def _read_jsonl(path: Path, columns: Mapping[str, str]) -> Iterator[list[Value]]:
    converters = [(name, from_json(kind)) for name, kind in columns.items()]
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            fields = json.loads(line)
            yield [
                fields[name] if fields[name] is None or convert is None else convert(fields[name])
                for name, convert in converters
            ]


def require_parquet() -> ModuleType:
    """pyarrow, or what to install."""
    try:
        import pyarrow.parquet
    except ImportError as e:
        raise NotReadyError(
            "Parquet files need pyarrow: pip install 'agentrl-core[parquet]'. JSON lines need nothing: --format jsonl."
        ) from e
    module: ModuleType = pyarrow
    return module


def _arrow_type(arrow: Any, kind: str) -> Any:
    if kind.endswith("[]"):
        return arrow.list_(_arrow_type(arrow, kind.removesuffix("[]")))
    return {
        "bigint": arrow.int64(),
        "double precision": arrow.float64(),
        "boolean": arrow.bool_(),
        "bytea": arrow.binary(),
        "timestamp with time zone": arrow.timestamp("us", "UTC"),
        "interval": arrow.list_(arrow.int64()),
    }.get(kind, arrow.string())


class ParquetWriter:
    """A row group for every `BATCH_ROWS` rows or `BATCH_BYTES` bytes."""

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        self._arrow: Any = require_parquet()
        self._schema = self._arrow.schema([(name, _arrow_type(self._arrow, kind)) for name, kind in columns.items()])
        self._file = self._arrow.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[list[Value]] = []
        self._bytes = 0

    def write(self, row: list[Value], size: int) -> None:
        self._rows.append(row)
        self._bytes += size
        if len(self._rows) >= BATCH_ROWS or self._bytes >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            arrays = [
                self._arrow.array(values, field.type)
                for field, values in zip(self._schema, zip(*self._rows, strict=True), strict=True)
            ]
            self._file.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
            self._rows, self._bytes = [], 0

    def close(self) -> None:
        self._flush()
        self._file.close()


def _read_parquet(path: Path, columns: Mapping[str, str]) -> Iterator[list[Value]]:
    arrow: Any = require_parquet()
    with arrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(columns)):
            lists = []
            for name, kind in columns.items():
                column = batch.column(name)
                # datetime has neither infinity nor the years that a timestamp has.
                lists.append((column.cast(arrow.int64()) if kind == "timestamp with time zone" else column).to_pylist())
            yield from map(list, zip(*lists, strict=True))
