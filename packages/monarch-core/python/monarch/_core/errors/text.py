"""The texts of errors, made from the templates and hints of `table`.

A text names the culprit on its first line; the other lines are indented by two, with the hint last. The texts of failures are in `failure`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from monarch._core.errors.table import ErrorRow


def row_of(code: str) -> ErrorRow | None:
    from monarch._core.errors.table import ROWS

    return ROWS.get(code)


def fill(row: str, /, **fields: object) -> str:
    """The template of a row with its fields."""
    from monarch._core.errors.table import ROWS

    return ROWS[row].template.format(**fields)


def hint_of(code: str) -> str | None:
    row = row_of(code)
    if row is None:
        try:
            from monarch._core.errors import known_rows
        except OSError:  # no descriptor is free for the file of the module: the error is reported without a hint
            return None
        row = known_rows.row_of(code)
    return row.hint if row else None


def first_line(text: str) -> tuple[str, list[str]]:
    head, *rest = text.split("\n")
    return head, rest


def indented(lines: Iterable[str], by: str = "  ") -> list[str]:
    return [by + line if line else line for line in lines]


def where(pid: int | None, host: str | None, signal: int | None = None) -> str:
    """`(pid 12 on host)`, followed by the name of the signal if there is one."""
    place = f"(pid {'unknown' if pid is None else pid} on {host or 'unknown host'})"
    name = signal_name(signal) if signal else ""
    return f"{place} {name}" if name else place


def signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def procs_not_started(n: int, procs: Sequence[tuple[str, str, Sequence[str]]]) -> str:
    """The text of procs that did not start. `n` is the requested number, `procs` has command, exit and last output of each failed proc."""
    lines = [fill("procs_not_started", k=len(procs), n=n)]
    for command, ended, output in procs:
        lines.append(f"  {command}: {ended}")
        if output:
            lines.append("    last output:")
            lines += indented((line.rstrip("\r\n") for line in output), "      ")
    return "\n".join([*lines, f"  hint: {hint_of('procs_not_started')}"])


def gave_up(name: str, rank: int, count: int, within: float, report: str) -> str:
    """The text for a supervisor that gives up restarting. `report` is that of the last failure."""
    head = fill("gave_up", name=name, rank=rank, count=count, within=f"{within:g}")
    return "\n".join([head, *indented(report.split("\n"))])


def undeliverable(target: str, sender: str, dest: str, why: str) -> str:
    """The text of an undelivered message. `target` is `{mesh}.{method}()` or its substitute; the root client is shown as `client`."""
    return fill("undeliverable", target=target, sender=_client(sender), dest=_client(dest), why=why)


def _client(display: str) -> str:
    return "client" if display == "<root>" else display


def attach_failed(n: int, hosts: Mapping[str, str]) -> str:
    """The text of a failed attachment. `n` is the requested number, `hosts` gives the reason for each address that did not join."""
    return fill("attach_failed", k=len(hosts), n=n, hosts="; ".join(f"{address}: {why}" for address, why in hosts.items()))


def not_shut_down(n: int, hosts: Mapping[str, str]) -> str:
    """The text of a shutdown of `n` hosts. `hosts` gives the reason for each address whose host did not confirm its end."""
    return fill("not_shut_down", k=len(hosts), n=n, hosts="; ".join(f"{address}: {why}" for address, why in hosts.items()))


def fault_hook_failed(error: BaseException) -> str:
    """The text after the report if the hook did not end the program on purpose."""
    from monarch._core.pickle.remote_exception import exception_text, format_exception, type_name

    text = fill("fault_hook_failed", error=f"{type_name(type(error))}: {exception_text(error)}")
    return "\n".join([text, *indented(format_exception(error).split("\n"))])


def actor_call_failed(mesh: str, method: str, base: bool = False) -> str:
    """The message of an `ActorError`; `base`: the raised exception is not an `Exception`."""
    return f"Actor call {mesh}.{method} failed{' with BaseException' if base else ''}."


def never_retrieved(endpoint: str, kind: str, text: str, pid: int | None, host: str | None) -> str:
    """The line about the exception of a call whose Future was dropped before it was read."""
    head, _ = first_line(text)
    return (
        f"monarch: the exception of a Future was never retrieved: {endpoint} raised {kind}{': ' if head else ''}{head} {where(pid, host)}"
    )


def interrupted_by_failure(report: str) -> str:
    """The last line of a program that was interrupted for a failure."""
    head, _ = first_line(report)
    return f"monarch: the program was interrupted because of a failure: {head}"
