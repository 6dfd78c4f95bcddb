"""`agentrl.view.app`: it only reads, data never acts on the browser, and a database that is down is said."""

from __future__ import annotations

import uuid

import pytest
from view_shelf import Shelf


def test_data_is_escaped(shelf: Shelf) -> None:
    for path in (f"/trajectories/{shelf.odd.trajectory}", "/runs/plain/trajectories?task=%3Cscript%3Ealert(1)%3C/script%3E"):
        html = shelf.page(path)
        assert "<script>alert" not in html
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    html = shelf.page(f"/trajectories/{shelf.odd.trajectory}")
    assert not set("\x00\x1b\u202e") & set(html)
    assert "\\x1b[31mred\\x00nul \\u202egnirts" in html


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
            assert shelf.client.request(method, path).status_code == 405
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
        ("/runs/plain/steps/x", "no page"),
    ],
)
def test_not_there__said_as_a_page_and_as_json(shelf: Shelf, path: str, said: str) -> None:
    assert said in shelf.page(path, 404)
    assert said in shelf.data(path, 404)["error"]


def test_down_is_said(shelf: Shelf) -> None:
    """Last of this file: it stops the server, and starts it again."""
    shelf.server.stop()
    try:
        html = shelf.page("/", 503)
        assert "The database does not answer" in html
        assert 'http-equiv="refresh"' in html
        assert "agentrl@" not in html or "***" in html or "password" not in html
    finally:
        shelf.server.url = shelf.server._start()
    assert "plain" in shelf.page("/")
