from __future__ import annotations

from collections.abc import Iterator

import pytest
from view_shelf import Shelf, filled_shelf


@pytest.fixture(scope="session")
def shelf() -> Iterator[Shelf]:
    with filled_shelf() as filled:
        yield filled
