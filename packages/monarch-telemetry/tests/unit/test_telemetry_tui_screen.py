"""The terminal UI by its keys, over the application in this process: what is on the screen after each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.http_parts import TOKENS, RecordedActions
from support.made_up_job import PROCS, TRAINER
from support.tui_parts import AsgiClient, made, running, screen, shows, strips
from textual.pilot import Pilot

from monarch.telemetry import TelemetryError
from monarch.telemetry._http.references import Reference
from monarch.telemetry._tui import diagnose
from monarch.telemetry._tui.main_screen import MainScreen
from monarch.telemetry._tui.tui import Tui

READY = ("host0  ready", "host1  ready", "1/1 hosts answer")
Steps = Callable[[Pilot[None]], Awaitable[None]]


def drive(steps: Steps, client: Any = None, *, size: tuple[int, int] = (80, 24), **more: Any) -> None:
    """Runs the steps on a screen of its own."""

    async def whole() -> None:
        async with running(made(client, **more), size) as pilot:
            await steps(pilot)

    asyncio.run(whole())


def selected(tui: Any) -> str:
    """The row of the cursor."""
    return next(row for row in screen(tui) if row.startswith(">"))


async def press(pilot: Pilot[None], *keys: str) -> None:
    await pilot.press(*keys)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_tree_header_and_details(size: tuple[int, int]) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        found = await shows(pilot, *READY, "up 1m00s", "ada", "2 failures", "http://127.0.0.1:1729", "Job  job", "q quit")
        assert found.count("\n") == size[1] - 1
        await press(pilot, "j", "tab")
        await shows(pilot, "workers[0]  2 actors", "Host  host0", "tcp://10.0.0.0:26600", "1.0 GiB")
        await press(pilot, "j", "enter")
        await shows(pilot, "trainer[0]  Processing", "Process id        1000")
        await press(pilot, "j")
        await shows(pilot, "Actor  trainer[0]", "Type              Trainer", "1.1 ms each", "Last handler      step", "1 x step")

    drive(steps, size=size)


def test_toggles_of_system_and_stopped_nodes() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        # Loader 0 has stopped, loader 1 and trainer 3 have failed; an actor of the runtime is in the first proc.
        await press(pilot, "j", "tab", "j")
        await shows(pilot, "workers[1]")
        await press(pilot, "tab", "j", "j")
        await shows(pilot, "trainer[0]  Processing", never="Agent 99")
        await press(pilot, "s")
        await shows(pilot, "[s]ystem shown", "Agent 99  Idle")
        await press(pilot, "s", "tab")
        await shows(pilot, "trainer[1]  Idle", never="Agent 99")
        assert "loader[0]" not in "\n".join(screen(pilot.app))
        await press(pilot, "h")
        await shows(pilot, "[h] stopped shown", "loader[0]  Stopped")

    drive(steps)


def test_failed_actors_are_always_shown() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        await press(pilot, "G", "tab")
        await shows(pilot, "! workers[3]  2 failed")
        await press(pilot, "G", "tab")
        await shows(pilot, "! loader[1]  Failed", "! trainer[3]  Failed")

    drive(steps)


def test_movement_keys_and_collapse_all() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        tui = pilot.app
        await shows(pilot, *READY)
        await press(pilot, "down")
        assert "host0" in selected(tui)
        await press(pilot, "k")
        assert "job" in selected(tui)
        for down, up in (("G", "g"), ("end", "home"), ("pagedown", "pageup"), ("ctrl+v", "alt+v"), ("ctrl+d", "ctrl+u")):
            await press(pilot, down)
            assert "host1" in selected(tui), down
            await press(pilot, up)
            assert "job" in selected(tui), up
        await press(pilot, "j", "right")
        await shows(pilot, "workers[1]")
        await press(pilot, "right", "j")
        assert "workers[1]" in selected(tui)
        await press(pilot, "left")
        assert "host0" in selected(tui)
        await press(pilot, "left")
        await shows(pilot, "+ host0", never="workers[1]")
        await press(pilot, "right", "j", "c")
        await shows(pilot, "+ host0", never="workers[0]  ")
        assert "host0" in selected(tui)

    drive(steps)


def test_help_has_all_keys() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        await press(pilot, "question_mark")
        await shows(pilot, "Ctrl-D Ctrl-U", "kill or stop, after a confirmation", "quit; on a page, back")
        await press(pilot, "escape")
        await shows(pilot, *READY, never="Ctrl-D Ctrl-U")

    drive(steps)


def test_logs_of_a_node_by_level_and_text() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        await press(pilot, "l")
        await shows(pilot, "Logs: all processes", "trainer[3] info it's line 39", "following  40 lines")
        await press(pilot, "e")
        await shows(pilot, "10 lines", "warnings and errors only", "WARNING it's line 38", never="line 39")
        await press(pilot, "e", "g")
        await shows(pilot, "paused", "it's line 0")
        await press(pilot, "f")
        await shows(pilot, "following", "line 39")
        await press(pilot, "slash", *"line 11", "enter")
        await shows(pilot, "text: line 11", "1 lines", never="line 39")
        await press(pilot, "q", "j", "l")
        await shows(pilot, "Logs: host0", "20 lines", "trainer[1] stderr it's line 37", never="trainer[3]")

    drive(steps)


def test_metrics_of_the_last_minutes() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        await press(pilot, "m")
        await shows(pilot, "Resources", "host1   52.0  1.0 GiB", "loss", "steps", "latency", "2.5")

    drive(steps)


def test_sql_shows_rows_errors_and_history() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        await press(pilot, "colon", *"SELECT name FROM hosts ORDER BY name", "enter")
        await shows(pilot, "name\nhost0\nhost1", "2 rows in")
        await press(pilot, *" LIMIT 0 x", "enter")
        await shows(pilot, "line 1, column 46", never="host1\n")
        await press(pilot, "up", "up")
        await shows(pilot, "SELECT name FROM hosts ORDER BY name\n")
        await press(pilot, "escape", "colon", "up", "up", "enter")
        await shows(pilot, "host0\nhost1")
        await press(pilot, "end", *"; DROP TABLE hosts", "enter")
        await shows(pilot, "read-only")

    drive(steps)


def test_search_selects_in_the_tree() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        await press(pilot, "slash", *"er[3]", "enter")
        await shows(pilot, "Actor   trainer[3]", "1 found")
        await press(pilot, "enter")
        await shows(pilot, "Actor  trainer[3]", "ValueError: bad batch", "this actor")
        assert "! trainer[3]  Failed" in selected(pilot.app)
        await press(pilot, "slash", *"loader[0]", "enter")
        await shows(pilot, "1 found")
        await press(pilot, "enter")
        # It has stopped: the filter that hides it is disabled.
        await shows(pilot, "Actor  loader[0]", "[h] stopped shown")
        await press(pilot, "slash", *"no such name", "enter")
        await shows(pilot, "nothing", "0 found")

    drive(steps)


def test_stacks_and_configuration_need_a_proc() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        await press(pilot, "j", "p")
        await shows(pilot, "select a proc or an actor")
        await press(pilot, "escape", "C")
        await shows(pilot, "select a proc or an actor")
        await press(pilot, "tab", "j")
        await shows(pilot, "Proc  workers[0]")
        await press(pilot, "p")
        await shows(pilot, "Stacks: workers[0]", "main  running, holds the GIL", "step  train.py:10")
        await press(pilot, "escape", "C")
        await shows(pilot, "Configuration: workers[0]", "queue_limit", "*  hub_token", never="hunter2")

    drive(steps)


def test_stacks_of_an_actor_are_its_procs() -> None:
    client = AsgiClient()

    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        await press(pilot, "slash", *"trainer[2]", "enter")
        await shows(pilot, "1 found")
        await press(pilot, "enter")
        await shows(pilot, "Actor  trainer[2]")
        await press(pilot, "p")
        await shows(pilot, "Stacks: workers[2]", "train.py:10")

    drive(steps, client)
    assert f"/v1/pyspy/{Reference('proc', PROCS[2])}" in client.paths


def test_diagnostics_have_times_roles_and_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine answers are slow.
    monkeypatch.setattr(diagnose, "_SLOW_MS", float("inf"))

    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        await press(pilot, "d")
        found = await shows(pilot, "Admin infrastructure", "Mesh", "(the token is accepted)", "14 ok, 0 warnings, 0 failed")
        assert found.count(" ms ") >= 14

    drive(steps, size=(120, 40))


def test_causes_are_asked_for_by_a_key() -> None:
    client = AsgiClient()

    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        assert "/v1/diagnose" not in client.paths
        await press(pilot, "D")
        await shows(pilot, "What is wrong with the job", "nothing is wrong", "healthy: 1 of 1 procs")

    drive(steps, client)
    assert client.paths.count("/v1/diagnose") == 1


def test_action_is_done_only_after_y() -> None:
    actions = RecordedActions()

    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        await press(pilot, "slash", *"workers[1]", "enter")
        await shows(pilot, "1 found")
        await press(pilot, "enter")
        await shows(pilot, "Proc  workers[1]")
        for key in ("n", "escape", "j", "enter", "q", "Y"):
            await press(pilot, "K")
            await shows(pilot, "Actions on workers[1]", "SIGTERM")
            await press(pilot, "G", "enter")
            await shows(pilot, "workers[1]: kill the process (SIGKILL)?")
            await press(pilot, key)
            await shows(pilot, "nothing was done", never="SIGKILL)?")
            await press(pilot, "escape")
            await shows(pilot, "Proc  workers[1]", never="Actions on")
        assert actions.calls == []
        await press(pilot, "K")
        await shows(pilot, "SIGTERM")
        await press(pilot, "G", "enter")
        await shows(pilot, "SIGKILL)?")
        await press(pilot, "y")
        await shows(pilot, "done: kill_proc")

    drive(steps, AsgiClient(actions=actions))
    assert actions.calls == [("kill_proc", (PROCS[1],), {})]


def test_mesh_of_an_actor_is_stopped() -> None:
    actions = RecordedActions()

    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        await press(pilot, "slash", *"trainer[0]", "enter")
        await shows(pilot, "1 found")
        await press(pilot, "enter")
        await shows(pilot, "Actor  trainer[0]")
        await press(pilot, "K")
        await shows(pilot, "stop the mesh <root>.<trainer>")
        await press(pilot, "enter")
        await shows(pilot, "<root>.<trainer>?")
        await press(pilot, "y")
        await shows(pilot, "done: stop_mesh")

    drive(steps, AsgiClient(actions=actions))
    assert actions.calls == [("stop_mesh", ("<root>.<trainer>",), {"reason": None})]


def test_action_without_the_scope_is_refused() -> None:
    actions = RecordedActions()

    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        await press(pilot, "K")
        await shows(pilot, "end the job")
        await press(pilot, "G", "enter")
        await shows(pilot, "end the job with all its processes?")
        await press(pilot, "y")
        await shows(pilot, "NOT DONE", "403", "hint: telemetry.json")

    drive(steps, AsgiClient(token=TOKENS.read, actions=actions))
    assert actions.calls == []


def test_server_without_an_answer_blocks_no_key() -> None:
    held, answering = threading.Event(), threading.Event()
    answering.set()

    def before(path: str) -> None:
        if not answering.is_set():
            held.set()
            answering.wait(30)

    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        answering.clear()
        await press(pilot, "j", "ctrl+l")
        await asyncio.to_thread(held.wait, 20)
        await press(pilot, "question_mark")
        await shows(pilot, "Ctrl-D Ctrl-U")
        await press(pilot, "escape", "G")
        assert "host1" in selected(pilot.app)
        await press(pilot, "l")
        await shows(pilot, "Logs", "loading")
        await press(pilot, "escape", "g")
        assert "job" in selected(pilot.app)
        answering.set()

    drive(steps, AsgiClient(before=before))


def test_slow_server_is_stated() -> None:
    held, answering = threading.Event(), threading.Event()
    now = [1_000.0]

    def before(path: str) -> None:
        held.set()
        answering.wait(30)

    async def steps(pilot: Pilot[None]) -> None:
        await asyncio.to_thread(held.wait, 20)
        now[0] += 7
        await shows(pilot, "waiting for an answer for 7.0 s")
        answering.set()
        await shows(pilot, *READY, never="waiting for an answer")

    drive(steps, AsgiClient(before=before), clock=lambda: now[0])


def test_dead_server_is_stated_and_comes_back() -> None:
    dead = threading.Event()
    now = [1_700_000_060.0]

    def before(path: str) -> None:
        if dead.is_set():
            raise TelemetryError("http://127.0.0.1:1729 cannot be reached: [Errno 111] Connection refused")

    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        dead.set()
        now[0] += 12
        await press(pilot, "ctrl+l")
        # The last state remains on the screen, with its age.
        await shows(pilot, "NO ANSWER for 12 s", "cannot be reached", "host1  ready")
        await press(pilot, "m")
        await shows(pilot, "Connection refused")
        dead.clear()
        await press(pilot, "escape", "ctrl+l")
        await shows(pilot, *READY, never="NO ANSWER")

    drive(steps, AsgiClient(before=before), clock=lambda: now[0], size=(120, 40))


def test_screen_refreshes_repeatedly() -> None:
    roots = threading.Semaphore(0)

    def before(path: str) -> None:
        if path == "/v1/root":
            roots.release()

    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY, "every 10 ms")
        for _ in range(5):
            assert await asyncio.to_thread(roots.acquire, timeout=20)

    drive(steps, AsgiClient(before=before), seconds=0.01)


def test_escape_codes_in_names_are_shown_as_text() -> None:
    class Evil(AsgiClient):
        def get(self, path: str, seconds: float) -> bytes:
            return super().get(path, seconds).replace(b"host0", b"\\u001b[2J[red]x[/]\\u202e")

    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, "\\x1b[2J[red]x[/]\\u202e  ready", "host1  ready")
        await press(pilot, "j")
        await shows(pilot, "Host  \\x1b[2J[red]x[/]\\u202e")
        await press(pilot, "l")
        await shows(pilot, "Logs: \\x1b[2J[red]x[/]\\u202e")
        text = "".join(part.text for strip in strips(pilot.app) for part in strip)
        assert not any(character in text for character in "\x1b\u202e")

    drive(steps, Evil())


def test_chinese_and_the_light_theme() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, "2 台主机", "已运行 1m00s", "? 帮助", "[h]已停止 隐藏")
        assert str(pilot.app.current_theme.name) == "doom-nord-light"
        await press(pilot, "question_mark")
        await shows(pilot, "全部折叠")

    drive(steps, language="zh", theme="doom-nord-light")


def test_states_are_read_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        await press(pilot, "G", "tab")
        await shows(pilot, "! workers[3]  2 failed")
        assert selected(pilot.app).startswith(">  - host1  ready")

    drive(steps)


def test_large_trees_load_only_what_is_in_view() -> None:
    """A host with 3,000 procs: nodes are asked for as they come into view."""
    client = Wide(3_000)

    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, "host0")
        await press(pilot, "j", "tab")
        await shows(pilot, "w[0]  1 actor", "w[15]  1 actor", never="…")
        assert len(client.asked) < 60
        await press(pilot, "G")
        await shows(pilot, "w[2999]  1 actor", never="…")
        assert len(client.asked) < 120

    drive(steps, client)


class Wide:
    """A server whose only host has many procs."""

    url = "http://wide"

    def __init__(self, procs: int) -> None:
        self._procs = [f"p{number}" for number in range(procs)]
        self.asked: list[str] = []

    def get(self, path: str, seconds: float) -> bytes:
        import json

        name = path.removeprefix("/v1/")
        self.asked.append(name)
        if name == "root":
            found: Any = ("root", {"Root": {"num_hosts": 1}}, ["host"], None)
        elif name == "host":
            found = ("host", {"Host": {"name": "host0", "state": "ready", "num_procs": len(self._procs)}}, self._procs, "root")
        else:
            found = (name, {"Proc": {"proc_name": f"w[{name[1:]}]", "num_actors": 1}}, [], "host")
        return json.dumps(dict(zip(("identity", "properties", "children", "parent"), found, strict=True))).encode()

    def post(self, path: str, body: dict[str, Any], seconds: float) -> bytes:
        return b'{"rows": [{"failures": 0}], "coverage": {"hosts_asked": 1, "hosts_answered": 1}}'


def test_missing_hosts_are_named() -> None:
    class Missing(Wide):
        def post(self, path: str, body: dict[str, Any], seconds: float) -> bytes:
            missing = b'[{"host": "host3", "reason": "no answer within 8 s"}]'
            return b'{"rows": [{"failures": 0}], "coverage": {"hosts_asked": 2, "hosts_answered": 1, "missing": ' + missing + b"}}"

    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, "NO ANSWER of host3")

    drive(steps, Missing(1))


def test_q_ends_the_program() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        assert isinstance(pilot.app.screen, MainScreen) and isinstance(pilot.app, Tui)
        await press(pilot, "q")
        await pilot.pause()
        assert pilot.app.return_code == 0 and not pilot.app.is_running

    drive(steps)


def test_trainer_is_a_real_number() -> None:
    """Numbers beyond 2**63 are shown whole."""

    async def steps(pilot: Pilot[None]) -> None:
        await shows(pilot, *READY)
        await press(pilot, "slash", *"trainer[1]", "enter")
        await shows(pilot, "1 found")
        await press(pilot, "enter")
        await shows(pilot, str(TRAINER[1]))

    drive(steps)
