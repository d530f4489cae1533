"""`monarch rdma`: which paths there are, and how fast they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from monarch.rdma._cli import byte_count

if TYPE_CHECKING:
    from monarch.rdma._bench import Figure
    from monarch.rdma._machine.probe import DeviceReport

_SIZES = (4 << 10, 1 << 20, 64 << 20)


@click.group()
def command() -> None:
    """Looks at paths between the memories of processes."""


@command.command("probe")
@click.option("--json", "as_json", is_flag=True, help="As a list of objects.")
def probe_command(as_json: bool) -> None:
    """Prints each path and device of this machine, best first, and the obstacle of each that is not usable."""
    # The import takes 20 ms; `monarch --help` loads this module.
    from monarch.rdma._machine.probe import locked_memory, probe

    rows = probe()
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows], indent=2))
        return
    width = max(len(row.name) for row in rows)
    for row in rows:
        click.echo(f"{row.name:<{width}}  {_text(row)}".rstrip())
    click.echo(f"locked memory: {locked_memory()}")


def _text(row: DeviceReport) -> str:
    rails = f", {row.rails} rails" if row.rails else ""
    node = "" if row.numa is None else f", NUMA node {row.numa}"
    state = "usable" if row.usable else "not usable"
    return f"{state}{rails}{node}" + (f": {row.reason}" if row.reason else "")


class _Size(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]  (generic from click 8.3 on, not before)
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else byte_count.parse(value)
        except ValueError as e:
            self.fail(str(e), param, ctx)


@command.command("bench")
@click.option("--size", "sizes", type=_Size(), multiple=True, default=_SIZES, help="Bytes, e.g. 64MiB; again for more sizes.")
@click.option("--path", "paths", multiple=True, help="One that `monarch rdma probe` lists; again for more. All that are usable without.")
@click.option("--json", "as_json", is_flag=True, help="As a list of objects; times in seconds.")
def bench_command(sizes: tuple[int, ...], paths: tuple[str, ...], as_json: bool) -> None:
    """Measures copies between processes of this machine, by each path, beside a memcpy of one thread. Moves real bytes, for seconds."""
    # The import takes 60 ms; `monarch --help` loads this module.
    from monarch.actor import ActorError, MonarchError
    from monarch.rdma import _bench

    _check_room(max(sizes), _bench.needed_memory(max(sizes)), _bench.available_memory())
    for path in paths:
        reason = _bench.obstacle(path)
        if reason:
            listed = ", ".join(_bench.usable_paths())
            raise click.ClickException(f"path {path} cannot be measured: {reason}\nhint: measured can be {listed}")
    # The given order, each transport once.
    chosen, sizes = list(dict.fromkeys(paths)) or _bench.usable_paths(), tuple(dict.fromkeys(sizes))
    found: list[Figure] = []
    if not as_json:
        click.echo(f"{'size':>8}  {'path':<10}  {'copy':<5}  {'time':>10}  {'bandwidth':>10}")
    try:
        for figure in _bench.measure(chosen, sizes):
            found.append(figure)
            if not as_json:
                click.echo(_row(figure))
    except MonarchError as e:
        raise click.ClickException(str(e.exception if isinstance(e, ActorError) else e)) from None
    if as_json:
        click.echo(json.dumps([{**f._asdict(), "bytes_per_second": f.bytes_per_second} for f in found], indent=2))


def _check_room(nbytes: int, needed: int, available: int | None) -> None:
    if available is not None and needed > available:
        size = byte_count.show(nbytes)
        raise click.ClickException(f"copies of {size} need {needed:,} bytes of memory, {available:,} are available\nhint: a smaller --size")


def _row(f: Figure) -> str:
    micro = f.seconds * 1e6
    spent = f"{micro:,.1f} us" if micro < 10_000 else f"{micro / 1000:,.1f} ms"
    speed = f"{f.bytes_per_second / 1e9:,.2f} GB/s"
    return f"{byte_count.show(f.nbytes):>8}  {f.path:<10}  {f.operation:<5}  {spent:>10}  {speed:>10}"
