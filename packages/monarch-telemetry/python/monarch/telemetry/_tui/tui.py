"""The terminal UI as a program."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from textual.app import App

from monarch.telemetry._tui.api import Api
from monarch.telemetry._tui.main_screen import MainScreen
from monarch.telemetry._tui.page import Context
from monarch.telemetry._tui.requests import Requests
from monarch.telemetry._tui.texts import Texts
from monarch.telemetry._tui.themes import DOOM_NORD_LIGHT


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
