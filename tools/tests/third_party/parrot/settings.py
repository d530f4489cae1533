"""Settings of this package, and invalid ones."""

from __future__ import annotations

from monarch.extension import Setting

SETTINGS = (
    Setting("parrot_words", "int", 3, "Words that it knows.", unit="words", variable=("PARROT_WORDS",)),
    Setting("parrot_pause", "duration", "1s", "Time between two words."),
)

# Core has this key.
TAKEN = (Setting("exit_grace", "duration", "1s", "Time to say good-bye."),)
