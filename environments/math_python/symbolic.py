r"""Whether two mathematical expressions are equal: a program that reads both as JSON on standard input and prints a word.

Run by `checking` as a process of its own, with limits on time and memory, because equality is undecidable and an expression of
ten characters can ask for more memory than there is. No text is ever evaluated as code: sympy's own parser would do that.

LaTeX is read in the form that answers have: \frac, \sqrt, \cdot, \pi, powers, functions.
"""

from __future__ import annotations

import ast
import json
import re
import resource
import sys
from typing import Any

MAX_POWER = 1000
MEMORY_BYTES = 1 << 30

EQUAL, DIFFERENT, UNREADABLE, UNDECIDED = "equal", "different", "unreadable", "undecided"

_MACROS = (
    (re.compile(r"\\(?:left|right|displaystyle|,|;|!|quad|limits)(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:text|mathrm|mbox)\{[^{}]*\}"), ""),
    (re.compile(r"\\(?:cdot|times)(?![a-zA-Z])"), "*"),
    (re.compile(r"\\div(?![a-zA-Z])"), "/"),
    (re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)"), r"((\1)/(\2))"),
    (re.compile(r"\\sqrt\s*(\d)"), r"sqrt(\1)"),
)
_INNERMOST = (
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"((\1)/(\2))"),
    (re.compile(r"\\sqrt\s*\[([^\[\]{}]*)\]\s*\{([^{}]*)\}"), r"((\2)**(1/(\1)))"),
    (re.compile(r"\\sqrt\s*\{([^{}]*)\}"), r"sqrt(\1)"),
    (re.compile(r"(\^|_)\{([^{}]*)\}"), r"\1(\2)"),
)
_FUNCTIONS = ("sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln")
_PRODUCT = re.compile(r"(?<=[\d)])\s*(?=[A-Za-z(])")


def readable(text: str) -> str:
    """The expression in Python's notation."""
    for pattern, replacement in _MACROS:
        text = pattern.sub(replacement, text)
    before = ""
    while before != text:
        before = text
        for pattern, replacement in _INNERMOST:
            text = pattern.sub(replacement, text)
    text = re.sub(r"\\([a-zA-Z]+)", r" \1 ", text).replace("^", "**").replace("\N{MINUS SIGN}", "-")
    text = re.sub(r"\b(" + "|".join(_FUNCTIONS) + r")\s+\(", r"\1(", text)
    return _PRODUCT.sub("*", " ".join(text.replace("$", "").split()))


def expression(text: str) -> Any:
    """A sympy expression, or a tuple of them; ValueError for anything but numbers, names, arithmetic and known functions."""
    tree = ast.parse(readable(text).strip(), mode="eval").body
    if isinstance(tree, ast.Tuple):
        return tuple(_built(item) for item in tree.elts)
    return _built(tree)


def _built(node: ast.expr) -> Any:
    import sympy

    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return sympy.Integer(node.value) if type(node.value) is int else sympy.Rational(repr(node.value))
    if isinstance(node, ast.Name):
        return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}.get(node.id) or sympy.Symbol(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _built(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_built(node.left), _built(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords and len(node.args) == 1:
        if node.func.id in _FUNCTIONS:
            return getattr(sympy, node.func.id)(_built(node.args[0]))
        if node.func.id == "abs":
            return sympy.Abs(_built(node.args[0]))
        if len(node.func.id) == 1:  # x(x+1) is a product
            return sympy.Symbol(node.func.id) * _built(node.args[0])
    raise ValueError(f"{type(node).__name__} is no part of an expression")


def _power(base: Any, exponent: Any) -> Any:
    # Sympy works powers of numbers out at once, and a tower of them has more digits than there is memory.
    if exponent.is_number and not abs(exponent) <= MAX_POWER:
        raise ValueError("the power is too large")
    return base**exponent


_ARITHMETIC: dict[type, Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: _power,
}


def judge(answer: str, right: Any) -> str:
    """`EQUAL`, `DIFFERENT`, `UNREADABLE` or `UNDECIDED`, for an answer against an expression that was read before."""
    try:
        return _compare(answer, right)
    except Exception:  # parser and sympy raise what they like for odd expressions, and none of it is an error of ours
        return UNDECIDED


def _compare(answer: str, right: Any) -> str:
    try:
        given = expression(answer)
    except (ValueError, SyntaxError):
        return UNREADABLE
    if isinstance(given, tuple) != isinstance(right, tuple) or (isinstance(right, tuple) and len(given) != len(right)):
        return DIFFERENT
    pairs = zip(given, right, strict=True) if isinstance(right, tuple) else [(given, right)]
    verdicts = [(a - b).equals(0) for a, b in pairs]
    if all(verdict is True for verdict in verdicts):
        return EQUAL
    return DIFFERENT if False in verdicts else UNDECIDED


def main() -> None:
    """Set the limits (the first argument: CPU seconds), read what is expected, then judge the answer."""
    seconds = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = json.load(sys.stdin)
    print(judge(asked["answer"], expression(asked["expected"])))


if __name__ == "__main__":
    main()
