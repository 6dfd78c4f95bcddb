"""Values as a page shows them: nothing acts on the browser, nothing is shown as another value."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

import jinja2
import pytest
from markupsafe import Markup

from agentrl.view.shown import LONGEST, cell, shown


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (None, ""), (True, "yes"), (False, "no"), (0, 0), (0.0, "0"), (1e-9, "1e-09"), (math.nan, "nan"), (-math.inf, "-inf"),
        (86_400.0, "86400"), (12_345.6, "12346"), (9999.4, "9999"), (-2e12, "-2e+12"), (10**17, 10**17), (10**300, "1e+300"),
        (10**400, "more than 1e308"),
        ("a\n\tb", "a\n\tb"), ("\r\x07\x00", "\\r\\x07\\x00"), ("\u202egnp", "\\u202egnp"), ("\udcff", "\\udcff"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2))), "2026-01-02 01:04:05"),
    ],
)  # fmt: skip
def test_cell(value: object, printed: object) -> None:
    assert cell(value) == printed


def test_cell__in_a_template_is_escaped_after_it_is_made_visible() -> None:
    template = jinja2.Environment(autoescape=True, finalize=cell).from_string("{{ x }}|{{ y }}")
    assert template.render(x="<b>\x1b", y=Markup("<i>")) == "&lt;b&gt;\\x1b|<i>"


def test_shown__counts_what_it_leaves_out() -> None:
    assert [shown(text).lines for text in ("", "a", "a\nb", "\n" * (LONGEST + 5))] == [0, 1, 2, LONGEST + 6]
    assert shown("a" * LONGEST).more == 0
    long = shown("a" * (LONGEST + 3))
    assert (len(long.text), long.more) == (LONGEST, 3)
