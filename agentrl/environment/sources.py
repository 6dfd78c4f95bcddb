"""Task data as a stream of rows: a JSON Lines or Parquet file, a folder of them, or a Hugging Face ``datasets`` object.

Rows are read one after the other and never held together, so a file may be larger than memory.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from agentrl.errors import UsageError

Row: TypeAlias = dict[str, Any]
Source: TypeAlias = str | Path | Mapping[str, Iterable[Mapping[str, Any]]] | Iterable[Mapping[str, Any]]
"""A path, the splits of a ``DatasetDict``, or rows: ``Dataset``, ``IterableDataset``, a list of dicts."""

FORMATS = (".jsonl", ".jsonl.gz", ".parquet")
HELDOUT_NAMES = ("heldout", "test", "validation")
"""What the held-out part of a data set is called, most wanted first."""
_BATCH_ROWS = 256


def read_rows(source: Source, split: str | None = None) -> Iterator[Row]:
    """The rows of a source in their order, each a dict of its columns.

    A path names a ``.jsonl``, ``.jsonl.gz`` or ``.parquet`` file, or a folder with one of these a split (``train.jsonl``, or
    in shards ``train-00000-of-00002.parquet``). ``split`` is needed where the source has several and refused where it has
    none. `UsageError` at once for a source that can't be opened, and from the iterator, with file and line or row, for content
    that is no row.
    """
    if isinstance(source, (str, Path)):
        files = _files(Path(source).expanduser(), split)
        return (row for file in files for row in _file_rows(file))
    if isinstance(source, Mapping):
        chosen = source.get(split) if split is not None else None
        if chosen is None:
            raise UsageError(f"The data has the splits {', '.join(map(str, source))}; {_asked(split)}.")
        return _object_rows(chosen)
    own = getattr(source, "split", None)
    if split is not None and str(own) != split:
        raise UsageError(f"The data {f'is the split {own}' if own else 'has no splits'}; {_asked(split)}.")
    return _object_rows(source)


def splits(source: Source) -> tuple[str, ...]:
    """Names of the splits that a source has; none for a single file or a plain sequence of rows."""
    if isinstance(source, Mapping):
        return tuple(map(str, source))
    if isinstance(source, (str, Path)) and Path(source).expanduser().is_dir():
        return tuple(sorted({_split_name(file) for file in _data_files(Path(source).expanduser())}))
    return ()


def rows_of_split(source: Source, split: str, key: Callable[[Row], str], heldout_share: float = 0.2) -> Iterator[Row]:
    """Rows for an environment's split ``train`` or ``heldout``, which share no row.

    A source with splits is taken at its word: ``train``, and for ``heldout`` the first it has of `HELDOUT_NAMES`. Any other is
    divided by a hash of ``key(row)``, the same way on every machine and however the file grows; equal keys stay together.
    """
    if split not in ("train", "heldout"):
        raise UsageError(f"There is no split {split!r}: train and heldout.")
    names = splits(source)
    if not names:
        return (row for row in read_rows(source) if is_heldout(key(row), heldout_share) == (split == "heldout"))
    wanted = HELDOUT_NAMES if split == "heldout" else ("train",)
    found = next((name for name in wanted if name in names), None)
    if found is None:
        raise UsageError(f"The data has the splits {', '.join(names)}; for {split!r} it needs {' or '.join(wanted)}.")
    return read_rows(source, found)


def is_heldout(key: str, share: float) -> bool:
    """Whether a key belongs to the held-out ``share`` (0 to 1) of all keys: a function of the key alone."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


def _asked(split: str | None) -> str:
    return "none was chosen" if split is None else f"{split!r} was asked for"


def _files(path: Path, split: str | None) -> list[Path]:
    if path.is_dir():
        files = _data_files(path)
        names = sorted({_split_name(file) for file in files})
        if not names:
            raise UsageError(f"The data folder {path} has no file that ends with {', '.join(FORMATS)}.")
        found = [file for file in files if _split_name(file) == split]
        if not found:
            raise UsageError(f"The data folder {path} has the splits {', '.join(names)}; {_asked(split)}.")
        return found
    if not path.exists():
        raise UsageError(f"The data file {path} does not exist.")
    if not path.name.endswith(FORMATS):
        raise UsageError(f"The data file {path} is none of {', '.join(FORMATS)}.")
    if split is not None:
        raise UsageError(f"The data file {path} has no splits; {_asked(split)}.")
    return [path]


def _data_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.name.endswith(FORMATS))


def _split_name(file: Path) -> str:
    stem = file.name.split(".", 1)[0]
    head, separator, tail = stem.partition("-")
    return head if separator and tail[:5].isdigit() else stem


def _file_rows(file: Path) -> Iterator[Row]:
    return _parquet_rows(file) if file.suffix == ".parquet" else _json_rows(file)


def _json_rows(file: Path) -> Iterator[Row]:
    number = 0
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _json_row(file, number, line)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"The data file {file} can't be read after line {number}: {error}.") from error


def _json_row(file: Path, number: int, line: bytes) -> Row:
    try:
        row = json.loads(line.removeprefix(b"\xef\xbb\xbf"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The data file {file}, line {number}, is not JSON: {error}.") from error
    if not isinstance(row, dict):
        raise UsageError(f"The data file {file}, line {number}, is not a JSON object but {type(row).__name__}.")
    return row


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


def _parquet_rows(file: Path) -> Iterator[Row]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise UsageError(f"Reading {file} needs pyarrow: pip install 'agentrl-core[parquet]'.") from None
    done = 0
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=_BATCH_ROWS):
                for row in batch.to_pylist():
                    yield row
                    done += 1
    except (OSError, pyarrow.ArrowException) as error:
        raise UsageError(f"The data file {file} can't be read after row {done}: {error}.") from error


def _object_rows(rows: Any) -> Iterator[Row]:
    if not isinstance(rows, Iterable) or isinstance(rows, (str, bytes)):
        raise UsageError(f"{type(rows).__name__} is no source of rows: give a path or rows as dicts.")
    return _checked(rows)


def _checked(rows: Iterable[Any]) -> Iterator[Row]:
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise UsageError(f"Row {index} of the data is not a dict of columns but {type(row).__name__}.")
        yield dict(row)
