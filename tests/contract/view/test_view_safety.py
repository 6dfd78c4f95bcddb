"""`agentrl.view.app`: it only reads, data never acts on the browser, and a database that is down is said."""

from __future__ import annotations

import html
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import httpx2
import psycopg
import pytest
from view_shelf import Shelf


def test_data_is_escaped(shelf: Shelf) -> None:
    for path in (f"/trajectories/{shelf.odd.trajectory}", "/runs/plain/trajectories?task=%3Cscript%3Ealert(1)%3C/script%3E"):
        shown = shelf.page(path)
        assert "<script>alert" not in shown
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    shown = shelf.page(f"/trajectories/{shelf.odd.trajectory}")
    assert not set("\x00\x1b\u202e") & set(shown)
    assert "\\x1b[31mred\\x00nul \\u202egnirts" in shown


def test_content_policy__no_script_but_its_own_file(shelf: Shelf) -> None:
    answer = shelf.client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.text.count("<script") == 1
    assert 'style="' not in answer.text
    for file in ("view.js", "style.css"):
        assert shelf.client.get(f"/static/{file}").status_code == 200


def test_only_reads(shelf: Shelf) -> None:
    for path in ("/", "/runs/plain", f"/trajectories/{shelf.odd.trajectory}"):
        for method in ("POST", "PUT", "DELETE"):
            answer = shelf.client.request(method, path)
            assert answer.status_code == 405
            assert "only read" in answer.text
    shelf.data("/runs/plain/trajectories?task=%27%3B%20drop%20table%20agentrl.live%3B%20--")
    assert shelf.data("/runs/plain")["conservation"]["holds"]


def test_other_names_for_this_machine__get_nothing(shelf: Shelf) -> None:
    assert shelf.client.get("/", headers={"Host": "attacker.example"}).status_code == 400


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/runs/nowhere", "no run named"),
        ("/runs/nowhere/trajectories", "no run named"),
        ("/runs/%00", "no run named"),
        ("/groups/" + str(uuid.UUID(int=5)), "no group"),
        ("/trajectories/" + str(uuid.UUID(int=5)), "no trajectory"),
        ("/trajectories/x", "not a trajectory id"),
        ("/nowhere", "no page"),
    ],
)
def test_not_there__said_as_a_page_and_as_json(shelf: Shelf, path: str, said: str) -> None:
    assert said in shelf.page(path, 404)
    assert said in shelf.data(path, 404)["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/runs/plain/trajectories?task=%00", "/runs/plain/trajectories?said=a%00b", "/groups/%00", "/groups/x",
        f"/runs/plain/steps/{'9' * 5000}", f"/runs/plain/steps/{'9' * 16}", "/runs/plain/steps/x",
        "/runs/plain/trajectories?place=none", "/runs/plain/trajectories?step=99999999999999999999",
        "/queries/runs?run=%00", f"/trajectories/{uuid.UUID(int=5)}/tokens?from=%D9%A1",
    ],
)  # fmt: skip
def test_wrong_address__one_paragraph_and_no_traceback(shelf: Shelf, path: str) -> None:
    assert len(shelf.data(path, 400)["error"]) < 400


@pytest.mark.parametrize("written", ["%0aID", "ID%0d%0aX-Own:%201", "urn:uuid:ID", "%7BID%7D"])
def test_odd_spellings_of_an_id__reach_no_header(shelf: Shelf, written: str) -> None:
    identity = written.replace("ID", str(shelf.odd.trajectory))
    answer = shelf.client.get(f"/trajectories/{identity}/segments/0/action")
    assert answer.status_code in (200, 404)
    assert "x-own" not in answer.headers
    if answer.status_code == 200:
        assert answer.headers["content-disposition"] == f'attachment; filename="{shelf.odd.trajectory}-0-action.bin"'


def test_sql__shown_is_the_sql_that_ran_whatever_is_in_it(shelf: Shelf) -> None:
    for text in ("‮x", "a\u200db", "a\tb", "it's \\ a", "\x1b[0m", "<b>"):
        page = shelf.page(f"/runs/plain/trajectories?task={quote(text)}")
        statements = [html.unescape(s) for s in re.findall(r"<pre>(.*?)</pre>", page.split('class="sql"')[1], re.S)]
        (listed,) = [s for s in statements if "order by trajectory desc\nlimit 50" in s]
        literal = re.search(r"lower\(( ?E?'.*')\)\) > 0", listed, re.S)
        assert literal is not None
        assert shelf.reader.ask(f"select {literal[1]}").result.rows == [(text,)]
        field = html.unescape(page.split('name="task" value="')[1].split('" size')[0])
        assert field == text, "the form asks for the same again"


def test_stop__ends_what_runs(shelf: Shelf) -> None:
    environment = {**os.environ, "AGENTRL_DATABASE_URL": shelf.server.url}
    command = [sys.executable, "-m", "agentrl.cli.main", "view", "--port", "0"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    address = re.findall(r"http://[\d.:]+", process.stdout.readline())[0]
    with shelf.store.transaction() as connection, ThreadPoolExecutor(1) as pool:
        connection.execute("lock table agentrl.step in access exclusive mode")
        waits = pool.submit(httpx2.get, f"{address}/runs/plain", timeout=60)
        blocked = "select count(*) from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
        with psycopg.connect(shelf.server.url, autocommit=True) as other:
            while other.execute(blocked, (connection.info.backend_pid,)).fetchone() == (0,):
                time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[0]
        assert waits.result().status_code == 400
    assert (process.returncode, rest) == (0, "")


def test_down_is_said(shelf: Shelf) -> None:
    """Last of this file: it stops the server, and starts it again."""
    shelf.server.stop()
    try:
        shown = shelf.page("/", 503)
        assert "The database does not answer" in shown
        assert 'http-equiv="refresh"' in shown
        assert "The database does not answer" in shelf.page("/runs/plain", 503)
    finally:
        shelf.server.url = shelf.server._start()
    assert "plain" in shelf.page("/")
