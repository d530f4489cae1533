"""The main screen: header, tree, details. Three loops ask: for the job, for the node that is selected, and for nodes in view."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, ClassVar, cast

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen

from monarch.telemetry._http.http_client import HttpError
from monarch.telemetry._http.models import NodePayload
from monarch.telemetry._tui.action_page import ActionPage
from monarch.telemetry._tui.config_page import ConfigPage
from monarch.telemetry._tui.details import KEY_CELLS, details
from monarch.telemetry._tui.diagnostics_page import CausesPage, DiagnosticsPage
from monarch.telemetry._tui.header import Contact, header
from monarch.telemetry._tui.help_page import HelpPage
from monarch.telemetry._tui.line_view import LineView
from monarch.telemetry._tui.lines import Role, Span, line, span
from monarch.telemetry._tui.logs_page import LogsPage, Scope
from monarch.telemetry._tui.metrics_page import MetricsPage
from monarch.telemetry._tui.page import FAILURES, Context, Page
from monarch.telemetry._tui.requests import Beat
from monarch.telemetry._tui.search_page import SearchPage
from monarch.telemetry._tui.sql_page import History, SqlPage
from monarch.telemetry._tui.stacks_page import StacksPage
from monarch.telemetry._tui.topology import Topology
from monarch.telemetry._tui.tree_view import TreeView

# Concurrent requests for nodes, and the part of an interval that they may take: a server has other clients.
_AT_A_TIME = 4
_SHARE = 0.5


class MainScreen(Screen[None]):
    """The job as a tree, and what is known of the node that is selected."""

    DEFAULT_CSS = """
    MainScreen { layout: vertical; background: $background; }
    MainScreen > #header { height: 2; background: $panel; }
    MainScreen > #note { height: 1; background: $panel; }
    MainScreen > Horizontal { height: 1fr; }
    MainScreen #tree { width: 45%; }
    MainScreen #details { width: 1fr; border-left: solid $panel; padding: 0 0 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "collapse_all", show=False),
        Binding("s", "system", show=False),
        Binding("h", "stopped", show=False),
        Binding("space", "details(1)", show=False),
        Binding("b", "details(-1)", show=False),
        Binding("d", "diagnostics", show=False),
        Binding("D", "causes", show=False),
        Binding("p", "stacks", show=False),
        Binding("C", "configuration", show=False),
        Binding("l", "logs", show=False),
        Binding("m", "metrics", show=False),
        Binding("slash", "search", show=False),
        Binding("colon", "sql", show=False),
        Binding("K", "act", show=False),
        Binding("question_mark", "help", show=False),
        Binding("ctrl+l", "again", show=False),
        Binding("escape", "clear", show=False),
        Binding("q", "app.quit", show=False),
        Binding("ctrl+c", "app.quit", show=False, priority=True),
    ]

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self.texts = context.texts
        self.topology = Topology()
        self._contact = Contact()
        self._history = History()
        self._job, self._selected, self._in_view = Beat(context.seconds), Beat(context.seconds), Beat(context.seconds)
        # Stored, not found by query: an answer may arrive while the screen is being removed.
        self._header, self._note_bar = LineView(id="header"), LineView(id="note")
        self.nodes_view = TreeView(self.topology, self.texts, id="tree")
        self.details = LineView(id="details", wrap=True, indent=KEY_CELLS)
        self._note: tuple[str, Role] = ("", "")
        self._shown: str | None = None

    def compose(self) -> ComposeResult:
        yield self._header
        with Horizontal():
            yield self.nodes_view
            yield self.details
        yield self._note_bar

    def on_mount(self) -> None:
        for view in (self._header, self._note_bar, self.details):
            view.can_focus = False
        self.nodes_view.focus()
        self._draw()
        self.set_interval(1.0, self._draw_header)
        for loop in (self._job_loop, self._selected_loop, self._view_loop):
            self.run_worker(loop(), group=loop.__name__)

    # Drawing

    def _draw(self) -> None:
        self._draw_header()
        self._draw_details()
        text, role = self._note
        shown = [Span(" "), span(text.split("\n", 1)[0], role)] if text else [Span(" " + self.texts("keys"), "dim")]
        self._note_bar.show([tuple(shown)])

    def _draw_header(self) -> None:
        root = None if self.topology.root is None else self.topology.node(self.topology.root)
        now = self.context.clock()
        self._header.show(header(self.context, self.topology, self._contact, root, now))

    def _draw_details(self) -> None:
        reference = self.nodes_view.selected
        node = None if reference is None else self.topology.node(reference)
        if node is None:
            text = "connecting" if reference is None else "loading"
            self.details.show([line(self.texts(text), "dim")])
        else:
            self.details.show(details(node, self.topology.names, self.texts, self.context.clock()))
        if reference != self._shown:
            self._shown = reference
            self.details.action_first()

    def note(self, text: str, role: Role = "") -> None:
        """The text in the last line, until the next one or Escape."""
        self._note = (text, role)
        self._draw()

    def _changed(self) -> None:
        """The topology has changed."""
        self.nodes_view.changed()
        self._draw_details()

    # Requests

    async def _job_loop(self) -> None:
        """The root, the failures, and who answers."""
        contact = self._contact
        while True:
            contact.asks(self.context.clock())
            try:
                root = await self.context.requests.run(self.context.api.root)
                self.topology.put_root(root, self.context.clock())
                was_lost = contact.error is not None or contact.last is None
                contact.answers(self.context.clock())
                self._changed()
                if was_lost:
                    self._selected.wake()
                    self._in_view.wake()
                contact.failures, contact.coverage = await self.context.requests.run(self.context.api.failures)
            except FAILURES as error:
                contact.fails(error, self.context.clock())
            contact.asked = None
            self._draw()
            await self._job.next()

    async def _selected_loop(self) -> None:
        while True:
            reference = self.nodes_view.selected
            if reference is not None and reference != self.topology.root:
                await self._load(reference)
                await self._load_names([reference])
                self._changed()
            await self._selected.next()

    async def _view_loop(self) -> None:
        """Nodes in view: those that are not known at once, the others at each interval, the oldest first, as far as time allows."""
        is_due = False
        while True:
            await self._load_view(is_due)
            is_due = await self._in_view.next()

    async def _load_view(self, is_due: bool) -> None:
        known = self.topology.node
        wanted = [one for one in dict.fromkeys([*self.nodes_view.in_view, *self.topology.hidden_failures()]) if one != self.topology.root]
        waiting = deque(one for one in wanted if known(one) is None)
        new = {*waiting}
        if is_due:
            old = ((known(one), one) for one in wanted if one not in new)
            waiting += [one for _, one in sorted((node.at, one) for node, one in old if node is not None)]
        until = asyncio.get_running_loop().time() + self.context.seconds * _SHARE

        async def work() -> None:
            while waiting and self._contact.error is None:
                reference = waiting.popleft()
                if reference in new or asyncio.get_running_loop().time() < until:
                    await self._load(reference)

        loaded = len(waiting)
        await asyncio.gather(*(work() for _ in range(_AT_A_TIME)))
        await self._load_names(wanted)
        if loaded:
            self._changed()

    async def _load(self, reference: str) -> None:
        try:
            node = await self.context.requests.run(self.context.api.node, reference)
        except FAILURES as error:
            if isinstance(error, HttpError) and error.status == 404:
                self.topology.drop(reference)
            else:
                self.topology.fail(reference, str(error).split("\n", 1)[0], self.context.clock())
        else:
            self.topology.put(reference, node, self.context.clock())
        self._changed()

    async def _load_names(self, references: list[str]) -> None:
        """Loads the names of actors."""
        unnamed = self.topology.unnamed(references)
        if not unnamed or self._contact.error is not None:
            return
        try:
            self.topology.names.update(await self.context.requests.run(self.context.api.names, unnamed))
        except FAILURES as error:
            self.note(str(error), "warn")

    def on_line_view_moved(self, event: LineView.Moved) -> None:
        if event.view is not self.nodes_view:
            return
        self._in_view.wake()
        if self.nodes_view.selected != self._shown:
            self._draw_details()
            self._selected.wake()

    def on_tree_view_toggled(self) -> None:
        self._draw_details()
        self._in_view.wake()

    # Keys

    def action_collapse_all(self) -> None:
        self.topology.collapse_all()
        self._reshown()

    def action_system(self) -> None:
        self.topology.set_shown(system=not self.topology.show_system)
        self._reshown()

    def action_stopped(self) -> None:
        self.topology.set_shown(stopped=not self.topology.show_stopped)
        self._reshown()

    def _reshown(self) -> None:
        self._changed()
        self._draw()
        self._in_view.wake()

    def action_details(self, pages: int) -> None:
        self.details.action_page(pages)

    def action_again(self) -> None:
        for beat in (self._job, self._selected):
            beat.wake()
        self.run_worker(self._load_view(True), group="again", exclusive=True)
        self.refresh(layout=True)

    def action_clear(self) -> None:
        self.note("")

    def _open(self, page: Page) -> None:
        cast("App[None]", self.app).push_screen(page)  # pyright: ignore[reportUnknownMemberType] `app` leaves its parameter open

    def action_help(self) -> None:
        self._open(HelpPage(self.context))

    def action_causes(self) -> None:
        self._open(CausesPage(self.context))

    def action_diagnostics(self) -> None:
        self._open(DiagnosticsPage(self.context))

    def action_metrics(self) -> None:
        self._open(MetricsPage(self.context))

    def action_sql(self) -> None:
        self._open(SqlPage(self.context, self._history))

    def action_search(self) -> None:
        self._open(SearchPage(self.context, self.go))

    def action_logs(self) -> None:
        self._open(LogsPage(self.context, self._scope()))

    def _scope(self) -> Scope:
        """Whose lines are those of the node that is selected."""
        reference = self.nodes_view.selected
        node = None if reference is None else self.topology.node(reference)
        if reference is not None and node is not None:
            name, facts = self.topology.title(reference), node.facts
            conditions: dict[str, dict[str, Any]] = {
                "Host": {"host": facts.get("name")},
                "Proc": {"proc": facts.get("proc_name")},
                "Actor": {"actor_id": facts.get("instance_id")},
            }
            if node.kind in conditions:
                return Scope(name, conditions[node.kind])
        return Scope(self.texts("all"), {})

    def _proc(self) -> str | None:
        """The proc that is selected, or that of the actor that is."""
        reference = self.nodes_view.selected
        node = None if reference is None else self.topology.node(reference)
        if reference is None or node is None:
            return None
        if node.kind == "Proc":
            return reference
        return self.topology.parent(reference) if node.kind == "Actor" else None

    def action_stacks(self) -> None:
        proc = self._proc()
        if proc is None and self.nodes_view.selected != self.topology.root:
            self.note(self.texts("need_proc"), "warn")
        else:
            self._open(StacksPage(self.context, proc, "" if proc is None else self.topology.title(proc)))

    def action_configuration(self) -> None:
        proc = self._proc()
        if proc is None:
            self.note(self.texts("need_proc"), "warn")
        else:
            self._open(ConfigPage(self.context, proc, self.topology.title(proc)))

    def action_act(self) -> None:
        reference = self.nodes_view.selected
        node = None if reference is None else self.topology.node(reference)
        if reference is None or node is None:
            self.note(self.texts("no_selection"), "warn")
        else:
            self._open(ActionPage(self.context, node, self.topology.title(reference)))

    def go(self, path: list[NodePayload]) -> None:
        """Selects the last node of a path, and expands those above it."""
        now = self.context.clock()
        for node in path:
            self.topology.put(node["identity"], node, now)
        for node in path[:-1]:
            self.topology.expand(node["identity"])
        last = path[-1]["identity"]
        if self.topology.place(last) is None:
            # It belongs to the runtime, or has stopped.
            self.topology.set_shown(system=True, stopped=True)
        self.nodes_view.select(last)
        self._reshown()
        self._selected.wake()
