"""Export and import: a run goes to files and comes back as it was, or not at all."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_bench import FAILED, LINEAGE, Bench, PostgresWorld, Server, graded, no_grace, segment
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.errors import NotReadyError, UsageError
from agentrl.store import archive_files, archive_import
from agentrl.store.archive_export import export_run
from agentrl.store.archive_files import open_writer, read_rows
from agentrl.store.archive_import import import_archive
from agentrl.store.archive_tables import ARCHIVE_TABLES, MANIFEST, checksum, read_manifest, table_columns
from agentrl.store.archive_values import from_wire, to_wire
from agentrl.store.contract import ImportFilter, Trained
from agentrl.store.postgres import PostgresStore
from agentrl.store.retention import retain
from agentrl.types import ToolCall, ToolResult

TYPES = {
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double precision": st.floats(allow_nan=True),
    "boolean": st.booleans(),
    "text": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    "uuid": st.uuids().map(str),
    "bytea": st.binary(max_size=20),
    "json": st.sampled_from(['{"a": 1}', "[1e16,  0.10]", '"\u2028"', "null"]),
    "jsonb": st.sampled_from(['{"a": 1}', "[1.00]", '"ä"']),
    "timestamp with time zone": st.integers(-(2**62), 2**62) | st.sampled_from([2**63 - 1, -(2**63)]),
    "interval": st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 3).map(list),
    "bigint[]": st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=4),
    "uuid[]": st.lists(st.uuids().map(str), max_size=4),
    "bytea[]": st.lists(st.none() | st.binary(max_size=9), max_size=4),
    "text[]": st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), max_size=4),
}
ROWS = st.lists(st.tuples(*(st.none() | strategy for strategy in TYPES.values())).map(list), max_size=6)


def same(a: Any, b: Any) -> bool:
    """Equal, NaN and the sign of zero included."""
    return repr(a) == repr(b)


@given(st.data())
def test_wire__round_trips(data: st.DataObject) -> None:
    for kind, strategy in TYPES.items():
        value = data.draw(strategy)
        assert same(from_wire(kind)(to_wire(kind)(value)), value)


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_files__round_trip(file_format: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("files") / f"table.{file_format}"
    columns = {kind: kind for kind in TYPES}

    @settings(deadline=None)
    @given(ROWS)
    def check(rows: list[list[Any]]) -> None:
        writer = open_writer(path, columns)
        for row in rows:
            writer.write(row, 100)
        writer.close()
        assert same(list(read_rows(path, columns)), rows)

    check()


def test_wire__is_what_the_server_reads_and_writes(postgres: PostgresWorld) -> None:
    values = {
        "bigint": (-(2**63), "(-9223372036854775808)::bigint"),
        "double precision": (0.1 + 0.2, "0.1::float8 + 0.2"),
        "timestamp with time zone": (1_700_000_000_123_456, "to_timestamp(1700000000) + interval '123456 us'"),
        "interval": ([14, -3, 5_000_001], "interval '14 months -3 days 5.000001 s'"),
        "jsonb": ('{"a": [1.00, "ä"]}', '\'{"a":[1.00,"ä"]}\'::jsonb'),
        "json": ('{"a":  1e16}', "'{\"a\":  1e16}'::json"),
        "bytea[]": ([b"\0\xff", None, b""], "array['\\x00ff', null, '']::bytea[]"),
        "uuid[]": ([], "'{}'::uuid[]"),
        "text[]": (["live", "ä,b"], "array['live', 'ä,b']"),
        "boolean": (False, "false"),
    }
    with postgres.store.transaction() as connection:
        for kind, (value, expression) in values.items():
            with connection.cursor() as cursor, cursor.copy(f"copy (select {expression}) to stdout (format binary)") as copy:
                copy.set_types(["bytea"])
                ((raw,),) = list(copy.rows())
            assert same(from_wire(kind)(raw), value), kind
            assert bytes(raw) == to_wire(kind)(value), kind


def test_every_column__has_a_type_that_an_archive_can_hold(postgres: PostgresWorld) -> None:
    with postgres.store.transaction() as connection:
        for table in ARCHIVE_TABLES:
            assert set(table_columns(connection, table.name).values()) <= set(TYPES), table.name


@pytest.fixture(scope="module")
def elsewhere(embedded_server: Server) -> Iterator[Callable[[], PostgresStore]]:
    """Stores in empty databases of their own."""
    stores = []

    def make() -> PostgresStore:
        stores.append(PostgresStore(embedded_server.database(), pool_size=2))
        no_grace(stores[-1])
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def eventful_run(postgres: PostgresWorld) -> Bench:
    """Groups, a retry, an evaluation, an abandoned branch, a removed bucket, raw bytes, long outputs; at rest at its end."""
    bench = postgres.bench(lag_bound=1, group_size=2, batch_min=2, batch_max=2, max_attempts=3)
    bench.train(2)
    while bench.version < 64:
        bench.publish()
    drained(bench)
    bench.checkpoint()
    evaluation = postgres.store.request_evaluation(bench.run, version=bench.version, step=2, split="heldout", n=2)
    opened = postgres.store.open_evaluation_episodes(evaluation.id, worker="w", request=uuid.uuid4(), n=2, lineage=LINEAGE)
    for episode in opened.episodes:
        postgres.store.write_segment(episode, segment(0, bench.version))
        postgres.store.complete(episode, graded(1, 0.1))
    postgres.store.pending_evaluation(bench.run)
    retain(postgres.store, bench.run, 1)
    first, *others = bench.open(2)
    postgres.store.complete(first, FAILED)
    for episode in (*others, *bench.open(1)):
        strange(bench, episode)
    claim = bench.claim()

    def full(n: int, value: float) -> np.ndarray:
        return np.full(n, value, np.float32)

    used = [
        Trained(t.id, full(n, -0.5), None, full(n, 1e-45), full(n, 0.1), full(1, -0.25))
        for item in claim.items
        for t in item.trajectories
        for n in [sum(s.n_act for s in t.segments)]
    ]
    bench.commit(claim.items, trained=used)
    bench.publish()
    postgres.store.release_trainer(bench.run, bench.fence)
    bench.start(postgres.store.checkpoints(bench.run)[0].id, owner="second")
    drained(bench)
    bench.checkpoint()
    postgres.store.release_trainer(bench.run, bench.fence)
    postgres.store.set_run_status(bench.run, "finished")
    return bench


def drained(bench: Bench) -> None:
    """Finish and train whatever is open."""
    while True:
        for row in bench.store.rows("select trajectory, fence from agentrl.live where run = %s", (bench.run,)):
            raise AssertionError(row)
        claim = bench.claim(1)
        if not claim.items:
            break
        bench.commit(claim.items)
        bench.publish()


def strange(bench: Bench, episode: Any) -> None:
    """What no text column can hold, and a lot of it."""
    bench.store.write_segment(
        episode,
        segment(
            0,
            bench.version,
            action_text="a\x00b\ud800c",
            action_raw=b"a\x00b\xff",
            tool_calls=(ToolCall("bash", {"command": "cat \x00"}),),
            tool_results=(ToolResult("bash", "x" * 5_000_000, raw=b"\x00\xfe" * 2_500_000), ToolResult("bash", "\udfff")),
            loss_mask=np.uint8([1, 0, 1]),
            unit_starts=np.uint8([0, 0, 1]),
            reward=0.1,
        ),
    )
    bench.store.write_segment(episode, segment(1, bench.version))
    bench.store.complete(episode, graded(2, 0.1 + 0.2))


def rows_of(folder: Path, changes: bool = True) -> dict[str, list[dict[str, Any]]]:
    """All rows of an archive; numbers that an import changes become their rank, as the documentation says."""
    manifest = read_manifest(folder)
    rows = {
        table.name: [
            dict(zip(columns, row, strict=True))
            for columns in [manifest.tables[table.name].columns]
            for row in read_rows(folder / manifest.tables[table.name].file, columns)
        ]
        for table in ARCHIVE_TABLES
    }
    ranks = {t.name: {row["id"]: i for i, row in enumerate(rows[t.name])} for t in ARCHIVE_TABLES if t.numbered}
    for table in ARCHIVE_TABLES:
        for row in rows[table.name]:
            if table.numbered:
                row["id"] = ranks[table.name][row["id"]]
            for column, to in table.references.items():
                row[column] = ranks[to].get(row[column])
            row.pop("run", None)
    for row in rows["run"]:
        row.pop("name")
    return rows


@pytest.mark.parametrize(("first", "second"), [("jsonl", "parquet"), ("parquet", "jsonl")])
def test_round_trip__gives_equal_files(
    postgres: PostgresWorld, elsewhere: Callable[[], PostgresStore], tmp_path: Path, first: str, second: str
) -> None:
    bench = eventful_run(postgres)
    conservation = postgres.store.conservation(bench.run)
    exported = export_run(postgres.store, bench.run, tmp_path / "a", first)
    store = elsewhere()
    Bench(store).start()  # so that the numbers differ
    imported = import_archive(store, tmp_path / "a")
    assert (imported.name, imported.status) == (bench.spec.name, "finished")
    assert imported.trajectories == exported.trajectories == 5
    assert store.conservation(imported.id) == conservation
    assert conservation.holds
    export_run(store, imported.id, tmp_path / "b", second)
    a, b = rows_of(tmp_path / "a"), rows_of(tmp_path / "b")
    for table in ARCHIVE_TABLES:
        assert same(a[table.name], b[table.name]), table.name
    for name in ("trained", "evaluated", "retired", "checkpoint", "grp", "consumed", "dropped"):
        assert a[name], name
    assert any(row["abandoned_by"] is not None for row in a["consumed"])
    assert any(row["retried_by"] is not None for row in a["dropped"])
    some = [row["id"] for row in a["trajectory"]]
    for trajectory in some:
        before, after = postgres.store.trajectory(uuid.UUID(trajectory)), store.trajectory(uuid.UUID(trajectory))
        assert same(before, after)
    assert len(postgres.store.trajectory(uuid.UUID(some[0])).segments) > 0


def test_imported_run__goes_on_and_lends_its_trajectories(
    postgres: PostgresWorld, elsewhere: Callable[[], PostgresStore], tmp_path: Path
) -> None:
    bench = eventful_run(postgres)
    export_run(postgres.store, bench.run, tmp_path / "a")
    store = elsewhere()
    imported = import_archive(store, tmp_path / "a", "copy")
    other = Bench(store, n_tasks=0, lag_bound=None)
    other.start()
    other.publish()
    n = store.import_trajectories(other.run, imported.id, ImportFilter()).trajectories
    assert (
        n
        == postgres.store.import_trajectories(
            postgres.bench(n_tasks=0, lag_bound=None).run, bench.run, ImportFilter()
        ).trajectories
    )
    other.commit(other.claim(1, 2).items)
    other.check()
    store.set_run_status(imported.id, "running")
    bench.store, bench.run, bench.spec = store, imported.id, replace(bench.spec, name="copy")
    bench.start(store.checkpoints(imported.id)[0].id, owner="third")
    bench.train(1)
    bench.check()


def test_run_that_imported__comes_after_its_source(
    postgres: PostgresWorld, elsewhere: Callable[[], PostgresStore], tmp_path: Path
) -> None:
    source = postgres.bench(lag_bound=0)
    source.train(2)
    other = postgres.bench(n_tasks=0, lag_bound=None)
    postgres.store.import_trajectories(other.run, source.run, ImportFilter())
    other.commit(other.claim().items)
    export_run(postgres.store, source.run, tmp_path / "source")
    export_run(postgres.store, other.run, tmp_path / "other")
    store = elsewhere()
    with pytest.raises(UsageError, match="import that run first"):
        import_archive(store, tmp_path / "other")
    import_archive(store, tmp_path / "source", "renamed")
    imported = import_archive(store, tmp_path / "other")
    assert store.conservation(imported.id) == postgres.store.conservation(other.run)
    bench = Bench(store)
    bench.run, bench.spec = imported.id, other.spec
    bench.start(None)
    claim = bench.claim(1, 8)
    assert sorted(t.task_id for i in claim.items for t in i.trajectories) == ["t0", "t1", "t2", "t3"]
    bench.check()


def test_run_at_work__refused_without_snapshot(
    postgres: PostgresWorld, elsewhere: Callable[[], PostgresStore], tmp_path: Path
) -> None:
    bench = postgres.bench(lag_bound=3, group_size=2)
    a, b, c, d, *_ = bench.open(6)
    bench.finish(a)  # waits for its group
    bench.finish(c)
    bench.finish(d)
    bench.claim()
    evaluation = postgres.store.request_evaluation(bench.run, version=0, step=0, split="heldout", n=2)
    postgres.store.open_evaluation_episodes(evaluation.id, worker="w", request=uuid.uuid4(), n=1, lineage=LINEAGE)
    with pytest.raises(UsageError, match="still at work"):
        export_run(postgres.store, bench.run, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    export_run(postgres.store, bench.run, tmp_path / "a", snapshot=True)
    store = elsewhere()
    imported = import_archive(store, tmp_path / "a")
    assert imported.status == "interrupted"
    conservation = store.conservation(imported.id)
    assert conservation.holds
    assert conservation.created < postgres.store.conservation(bench.run).created
    assert store.rows("select 1 from agentrl.grp where run = %s and state = 'open'", (imported.id,)) == []
    bench.check()
    assert b.trajectory is not None


def test_import__refuses_what_is_there_already(postgres: PostgresWorld, tmp_path: Path) -> None:
    bench = postgres.bench(lag_bound=0)
    bench.train(1)
    export_run(postgres.store, bench.run, tmp_path / "a")
    with pytest.raises(UsageError, match="--name"):
        import_archive(postgres.store, tmp_path / "a")
    with pytest.raises(UsageError, match=r"holds trajectory .* already"):
        import_archive(postgres.store, tmp_path / "a", "copy")
    assert postgres.store.find_run("copy") is None


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_damage__is_named_and_changes_nothing(
    postgres: PostgresWorld, elsewhere: Callable[[], PostgresStore], tmp_path: Path, file_format: str
) -> None:
    bench = postgres.bench(lag_bound=0)
    bench.train(1)
    folder = tmp_path / "a"
    export_run(postgres.store, bench.run, folder, file_format)
    store = elsewhere()
    for name in (f"segment.{file_format}", f"run.{file_format}", MANIFEST):
        path = folder / name
        whole = path.read_bytes()
        for damaged in (whole[:-7], whole[:20] + bytes([whole[20] ^ 1]) + whole[21:], None):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            with pytest.raises(UsageError, match=path.name):
                import_archive(store, folder)
            path.write_bytes(whole)
    assert store.find_run("latest") is None
    import_archive(store, folder)


def test_rows_that_contradict_each_other__nothing_imported(
    postgres: PostgresWorld, elsewhere: Callable[[], PostgresStore], tmp_path: Path
) -> None:
    """Damage that the checksums can't know: files and manifest written anew."""
    bench = postgres.bench(lag_bound=0)
    bench.train(1)
    folder = tmp_path / "a"
    export_run(postgres.store, bench.run, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    path = folder / "consumed.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    listed = manifest["tables"]["consumed"]
    listed |= {"rows": 1, "bytes": path.stat().st_size, "sha256": checksum(path)}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    store = elsewhere()
    with pytest.raises(UsageError, match="exactly one place"):
        import_archive(store, folder)
    assert store.find_run("latest") is None
    assert store.rows("select 1 from pg_class where relname ~ '_r[0-9]+_v[0-9]+$'") == []


def test_folders__that_are_in_use_are_refused(postgres: PostgresWorld, tmp_path: Path) -> None:
    bench = postgres.bench(lag_bound=0)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match="exists already"):
        export_run(postgres.store, bench.run, tmp_path / "full")
    (tmp_path / "b.partial").mkdir()
    with pytest.raises(UsageError, match="interrupted"):
        export_run(postgres.store, bench.run, tmp_path / "b")
    with pytest.raises(UsageError, match="use jsonl or parquet"):
        export_run(postgres.store, bench.run, tmp_path / "c", "csv")
    with pytest.raises(UsageError, match="holds no archive"):
        import_archive(postgres.store, tmp_path / "full")


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_full_disk__leaves_no_folder_and_a_working_store(
    postgres: PostgresWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    bench = postgres.bench(lag_bound=0)
    bench.train(1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        for writer in (archive_files.JsonlWriter, archive_files.ParquetWriter):
            patched.setattr(writer, "write", full)
        with pytest.raises(NotReadyError, match="No space left"):
            export_run(postgres.store, bench.run, tmp_path / "a", file_format)
    assert list(tmp_path.iterdir()) == []
    export_run(postgres.store, bench.run, tmp_path / "a", file_format)
    assert (
        postgres.store.rows(
            "select 1 from pg_locks where locktype = 'advisory' and objid = %s and mode = 'ShareLock'", (bench.run,)
        )
        == []
    )


def test_without_pyarrow__says_what_to_install(
    postgres: PostgresWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(NotReadyError, match=r"pip install 'agentrl-core\[parquet\]'"):
        archive_files.require_parquet()
    with pytest.raises(NotReadyError, match="pip install"):
        export_run(postgres.store, postgres.bench().run, tmp_path / "a", "parquet")


def test_writers__go_on_during_a_long_import(
    postgres: PostgresWorld, elsewhere: Callable[[], PostgresStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new run, with partitions of its own, is made while an import is half-way."""
    bench = postgres.bench(lag_bound=0)
    bench.train(1)
    export_run(postgres.store, bench.run, tmp_path / "a")
    store = elsewhere()
    real, seen = archive_import._Import._attach_partitions, []

    def attach(self: Any) -> None:
        writer = Bench(store, lag_bound=0)
        writer.start()
        writer.publish()
        writer.train(1)
        seen.append(writer)
        real(self)

    monkeypatch.setattr(archive_import._Import, "_attach_partitions", attach)
    import_archive(store, tmp_path / "a")
    assert len(seen) == 1


def test_commands__export_and_import(
    postgres: PostgresWorld, elsewhere: Callable[[], PostgresStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = postgres.bench(lag_bound=0)
    bench.train(1)
    monkeypatch.setenv("AGENTRL_DATABASE_URL", postgres.url)
    folder = str(tmp_path / "a")
    done = CliRunner().invoke(app, ["db", "export", bench.spec.name, folder, "--format", "parquet"])
    assert done.exit_code == 0, done.output
    assert "2 trajectories, 21 files" in done.output
    store = elsewhere()
    monkeypatch.setenv("AGENTRL_DATABASE_URL", store._url.render_as_string(hide_password=False))
    done = CliRunner().invoke(app, ["db", "import", folder, "--name", "copy"])
    assert done.output == "imported run copy (interrupted): 2 trajectories\n"
