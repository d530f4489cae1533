"""The lints of STYLE.md that no other tool has.

`problem` is a finding; `tree`, `python`, `rust`, `words`, `titles` and `references` find them; `prose` is the text that `words` reads.
"""
