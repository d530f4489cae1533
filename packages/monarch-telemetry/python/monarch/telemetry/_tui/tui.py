"""The terminal UI as a program, with its themes: `nord`, which is textual's, and a light one of the same palette."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from textual.app import App
from textual.theme import Theme

from monarch.telemetry._tui.api import Api
from monarch.telemetry._tui.main_screen import MainScreen
from monarch.telemetry._tui.page import Context
from monarch.telemetry._tui.requests import Requests
from monarch.telemetry._tui.texts import Texts


class Tui(App[None]):
    """Shows the job of a server until it is left. `seconds` is the interval of refreshes, 0 for none but those on demand."""

    ENABLE_COMMAND_PALETTE: ClassVar[bool] = False
    TITLE = "monarch"

    def __init__(
        self, api: Api, texts: Texts, *, theme: str = "nord", seconds: float = 2.0, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__()
        self.register_theme(DOOM_NORD_LIGHT)
        self.theme = theme
        self.requests = Requests()
        self._shared = Context(api, self.requests, texts, clock, seconds)

    def get_default_screen(self) -> MainScreen:
        return MainScreen(self._shared)


NAMES = ("nord", "doom-nord-light")

# Dark enough on the light background for a contrast of 4.5:1.
DOOM_NORD_LIGHT = Theme(
    name="doom-nord-light",
    primary="#3B6EA8",
    secondary="#2A6F7E",
    accent="#842879",
    warning="#8A5A00",
    error="#99324B",
    success="#3F6428",
    foreground="#2E3440",
    background="#E5E9F0",
    surface="#D8DEE9",
    panel="#C8D0E0",
    dark=False,
    variables={"block-cursor-background": "#3B6EA8", "block-cursor-foreground": "#ECEFF4", "block-cursor-text-style": "none"},
)
