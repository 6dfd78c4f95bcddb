"""Schema files: every table, column and function carries its sentence, and functions have a version in their name."""

from __future__ import annotations

import re

from agentrl.store.schema_setup import comments, schema_files

PUBLIC_WITHOUT_VERSION = {"i4", "f4", "mask", "finite", "number", "as_number", "alerts_since"}


def test_every_object__has_a_comment() -> None:
    for name, text in schema_files().items():
        commented = {target for target, _ in comments(text)}
        for kind, created in re.findall(r"^create (?:or replace )?(table|view|sequence|function) agentrl\.(\w+)", text, re.M):
            assert f"{kind} agentrl.{created}" in commented, f"{name}: {created}"


def test_every_column__has_a_sentence() -> None:
    for text in schema_files().values():
        for table, body in re.findall(r"^create table agentrl\.(\w+) \(\n(.*?)^\)", text, re.M | re.S):
            for line in body.splitlines():
                column = re.match(
                    r'  "?(\w+)"? (?:bigint|text|uuid|json|jsonb|bytea|boolean|double|interval|timestamptz)', line
                )
                if column:
                    assert re.search(r"-- [A-Z\d].*\.$|-- (int32|float32|JSON) .*\.$", line), f"{table}.{column[1]}"


def test_functions__versioned_names() -> None:
    for text in schema_files().values():
        for function in re.findall(r"^create or replace function agentrl\.(\w+)", text, re.M):
            assert function in PUBLIC_WITHOUT_VERSION or re.search(r"_v\d+$", function), function


def test_comments__sentences_only() -> None:
    for text in schema_files().values():
        for target, sentence in comments(text):
            assert "\n" not in sentence
            assert len(sentence) < 250, target
            assert sentence.rstrip()[-1] in ".", f"{target}: {sentence}"
