"""Reads and compares short answers. Any text is safe here: nothing is evaluated, and work grows with its length alone."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

MAX_ANSWER_CHARS = 2000
"""A longer answer is no answer."""
_MAX_DIGITS = 60
_MAX_EXPONENT = 60

_BOXED = "\\boxed{"
_MARK = re.compile(r"(?:\banswer\b\W{0,4}(?:is\b)?\s*:?|####)\s*(.+)", re.IGNORECASE)
_NUMBER = re.compile(r"([+-]?)(\d[\d,]*(?:\.\d*)?|\.\d+)(?:[eE]([+-]?\d{1,4}))?(?:\s*/\s*([+-]?)(\d+(?:\.\d+)?))?(%?)")
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?")
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def final_answer(text: str) -> str:
    r"""The answer in a text: the last ``\boxed{...}``, else what follows the last "answer:" or "####", else the last line."""
    start = text.rfind(_BOXED)
    if start >= 0:
        inside = _until_brace(text[start + len(_BOXED) :])
        if inside is not None:
            return inside.strip()
    marked = _MARK.findall(text[-MAX_ANSWER_CHARS:])
    if marked:
        return str(marked[-1]).strip().rstrip(".").strip(" *$")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].strip(" *$") if lines else ""


def number(text: str) -> Fraction | None:
    """Exact value of an integer, decimal, fraction or percentage (``1,250``, ``-0.5``, ``3/4``, ``1e3``, ``12%``), or None."""
    text = text.strip().strip("$").replace("\N{MINUS SIGN}", "-").strip()
    found = _NUMBER.fullmatch(text) if len(text) <= MAX_ANSWER_CHARS else None
    if found is None:
        return None
    sign, digits, exponent, lower_sign, lower, percent = found.groups()
    if "," in digits and not _GROUPED.fullmatch(digits):
        return None
    if len(digits) > _MAX_DIGITS or len(lower or "") > _MAX_DIGITS or abs(int(exponent or 0)) > _MAX_EXPONENT:
        return None
    value = Fraction(digits.replace(",", "").rstrip(".")) * Fraction(10) ** int(exponent or 0)
    if lower is not None:
        if not Fraction(lower):
            return None
        value /= Fraction(lower) * (-1 if lower_sign == "-" else 1)
    value = value / 100 if percent else value
    return -value if sign == "-" else value


def same_number(answer: str, expected: str, tolerance: float = 0.0) -> bool | None:
    """Whether two numbers are equal within ``tolerance`` relative to the expected one; None when ``expected`` is no number."""
    right = number(expected)
    if right is None:
        return None
    given = number(answer)
    return given is not None and abs(given - right) <= Fraction(tolerance) * abs(right)


def plain(text: str) -> str:
    """Lower case, compatibility forms folded, without punctuation, articles and runs of spaces."""
    folded = unicodedata.normalize("NFKC", text[:MAX_ANSWER_CHARS]).casefold()
    letters = "".join(char if char.isalnum() else " " for char in folded)
    return " ".join(_ARTICLE.sub(" ", letters).split())


def same_text(answer: str, *accepted: str) -> bool:
    """Whether the answer reads like one of the accepted ones (see `plain`)."""
    given = plain(answer)
    return len(answer) <= MAX_ANSWER_CHARS and bool(given) and any(given == plain(right) for right in accepted)


def _until_brace(text: str) -> str | None:
    depth = 1
    for index, char in enumerate(text[:MAX_ANSWER_CHARS]):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[:index]
    return None
