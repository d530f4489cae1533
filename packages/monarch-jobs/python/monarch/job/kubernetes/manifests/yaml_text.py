"""Objects as YAML that can be applied and read: no anchors, scripts in lines of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(  # pyright: ignore[reportUnknownMemberType]
        "tag:yaml.org,2002:str", value, style="|" if "\n" in value else None
    )


_Dumper.add_representer(str, _text)


def document(item: dict[str, Any]) -> str:
    return yaml.dump(item, Dumper=_Dumper, sort_keys=False, width=140)


def documents(objects: Sequence[dict[str, Any]]) -> str:
    return "---\n".join(map(document, objects))
