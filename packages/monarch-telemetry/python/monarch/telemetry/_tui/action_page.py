"""Actions on a node: one is chosen, confirmed with `y` and no other key, and asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from monarch.telemetry._tui.line_view import LineView
from monarch.telemetry._tui.lines import EMPTY, Line, line, span, wrapped
from monarch.telemetry._tui.page import FAILURES, Context, Page
from monarch.telemetry._tui.texts import Texts
from monarch.telemetry._tui.topology import Node


class Action(NamedTuple):
    """A route below `/v1/actions/`, and the text that names it."""

    route: str
    text: str
    target: str
    more: dict[str, Any]


class ActionPage(Page):
    """The actions on a node; `name` is that of the node."""

    keys = "act_keys"

    def __init__(self, context: Context, node: Node, name: str) -> None:
        super().__init__(context, context.texts("actions", name=name))
        self._node, self._subject = node, name
        self._actions: list[Action] = []

    def body(self) -> LineView:
        return LineView(id="body", cursor=True)

    async def load(self) -> None:
        self._actions = await self._found()
        self.view.show([line(action.text) for action in self._actions] or [line(self.texts("act_none"), "dim")])
        self.state("")

    async def _found(self) -> list[Action]:
        payload, facts, texts = self._node.payload, self._node.facts, self.texts
        if payload is None:
            return []
        target = payload["identity"]
        if self._node.kind == "Proc" and not facts.get("exit_reason"):
            return [
                Action("signal_proc", texts("act_interrupt"), target, {"signal": "SIGINT"}),
                Action("signal_proc", texts("act_terminate"), target, {"signal": "SIGTERM"}),
                Action("kill_proc", texts("act_kill_proc"), target, {}),
            ]
        if self._node.kind == "Actor":
            mesh = await self.ask(self.context.api.mesh_of, str(facts.get("instance_id")))
            return [] if mesh is None else [Action("stop_mesh", texts("act_stop_mesh", mesh=mesh), mesh, {})]
        if self._node.kind == "Root":
            return [
                Action("heal_job", texts("act_heal_job"), target, {}),
                Action("kill_job", texts("act_kill_job"), target, {}),
            ]
        return []

    def on_line_view_chosen(self, event: LineView.Chosen) -> None:
        if self.view.cursor < len(self._actions):
            self.run_worker(self._confirm(self._actions[self.view.cursor]), group="act", exclusive=True)

    async def _confirm(self, action: Action) -> None:
        if not await self.opened(Question(self.texts, action.text, self._subject)):
            self._show([])
            self.state(self.texts("cancelled"))
            return
        self.state(self.texts("acting"), "busy")
        try:
            done = await self.ask(self.context.api.act, action.route, action.target, action.more)
        except FAILURES as error:
            text, role = self.texts("not_done", detail=str(error)), "bad"
        else:
            text, role = self.texts("done" if done.done else "not_done", detail=done.detail), "good" if done.done else "bad"
        # The complete text is among the lines: it may be long.
        cells = self.view.size.width - 2
        self._show([EMPTY, *(piece for one in text.split("\n") for piece in wrapped(line(one, role), cells))])
        self.state(text, role)

    def _show(self, more: list[Line]) -> None:
        self.view.show([*(line(action.text) for action in self._actions), *more])


class Question(ModalScreen[bool]):
    """Asks whether `what` is done to `name`."""

    DEFAULT_CSS = """
    Question { align: center middle; background: $background 60%; }
    Question > LineView { width: 90%; max-width: 76; height: 8; border: heavy $warning; padding: 0 1; }
    """

    def __init__(self, texts: Texts, what: str, name: str) -> None:
        super().__init__()
        self._texts, self._what, self._subject = texts, what, name

    def compose(self) -> ComposeResult:
        yield LineView(id="question", wrap=True)

    def on_mount(self) -> None:
        view = self.query_one("#question", LineView)
        view.can_focus = False
        question = self._texts("confirm", what=self._what, name=self._subject)
        view.show([(span(question, "warn"),), EMPTY, (span(self._texts("confirm_keys")),)])

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self.dismiss(event.key == "y")
