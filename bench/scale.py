"""The growth of casts and attaching with the number of hosts: the real state machines on simulated time.

    python bench/scale.py [--costs FILE] [--out FILE] [--plot docs/images/scale.png]

Runs `cargo run --release --example scale` of the runtime crate, which prints JSON lines, keeps them with `--out`, and draws with
`--plot`, which needs matplotlib. FILE of `--costs` has some or all of the costs in `rust/runtime/examples/scale/costs.rs`, as JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from requirement import cargo, module, require

ROOT = Path(__file__).resolve().parent.parent
RUST = ROOT / "packages" / "monarch-core" / "rust"
Line = dict[str, Any]


def simulate(costs: Path | None) -> list[Line]:
    """The lines that the simulation prints."""
    command = ["cargo", "run", "--release", "--quiet", "-p", "monarch-runtime", "--example", "scale"]
    if costs is not None:
        command += ["--", "--costs", str(costs.resolve())]
    done = subprocess.run(command, cwd=RUST, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def draw(lines: list[Line], path: Path) -> None:
    """Three pictures, each over the number of hosts."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    def points(bench: str, value: str, **wanted: object) -> tuple[list[int], list[float]]:
        hit = [x for x in lines if x["bench"] == bench and all(x[k] == v for k, v in wanted.items())]
        hosts = "workers" if bench == "attach" else "hosts"
        # The last line of a size counts.
        by_size = {x[hosts]: x[value] for x in hit}
        return sorted(by_size), [by_size[n] for n in sorted(by_size)]

    flat = [x for x in lines if x["bench"] == "cast" and x["fan_out"] == x["hosts"] and x["hosts"] > 16]
    sizes = sorted({x["hosts"] for x in lines if x["bench"] == "cast"})
    figure, axes = plt.subplots(1, 3, figsize=(15, 4))
    cast, root, attach = axes
    for answers in ("equal", "different"):
        cast.plot(*points("cast", "p50_us", fan_out=16, answers=answers), "o-", label=f"tree, answers {answers}")
        root.plot(*points("cast", "root_cpu_us", fan_out=16, answers=answers), "o-", label=f"tree, answers {answers}")
    cast.plot([x["hosts"] for x in flat], [x["p50_us"] for x in flat], "x--", label="all from the root")
    cast.plot(sizes, [5000] * len(sizes), "k:", label="goal")
    cast.set(title="Cast to 8 procs a host and all answers", ylabel="us, p50")
    root.plot(sizes, [200] * len(sizes), "k:", label="goal")
    root.set(title="Processor time of the root, measured", ylabel="us")
    attach.plot(*points("attach", "ms", missing=0), "o-", label="time, ms")
    attach.plot(*points("attach", "most_handshakes", missing=0), "s-", label="most handshakes of one host")
    attach.plot(*points("attach", "depth", missing=0), "^-", label="rounds")
    attach.set(title="Attach")
    for axis in axes.flat:
        axis.set(xscale="log", yscale="log", xlabel="hosts")
        axis.set_xticks(sizes, [str(n) for n in sizes])
        axis.grid(visible=True, alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--costs", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    require(cargo(), *([] if args.plot is None else [module("matplotlib", "pip install matplotlib")]))
    lines = simulate(args.costs)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    sys.stdout.write(text)
    if args.out is not None:
        args.out.write_text(text)
    if args.plot is not None:
        draw(lines, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
