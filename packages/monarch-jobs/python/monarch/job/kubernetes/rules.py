"""Kubernetes' own rules for names, labels, annotations and quantities, checked before anything is sent. All raise `ValueError`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

_MESH = re.compile(r"[a-z][a-z0-9]*")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_REQUIREMENT = re.compile(
    r"\s*(?P<not>!\s*)?(?P<key>[^\s=!,()]+)\s*"
    r"(?:(?P<op>==|=|!=)\s*(?P<value>[^\s=!,()]*)|(?<=\s)(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?\s*"
)
_QUANTITY = re.compile(r"\+?(\d+\.?\d*|\.\d+)(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?\d{1,3})?")
_IMAGE = re.compile(r"[A-Za-z0-9][\w.\-/:@\[\]]*")

LONGEST_LABEL = 63
LONGEST_SUBDOMAIN = 253
MOST_ANNOTATIONS = 256 * 1024  # bytes of keys and values together

# Resources of a pod without a domain in their names.
_PLAIN_RESOURCES = ("cpu", "memory", "ephemeral-storage")


def check_mesh_name(name: str) -> None:
    if not _MESH.fullmatch(name) or len(name) > LONGEST_LABEL:
        raise ValueError(
            f"mesh '{name}': the name of a mesh on Kubernetes is a-z, then a-z or 0-9 (^[a-z][a-z0-9]*$), at most {LONGEST_LABEL}"
        )


def check_namespace(name: str) -> None:
    if not _DNS_LABEL.fullmatch(name) or len(name) > LONGEST_LABEL:
        raise ValueError(f"'{name}' is no name of a namespace: a-z, 0-9 and '-', a letter or digit at both ends, at most {LONGEST_LABEL}")


def check_object_name(what: str, name: str) -> None:
    if not _DNS_SUBDOMAIN.fullmatch(name) or len(name) > LONGEST_SUBDOMAIN:
        raise ValueError(
            f"'{name}' is no name of a {what}: a-z, 0-9, '-' and '.', a letter or digit at both ends, at most {LONGEST_SUBDOMAIN}"
        )


def check_key(what: str, key: str) -> None:
    """The key of a label or annotation: a name, with the domain that it belongs to before a '/' or without."""
    domain, slash, name = key.rpartition("/")
    if slash and (not _DNS_SUBDOMAIN.fullmatch(domain) or len(domain) > LONGEST_SUBDOMAIN):
        raise ValueError(f"{what} '{key}': '{domain}' before the '/' is no domain (a-z, 0-9, '-' and '.', at most {LONGEST_SUBDOMAIN})")
    if not _NAME.fullmatch(name) or len(name) > LONGEST_LABEL:
        raise ValueError(
            f"{what} '{key}': a key has letters, digits, '-', '_' and '.', a letter or digit at both ends, at most {LONGEST_LABEL}"
        )


def check_labels(labels: Mapping[str, str]) -> None:
    for key, value in labels.items():
        check_key("label", key)
        check_label_value(f"label '{key}'", value)


def check_label_value(what: str, value: str) -> None:
    if value and not _NAME.fullmatch(value) or len(value) > LONGEST_LABEL:
        raise ValueError(
            f"{what}: the value '{value}' has other characters than letters, digits, '-', '_' and '.', no letter or digit at an end, "
            f"or more than {LONGEST_LABEL} characters"
        )


def check_annotations(annotations: Mapping[str, str]) -> None:
    for key in annotations:
        check_key("annotation", key)
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > MOST_ANNOTATIONS:
        raise ValueError(f"the annotations have {size:,} bytes, and {MOST_ANNOTATIONS:,} are allowed")


def check_selector(selector: str) -> None:
    """`a=b,c!=d,e in (f,g),h,!i`."""
    if not selector.strip():
        raise ValueError("a selector without a requirement selects every pod of the namespace")
    for part in re.split(r",(?![^()]*\))", selector):
        found = _REQUIREMENT.fullmatch(part)
        if found is None or (found["not"] and (found["op"] or found["set"])):
            raise ValueError(
                f"'{part.strip()}' is no requirement of a label selector: key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
            )
        check_key("label", found["key"])
        for value in [found["value"] or "", *(found["values"] or "").split(",")]:
            check_label_value(f"label '{found['key']}'", value.strip())


def quantity(what: str, value: str | int) -> Decimal:
    """The number of base units of a quantity such as `500m`, `16Gi` or 8; not 0."""
    text = str(value)
    found = None if isinstance(value, bool) else _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"{what}: '{value}' is no quantity: a number, with n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi or Ei")
    unit = found[2] or ""
    number = Decimal(found[1] + unit) if unit[:1] in ("e", "E") and unit[1:] not in ("", "i") else Decimal(found[1]) * _UNITS[unit]
    if number <= 0:
        raise ValueError(f"{what}: '{value}' is not above 0")
    return number


_UNITS = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}


def check_resources(resources: Mapping[str, str | int]) -> None:
    """Amounts by the names of resources: `cpu`, `memory`, `hugepages-2Mi`, `nvidia.com/gpu`."""
    for name, value in resources.items():
        what = f"resource '{name}'"
        plain = name in _PLAIN_RESOURCES or name.startswith("hugepages-")
        if not plain and "/" not in name:
            raise ValueError(f"{what} is unknown: {', '.join(_PLAIN_RESOURCES)}, hugepages-SIZE, or one with a domain, as nvidia.com/gpu")
        check_key("resource", name)
        amount = quantity(what, value)
        if not plain and amount != amount.to_integral_value():
            raise ValueError(f"{what}: '{value}' is no whole number, and devices are not shared")


def check_image(image: str) -> None:
    if not _IMAGE.fullmatch(image):
        raise ValueError(f"'{image}' is no reference of an image, as registry.example.com/team/monarch:1")
