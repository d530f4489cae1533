"""Which statements make values that may be larger than all memory, out of constants or rows: by the names of functions in their text.

The library folds constants while it plans, within no limit of time or memory, and holds the interpreter meanwhile. `replace` of `replace`
makes gigabytes of some hundred bytes. Such a statement is planned and run in a process that can be ended.
"""

from __future__ import annotations

import re

# A value of these may be longer than its parts by a factor of the length of the statement. Names are searched in the complete text: neither
# comments, quotes nor the position in the statement hide one.
_TIMES = re.compile(
    r"(?<!\w)(?:replace|regexp_replace|overlay|translate|concat|concat_ws|decode|arrow_cast|arrow_try_cast|arrays_zip|list_zip|flatten"
    r"|make_array|make_list|struct|row|named_struct|map|string_to_array|string_to_list|to_char|date_format|string_agg|array_agg"
    r"|(?:array|list)_(?:to_string|join|cat|concat|append|prepend|push_back|push_front|add|union|replace|replace_n|replace_all))"
    r"(?!\w)",
    re.IGNORECASE,
)
# A list or a structure.
_OPENED = re.compile(r"[\[{]")
_LITERAL = re.compile(r"'[^']*'")
# With these, literals cannot be identified without a parser.
_UNKNOWN = re.compile(r"--|/\*|\\'|\"|\$[^$]*\$")
# A value of these is twice as long, or a few times.
_TWICE = re.compile(r"\|\||(?<!\w)(?:encode|upper|lower|initcap)(?!\w)", re.IGNORECASE)
# Bits of length that a statement without its own process may add to a value.
_BITS_TIMES, _BITS_MOST = 12, 13
# With more bytes than this, one of the first group makes too much.
_LONG = 2048


def may_grow(sql: str) -> bool:
    """Whether its values may have more than some 10 MiB while it is planned."""
    # Regular expressions also contain brackets.
    opened = _OPENED.findall(sql if _UNKNOWN.search(sql) else _LITERAL.sub("", sql))
    times, twice = len(_TIMES.findall(sql)) + len(opened), len(_TWICE.findall(sql))
    return times * _BITS_TIMES + twice > _BITS_MOST or (times > 0 and len(sql) > _LONG)
