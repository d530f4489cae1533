"""The lints of STYLE.md that no other tool has: `problem` (what is found), `tree`, `python`, `rust` (who finds it)."""
