"""Stacks: of a proc by py-spy, or the merged ones of all procs."""

from __future__ import annotations

from typing import cast

from monarch.telemetry._stacks.merged import StackReport
from monarch.telemetry._tui.api import Row
from monarch.telemetry._tui.lines import EMPTY, Line, Role, Span, line, lines, span
from monarch.telemetry._tui.page import Context, Page
from monarch.telemetry._tui.texts import Texts


def pyspy_lines(answer: Row, texts: Texts) -> list[Line]:
    """A `PyspyAnswer`: threads with their calls, the innermost first; or why there are none."""
    if "BinaryNotFound" in answer:
        searched = answer["BinaryNotFound"].get("searched") or ()
        return [line(texts("not_found"), "bad"), *(line(f"  {path}") for path in searched)]
    if "Failed" in answer:
        failed = answer["Failed"]
        code = failed.get("exit_code")
        head = f"{texts('pyspy_failed')}: {failed.get('binary')} {'' if code is None else code}".rstrip()
        return [line(head, "bad"), *lines(str(failed.get("stderr") or ""))]
    found = cast("Row", answer.get("Ok") or {})
    shown: list[Line] = [line(f"pid {found.get('pid')}, {found.get('binary')}", "dim")]
    shown += [line(text, "warn") for text in found.get("warnings") or ()]
    for thread in found.get("stack_traces") or ():
        name = thread.get("thread_name") or f"{thread.get('thread_id')}"
        state: tuple[str, Role] = (texts("running"), "busy") if thread.get("active") else (texts("idle"), "dim")
        gil = (Span(f", {texts('holds_gil')}", "warn"),) if thread.get("owns_gil") else ()
        shown += [EMPTY, (span(name, "title"), Span("  "), Span(*state), *gil)]
        for frame in thread.get("frames") or ():
            place = frame.get("short_filename") or frame.get("filename")
            shown.append((Span("  "), span(frame.get("name")), span(f"  {place}:{frame.get('line')}", "dim")))
            for local in frame.get("locals") or ():
                shown.append(line(f"      {local.get('name')} = {local.get('repr')}", "dim"))
    return shown


def report_lines(report: StackReport) -> list[Line]:
    """The merged stacks; the head of each entry is a title."""
    return [line(text, "" if text.startswith(" ") else "title") for text in str(report).split("\n")]


class StacksPage(Page):
    """The stacks of a proc by its reference; of all procs without one."""

    def __init__(self, context: Context, proc: str | None, name: str) -> None:
        title = context.texts("stacks_of_all") if proc is None else f"{context.texts('stacks')}: {name}"
        super().__init__(context, title)
        self._proc = proc

    async def load(self) -> None:
        api = self.context.api
        if self._proc is None:
            found = report_lines(await self.ask(api.stacks))
        else:
            found = pyspy_lines(await self.ask(api.stacks_of, self._proc), self.texts)
        self.view.show(found or [line(self.texts("none"), "dim")])
        self.state("")
