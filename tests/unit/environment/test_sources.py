"""Task data: what is read as rows, what is refused with file and line, and how one file becomes two splits."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from agentrl.environment.sources import is_heldout, read_rows, rows_of_split, splits
from agentrl.errors import UsageError

ROWS = [{"id": "a", "n": 1, "tests": ["x", "y"]}, {"id": "b", "n": 2, "tests": []}, {"id": "ü", "n": 3, "tests": ["z"]}]


def as_lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / name
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(as_lines(rows)))
    else:
        path.write_bytes(as_lines(rows))
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.parquet"])
def test_file_of_each_format__same_rows_in_order(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name, ROWS)
    assert list(read_rows(path)) == list(read_rows(str(path))) == ROWS


def test_blank_lines_and_byte_order_mark__skipped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + as_lines(ROWS[:1]) + b"\n  \r\n" + as_lines(ROWS[1:]))
    assert list(read_rows(path)) == ROWS


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"id": "c"', "is not JSON"),
        (b"[1, 2]", "is not a JSON object but list"),
        (b'{"n": NaN}', "NaN is no JSON value"),
        (b'{"id": "\xff"}', "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
    ],
)
def test_line_that_is_no_row__file_and_line(tmp_path: Path, line: bytes, why: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(as_lines(ROWS[:2]) + line + b"\n" + as_lines(ROWS[2:]))
    rows = read_rows(path)
    assert [next(rows), next(rows)] == ROWS[:2]
    with pytest.raises(UsageError, match="line 3") as refused:
        next(rows)
    assert why in str(refused.value)
    assert str(path) in str(refused.value)
    assert refused.value.exit_code == 2


def test_compressed_file_that_was_cut__refused(tmp_path: Path) -> None:
    path = write(tmp_path, "rows.jsonl.gz", [{"id": str(number)} for number in range(2000)])
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UsageError, match=r"rows.jsonl.gz can't be read after line \d+"):
        list(read_rows(path))


def test_parquet_file_with_other_bytes__refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 but not really")
    with pytest.raises(UsageError, match=r"rows.parquet can't be read after row 0"):
        list(read_rows(path))


def test_source_that_can_not_be_opened__refused_before_the_first_row(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n")
    (tmp_path / "empty").mkdir()
    for source, why in (
        (tmp_path / "rows.csv", "is none of .jsonl"),
        (tmp_path / "absent.jsonl", "does not exist"),
        (tmp_path / "empty", "has no file that ends with"),
        (7, "int is no source of rows"),
    ):
        with pytest.raises(UsageError, match=why):
            read_rows(source)  # type: ignore[arg-type]


def test_large_file__read_as_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(as_lines(ROWS) + b"broken")
    assert next(read_rows(path)) == ROWS[0]


class Rows:
    """Has what this module uses of the classes of `datasets`: iteration over dicts, and ``split``."""

    def __init__(self, rows: list[dict[str, Any]], split: str | None = None) -> None:
        self.rows = rows
        self.split = split

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


def test_dataset_object__rows_of_the_chosen_split() -> None:
    assert list(read_rows(Rows(ROWS))) == list(read_rows(ROWS)) == ROWS
    assert list(read_rows(Rows(ROWS, "test"), "test")) == ROWS
    assert list(read_rows({"train": Rows(ROWS), "test": Rows(ROWS[:1])}, "test")) == ROWS[:1]


def test_dataset_object_without_the_split__names_what_there_is() -> None:
    both = {"train": Rows(ROWS), "test": Rows(ROWS)}
    for source, split, why in (
        (both, "dev", "splits train, test; 'dev' was asked for"),
        (both, None, "splits train, test; none was chosen"),
        (Rows(ROWS, "train"), "test", "is the split train; 'test' was asked for"),
        (Rows(ROWS), "test", "has no splits"),
    ):
        with pytest.raises(UsageError, match=why):
            read_rows(source, split)
    with pytest.raises(UsageError, match="Row 1 of the data is not a dict of columns but str"):
        list(read_rows([ROWS[0], "b"]))  # type: ignore[list-item]


def test_folder__a_file_or_shards_a_split(tmp_path: Path) -> None:
    write(tmp_path, "train-00000-of-00002.parquet", ROWS[:2])
    write(tmp_path, "train-00001-of-00002.parquet", ROWS[2:])
    write(tmp_path, "test.jsonl", ROWS[1:])
    assert splits(tmp_path) == ("test", "train")
    assert list(read_rows(tmp_path, "train")) == ROWS
    assert list(rows_of_split(tmp_path, "heldout", lambda row: row["id"])) == ROWS[1:]
    with pytest.raises(UsageError, match="splits test, train; 'dev' was asked for"):
        read_rows(tmp_path, "dev")
    (tmp_path / "test.jsonl").unlink()
    with pytest.raises(UsageError, match="for 'heldout' it needs heldout or test or validation"):
        rows_of_split(tmp_path, "heldout", lambda row: row["id"])


def test_file_without_splits__divided_by_key_for_good(tmp_path: Path) -> None:
    rows = [{"id": f"task-{number}"} for number in range(500)]
    path = write(tmp_path, "rows.jsonl", rows)
    train, heldout = (list(rows_of_split(path, split, lambda row: row["id"])) for split in ("train", "heldout"))
    assert sorted([*train, *heldout], key=rows.index) == rows
    assert 60 < len(heldout) < 140
    more = write(tmp_path, "more.jsonl", [{"id": "new"}, *rows])
    assert [row for row in rows_of_split(more, "heldout", lambda row: row["id"]) if row["id"] != "new"] == heldout
    assert not is_heldout("any", 0.0)
    assert is_heldout("any", 1.0)
    with pytest.raises(UsageError, match="no split 'dev'"):
        rows_of_split(path, "dev", lambda row: row["id"])
