from __future__ import annotations

import pytest
from fake_mlflow import FakeMlflow

from tepo_lab.track import mirror


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    server = FakeMlflow()
    monkeypatch.setattr(mirror, "open_client", lambda home, uri: server)
    return server
