"""Command lines of torchrun: what each option means here, and what it allows.

    spec = parse_torchrun(["--nnodes=2", "--nproc-per-node=4", "train.py", "--lr", "0.1"])

The options are those of `torch.distributed.run`, whose parser is the oracle in tests. Rendezvous and monitoring are those of the job, so
the options for them are accepted and change nothing. As there, a name may be written with underscores, may be cut short as long as it is
one option, and the variable `PET_<NAME>` stands for an option that is not given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Literal, NamedTuple

from monarch.spmd.errors import LaunchArgumentError

Kind = Literal["script", "module", "command", "path"]
# The ranks per host: a number, or the resource whose count is used.
PerHost = int | Literal["gpu", "cpu", "auto"]


class Streams(IntFlag):
    """Output streams of a rank, by the numbers of torchrun."""

    NONE = 0
    OUT = 1
    ERR = 2
    BOTH = 3


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """A launch. `program` is the script, module or command, `arguments` what it gets.

    `min_hosts` and `max_hosts` bound the number of hosts; `has_hosts`: they are given, and not only torchrun's default. `redirects` and
    `tees` are by local rank, those of all others under None.
    """

    program: str
    arguments: tuple[str, ...] = ()
    kind: Kind = "script"
    min_hosts: int = 1
    max_hosts: int = 1
    has_hosts: bool = False
    per_host: PerHost = 1
    max_restarts: int = 0
    role: str = "default"
    run_id: str | None = None
    master_addr: str | None = None
    master_port: int | None = None
    local_addr: str | None = None
    standalone: bool = False
    # Each rank is local rank 0 and sees one GPU.
    virtual_local_rank: bool = False
    log_dir: str | None = None
    redirects: Mapping[int | None, Streams] = field(default_factory=dict[int | None, Streams])
    tees: Mapping[int | None, Streams] = field(default_factory=dict[int | None, Streams])
    # The local ranks whose output is shown; None: all of them.
    shown: frozenset[int] | None = None
    # Whether `$local_rank` in the program's name and arguments is replaced by the local rank.
    has_macros: bool = True
    # Seconds from SIGTERM to SIGKILL.
    shutdown_timeout: int | None = None
    # Given options that have no effect here.
    needless: tuple[str, ...] = ()

    def shows(self, local_rank: int, stream: int) -> bool:
        """Whether a stream of a rank is shown: not where it is redirected into files only, nor a rank that the filter leaves out."""
        if self.shown is not None and local_rank not in self.shown:
            return False
        redirected = self.redirects.get(local_rank, self.redirects.get(None, Streams.NONE))
        teed = self.tees.get(local_rank, self.tees.get(None, Streams.NONE))
        return not redirected & stream or bool(teed & stream)

    def ranks_of(self, gpus: int, cpus: int, host: str) -> int:
        """How many ranks a host with so many GPUs and processors has. `LaunchArgumentError` for `gpu` on one without."""
        if isinstance(self.per_host, int):
            return self.per_host
        if self.per_host == "gpu" and not gpus:
            raise LaunchArgumentError("--nproc-per-node=gpu", f"{host} has 0 GPUs", hint="--nproc-per-node=auto counts processors there")
        return cpus if self.per_host == "cpu" or not gpus else gpus


class Option(NamedTuple):
    name: str
    letter: str = ""
    is_flag: bool = False
    is_needless: bool = False
    # Whether a variable may replace it.
    has_variable: bool = True

    @property
    def variable(self) -> str:
        return f"PET_{self.name.upper().replace('-', '_')}"


OPTIONS = (
    Option("nnodes"),
    Option("nproc-per-node"),
    Option("max-restarts"),
    Option("role"),
    Option("rdzv-id"),
    Option("master-addr"),
    Option("master-port"),
    Option("local-addr"),
    Option("standalone", is_flag=True),
    Option("module", "m", is_flag=True),
    Option("no-python", is_flag=True),
    Option("run-path", is_flag=True),
    Option("log-dir"),
    Option("redirects", "r"),
    Option("tee", "t"),
    Option("local-ranks-filter"),
    Option("virtual-local-rank", is_flag=True),
    Option("shutdown-timeout"),
    Option("rdzv-backend", is_needless=True),
    Option("rdzv-endpoint", is_needless=True),
    Option("rdzv-conf", is_needless=True),
    Option("node-rank", is_needless=True),
    Option("monitor-interval", is_needless=True),
    Option("start-method", is_needless=True),
    Option("event-log-handler", is_needless=True),
    Option("log-line-prefix-template", is_needless=True),
    Option("duplicate-stdout-filters", is_needless=True),
    Option("duplicate-stderr-filters", is_needless=True),
    Option("logs-specs", is_needless=True, has_variable=False),
    Option("numa-binding", is_needless=True, has_variable=False),
    Option("signals-to-handle", is_needless=True),
)
_BY_NAME = {option.name: option for option in OPTIONS}
_BY_LETTER = {option.letter: option for option in OPTIONS if option.letter}
# The needless options whose values are words of a list.
_CHOICES = {"start-method": ("spawn", "fork", "forkserver"), "numa-binding": ("node", "socket", "exclusive", "core-complex")}
_MOST_PORT = 65535
_STREAMS = re.compile(r"[0-3]")
_STREAMS_OF_RANKS = re.compile(r"\d+:[0-3](?:,\d+:[0-3])*")
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
# The largest number of a counted thing; longer numbers are a mistake.
_MOST_NUMBER = 10**18
_PER_HOST = ("gpu", "cpu", "auto")


def parse_torchrun(args: Sequence[str], *, environ: Mapping[str, str] | None = None) -> LaunchSpec:
    """What follows the word `torchrun` on a command line. `environ` has the variables that stand for options; None: none.

    `LaunchArgumentError` names the option that is unknown, or whose value it does not allow.
    """
    if isinstance(args, str):
        raise TypeError(f"parse_torchrun({args!r}): expected a list of words")
    given, rest = _given(args)
    for option in OPTIONS:
        if option.name not in given and option.has_variable and (value := (environ or {}).get(option.variable)) is not None:
            given[option.name] = _Value(option.variable, _flag(option.variable, value) if option.is_flag else value)
    flags = {name for name, value in given.items() if _BY_NAME[name].is_flag and value.text}
    if not rest:
        raise LaunchArgumentError("", "a launch names a program: torchrun [options] SCRIPT [arguments]")
    fewest, most = _hosts(given)
    return LaunchSpec(
        program=rest[0],
        arguments=tuple(rest[1:]),
        kind=_kind(flags),
        min_hosts=fewest,
        max_hosts=most,
        has_hosts="nnodes" in given or "standalone" in flags,
        per_host=_per_host(given),
        max_restarts=_number(given, "max-restarts", 0),
        role=_text(given, "role", "default"),
        run_id=_text_or_none(given, "rdzv-id"),
        master_addr=_text_or_none(given, "master-addr"),
        master_port=_number(given, "master-port", -1, most=_MOST_PORT) if "master-port" in given else None,
        local_addr=_text_or_none(given, "local-addr"),
        standalone="standalone" in flags,
        virtual_local_rank="virtual-local-rank" in flags,
        log_dir=_text_or_none(given, "log-dir"),
        redirects=_streams(given, "redirects"),
        tees=_streams(given, "tee"),
        shown=_ranks(given, "local-ranks-filter"),
        shutdown_timeout=_number(given, "shutdown-timeout", 0) if "shutdown-timeout" in given else None,
        needless=_needless(given),
    )


class _Value(NamedTuple):
    # The option in the user's spelling, for errors.
    written: str
    text: str


def _given(args: Sequence[str]) -> tuple[dict[str, _Value], list[str]]:
    """The options by their names, and what comes after them: the program and its arguments."""
    found: dict[str, _Value] = {}
    left = list(args)
    while left and _is_option(left[0]):
        word = left.pop(0)
        if word == "--":
            return found, left
        for option, written, value in [_long(word)] if word.startswith("--") else _short(word):
            if option.is_flag:
                if value is not None:
                    raise LaunchArgumentError(written, f"takes no value, and has {value!r}")
                value = "1"
            elif value is None:
                if not left or _is_option(left[0]):
                    dash = f"one that begins with a dash is given as {written}=..." if left and written.startswith("--") else None
                    raise LaunchArgumentError(written, "a value is missing", hint=dash)
                value = left.pop(0)
            found[option.name] = _Value(written, value)
    # torchrun does the same: the first dashes after the program are no argument of it.
    if left[1:2] == ["--"]:
        del left[1]
    return found, left


def _is_option(word: str) -> bool:
    """As argparse has it: a dash alone is none, nor are negative numbers and words with spaces that no option begins."""
    if not word.startswith("-") or word == "-" or _NEGATIVE.fullmatch(word):
        return False
    if " " not in word:
        return True
    name = word.partition("=")[0]
    return bool(_starting(name)) if name.startswith("--") else name[1] in _BY_LETTER


def _starting(written: str) -> list[Option]:
    """The options that a name, which may be cut short, can mean."""
    name = written[2:].replace("_", "-")
    return [_BY_NAME[name]] if name in _BY_NAME else [option for option in OPTIONS if option.name.startswith(name)]


def _long(word: str) -> tuple[Option, str, str | None]:
    written, equals, value = word.partition("=")
    found = _starting(written)
    if not found:
        raise _unknown(written, written[2:].replace("_", "-"))
    if len(found) > 1:
        raise LaunchArgumentError(written, f"may be {', '.join(f'--{option.name}' for option in found)}")
    return found[0], written, value if equals else None


def _short(word: str) -> list[tuple[Option, str, str | None]]:
    """One option, or flags in one word, the last of which may be one with a value."""
    found: list[tuple[Option, str, str | None]] = []
    rest = word[1:]
    while rest:
        option, written, rest = _BY_LETTER.get(rest[0]), f"-{rest[0]}", rest[1:]
        if option is None:
            raise _unknown(word, word[1:].replace("_", "-"))
        has_value = bool(rest) and (not option.is_flag or rest[0] == "=")
        found.append((option, written, rest.removeprefix("=") if has_value else None))
        if has_value:
            break
    return found


def _flag(written: str, text: str) -> str:
    """The value of a variable that stands for a flag, as that of an option: empty where it is not set."""
    number = _int(text)
    if number is None:
        raise LaunchArgumentError(f"{written}={text}", "expected 0 or 1")
    return "1" if number else ""


def _unknown(written: str, name: str) -> LaunchArgumentError:
    from difflib import get_close_matches  # ranks import this module, and make no such text

    near = get_close_matches(name, _BY_NAME, n=1)
    return LaunchArgumentError(written, "no such option here", hint=f"did you mean --{near[0]}?" if near else None)


def _kind(flags: set[str]) -> Kind:
    if "run-path" in flags:
        # The path has precedence over the others, as in torchrun.
        return "path"
    if {"module", "no-python"} <= flags:
        raise LaunchArgumentError("--module", "does not go with --no-python: each says how the program is run")
    return "module" if "module" in flags else "command" if "no-python" in flags else "script"


def _text(given: Mapping[str, _Value], name: str, default: str) -> str:
    return given[name].text if name in given else default


def _text_or_none(given: Mapping[str, _Value], name: str) -> str | None:
    return given[name].text if name in given and given[name].text else None


def _number(given: Mapping[str, _Value], name: str, default: int, *, least: int = 0, most: int | None = None) -> int:
    if name not in given:
        return default
    written, text = given[name]
    number = _int(text)
    if number is None or number < least or (most is not None and number > most):
        allowed = f"a number from {least} on" if most is None else f"a number from {least} to {most}"
        raise LaunchArgumentError(f"{written}={text}", f"expected {allowed}")
    return number


def _int(text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        return None
    return number if abs(number) < _MOST_NUMBER else None


def _hosts(given: Mapping[str, _Value]) -> tuple[int, int]:
    if "nnodes" not in given:
        return 1, 1
    written, text = given["nnodes"]
    low, colon, high = text.partition(":")
    fewest, most = _int(low), _int(high if colon else low)
    if fewest is None or most is None or not 1 <= fewest <= most:
        raise LaunchArgumentError(f"{written}={text}", "expected N or MIN:MAX, numbers from 1 on with MIN no larger than MAX")
    return fewest, most


def _per_host(given: Mapping[str, _Value]) -> PerHost:
    if "nproc-per-node" not in given:
        return 1
    written, text = given["nproc-per-node"]
    number = _int(text)
    if number is not None and number >= 1:
        return number
    for word in _PER_HOST:
        if text == word:
            return word
    raise LaunchArgumentError(f"{written}={text}", "expected a number from 1 on, gpu, cpu or auto")


def _streams(given: Mapping[str, _Value], name: str) -> dict[int | None, Streams]:
    if name not in given:
        return {}
    written, text = given[name]
    if _STREAMS.fullmatch(text):
        return {None: Streams(int(text))} if text != "0" else {}
    if not _STREAMS_OF_RANKS.fullmatch(text):
        streams = "0 (none), 1 (stdout), 2 (stderr) or 3 (both)"
        raise LaunchArgumentError(f"{written}={text}", f"expected {streams}, or these by local rank: 0:3,1:1")
    pairs = (pair.split(":") for pair in text.split(",") if pair)
    return {int(rank): Streams(int(streams)) for rank, streams in pairs}


def _ranks(given: Mapping[str, _Value], name: str) -> frozenset[int] | None:
    if name not in given or not given[name].text:
        return None
    written, text = given[name]
    ranks = [_int(part) for part in text.split(",")]
    if any(rank is None or rank < 0 for rank in ranks):
        raise LaunchArgumentError(f"{written}={text}", "expected local ranks with commas between them: 0,1,2")
    return frozenset(rank for rank in ranks if rank is not None)


def _needless(given: Mapping[str, _Value]) -> tuple[str, ...]:
    """The options that change nothing here; their values are checked all the same."""
    _number(given, "node-rank", 0)
    if "monitor-interval" in given:
        written, text = given["monitor-interval"]
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not seconds >= 0:
            raise LaunchArgumentError(f"{written}={text}", "expected seconds")
    for name, choices in _CHOICES.items():
        if name in given and given[name].text not in choices:
            written, text = given[name]
            raise LaunchArgumentError(f"{written}={text}", f"expected {', '.join(choices)}")
    if "rdzv-conf" in given and (text := given["rdzv-conf"].text.strip()):
        pairs = (pair.partition("=") for pair in text.split(","))
        if not all(key.strip() and value.strip() for key, _, value in pairs):
            raise LaunchArgumentError(f"{given['rdzv-conf'].written}={text}", "expected KEY=VALUE, more with commas between them")
    return tuple(value.written for name, value in given.items() if _BY_NAME[name].is_needless)
