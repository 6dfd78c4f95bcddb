from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from failing_servers import Case

from tests.sglang_server import contract_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return contract_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def case(tmp_path: Path, model_dir: Path) -> AsyncIterator[Case]:
    made = Case(tmp_path, model_dir)
    yield made
    for engine in made.engines:
        await engine.close()
