import pathlib
import sys

EXPECTED = ["10 the", "7 dog", "6 a", "5 bone", "3 and"]

try:
    lines = pathlib.Path("/app/top.txt").read_text().splitlines()
except (OSError, ValueError):
    sys.exit(1)
sys.exit(lines != EXPECTED)
