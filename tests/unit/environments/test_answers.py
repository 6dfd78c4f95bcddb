"""Reading and comparing short answers."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

from environments.answers import final_answer, number, same_number, same_text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so it is \\boxed{42}.", "42"),
        ("\\boxed{1} no, \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{open", "\\boxed{open"),
        ("Working...\nAnswer: Porto", "Porto"),
        ("The answer is 7.", "7"),
        ("Natalia sold 72 clips.\n#### 72", "72"),
        ("first\n\n **12** \n", "12"),
        ("", ""),
    ],
)
def test_final_answer__is_found(text: str, answer: str) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-0.50", Fraction(-1, 2)),
        ("1,250", 1250),
        ("$3", 3),
        ("3/4", Fraction(3, 4)),
        ("3/-4", Fraction(-3, 4)),
        ("1e3", 1000),
        ("12%", Fraction(12, 100)),
        ("\N{MINUS SIGN}5", -5),
        (".5", Fraction(1, 2)),
        ("1,2", None),
        ("1/0", None),
        ("", None),
        ("seven", None),
        ("1 2", None),
        ("1e9999", None),
        ("9" * 5000, None),
        ("nan", None),
        ("inf", None),
        ("__import__('os')", None),
    ],
)
def test_number__is_exact_or_none(text: str, value: Fraction | int | None) -> None:
    assert number(text) == value


def test_same_number__knows_tolerance_and_what_is_no_number() -> None:
    assert same_number("0.333", "1/3") is False
    assert same_number("0.33333", "1/3", tolerance=1e-4) is True
    assert same_number("1000", "1,000") is True
    assert same_number("x", "3") is False
    assert same_number("3", "x") is None


def test_same_text__ignores_case_punctuation_and_articles() -> None:
    assert same_text("The  Rhine!", "rhine")
    assert same_text("Ada Stone", "Bo", "ada stone")
    assert not same_text("Ada Stone and Bo", "Ada Stone", "Bo")
    assert not same_text("", "")
    assert not same_text("!!", "??")


def test_long_hostile_texts__are_read_in_no_time() -> None:
    began = time.process_time()
    for text in ("\\boxed{" * 20_000, "{" * 100_000, "answer: " * 20_000, "1" * 100_000, "a " * 100_000, "1," * 50_000):
        final_answer(text)
        number(text)
        same_text(text, "a")
    assert time.process_time() - began < 60
