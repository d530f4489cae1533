"""The lints of STYLE.md that no other tool has.

`problem` is a finding; `tree`, `python`, `rust` and `references` find them; `prose` is the text of a page.
"""
