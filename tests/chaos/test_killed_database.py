"""The private database is killed under a run's launcher."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agentrl.errors import UnknownOutcome
from agentrl.launch import run as launch
from agentrl.store.connect import URL_VARIABLE, open_store
from agentrl.store.embedded import stop_embedded
from agentrl.store.patience import outlasting


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="agentrl-home-", dir="/tmp"))
    directory.chmod(0o755)  # the server's own user must be able to enter
    monkeypatch.setenv("AGENTRL_HOME", str(directory))
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    yield directory
    stop_embedded(directory)
    shutil.rmtree(directory)


def kill(home: Path) -> None:
    (pid_file,) = home.glob("pg*/postmaster.pid")
    server = psutil.Process(int(pid_file.read_text().splitlines()[0]))
    backends = server.children()
    server.kill()
    _, alive = psutil.wait_procs(backends, timeout=30)  # until they notice, they go on answering
    assert alive == []


def test_database_comes_back(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    store, _ = open_store()
    try:
        patient = outlasting(store, 30.0, lambda: False, launch._bear_outage)
        kill(home)
        assert patient.find_run("none") is None
        assert capsys.readouterr().out.count("waiting for the database") == 1
        kill(home)
        monkeypatch.setenv(URL_VARIABLE, "postgresql://elsewhere/agentrl")
        launch._bear_outage("as if the server elsewhere did not answer")
        with pytest.raises(UnknownOutcome):
            store.find_run("none")
    finally:
        store.close()
