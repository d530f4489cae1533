"""The settings of this backend, by their entry point of the group `monarch.settings`."""

from __future__ import annotations

from monarch.extension import Setting

SETTINGS = (
    Setting(
        "skypilot_python",
        "str",
        "",
        "The interpreter that SkyPilot is installed for; empty: this one, else that of the command `sky`.",
    ),
)
