"""The recorded sessions of a scripted agent in docs/diagnose-agent.md, run again: real programs, a real client of `monarch mcp`."""

from __future__ import annotations

import pytest

from tools import agent_session

# Two programs with telemetry and a client of `monarch mcp` start, and a lock has to be kept for five seconds.
pytestmark = pytest.mark.timeout(240)
pytest.importorskip("mcp")


@pytest.mark.parametrize("scene", agent_session.SCENES, ids=lambda scene: scene.name)
def test_recorded_session_is_current(scene: agent_session.Scene) -> None:
    recorded = list(agent_session.structure(agent_session.PAGE.read_text()))
    found = list(agent_session.structure(agent_session.session(scene)))
    assert found[-1] == "nothing is wrong"
    start = recorded.index(found[0])
    assert recorded[start : start + len(found)] == found, "run `python -m tools.agent_session --write`"
