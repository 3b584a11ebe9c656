from tests.unit.execute.running.stub_trial import stub  # noqa: F401
