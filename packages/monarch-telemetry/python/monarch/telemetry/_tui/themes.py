"""The themes: `nord`, which is textual's, and a light one of the same palette."""

from __future__ import annotations

from textual.theme import Theme

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
