import json
import pathlib
import sys

EXPECTED = """\
db 2024-03-01T11:59:58 INFO recovered
web 2024-03-01T12:00:00 INFO listening
api 2024-03-01T12:00:01 INFO started
api 2024-03-01T12:00:07 ERROR request 17 failed
db 2024-03-01T12:00:07 WARN slow query
web 2024-03-01T12:00:07 WARN retry
api 2024-03-01T12:00:09 INFO request 18 served
db 2024-03-01T12:00:30 INFO ERROR is only a word here
web 2024-03-01T12:00:45 ERROR upstream gone
api 2024-03-01T12:01:00 ERROR request 40 failed
"""

try:
    merged = pathlib.Path("/app/merged.log").read_text()
    errors = json.loads(pathlib.Path("/app/errors.json").read_text())
except (OSError, ValueError):
    sys.exit(1)
sys.exit(not (merged == EXPECTED and errors == {"api": 2, "db": 0, "web": 1}))
