"""Opens every built wheel, installs all of them into an empty environment, imports them with an empty environment.

monarch-compat is installed after the others, and they are imported again. monarch-tensor is installed last and without its dependencies:
PyTorch is large. Without it the import has to name the missing package.

    python -m tools.check_wheels [FOLDER]      dist/ by default

Prints sizes, the number of modules that `import monarch.actor` loads and its duration (for information only: no time is tested),
and exits 1 if there is a problem.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tools import wheel_install
from tools.project import DIST, ROOT
from tools.wheel_contents import NEED_TORCH, WHEELS, problems

THIRD_PARTY = ROOT / "tools" / "tests" / "third_party"


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else DIST
    wheels = sorted(folder.glob("monarch_*.whl"))
    found: list[str] = []
    missing = set(WHEELS) - {wheel.stem.split("-")[0] for wheel in wheels}
    found += [f"{folder}: no wheel of '{name}'" for name in sorted(missing)]
    for wheel in wheels:
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes")
        found += [f"{wheel.name}: {problem}" for problem in problems(wheel)]
    if not found:
        found += _installed(wheels)
    for problem in found:
        print(problem)
    print(f"wheels: {len(wheels)} opened, {len(found)} problems")
    return 1 if found else 0


def _installed(wheels: list[Path]) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="wheels-") as scratch:
        python = wheel_install.create(Path(scratch) / "empty")
        apart = [wheel for wheel in wheels if wheel.stem.split("-")[0] in NEED_TORCH]
        old_paths = [wheel for wheel in wheels if wheel.stem.split("-")[0] == "monarch_compat"]
        wheel_install.install(python, [wheel for wheel in wheels if wheel not in apart and wheel not in old_paths])
        seen = wheel_install.probe(python, Path(scratch))
        wheel_install.install(python, old_paths)
        seen.problems.extend(wheel_install.probe(python, Path(scratch)).problems)
        seen.problems.extend(_third_party(python, Path(scratch)))
        wheel_install.install(python, apart, dependencies=False)
        seen.problems.extend(wheel_install.without_torch(python, Path(scratch)))
    print(f"import monarch.actor: {seen.milliseconds:.1f} ms, {len(seen.own)} own modules")
    return seen.problems


def _third_party(python: Path, scratch: Path) -> list[str]:
    """Tests every point of the extension interface there, with a third-party package that uses public names only."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(scratch)]
    subprocess.run([*build, str(THIRD_PARTY)], check=True)
    wheel_install.install(python, list(scratch.glob("parrot-*.whl")))
    done = subprocess.run([str(python), "-P", "-W", "error", "-m", "parrot"], cwd=scratch, env={}, check=False, timeout=120)
    return [f"{THIRD_PARTY.name}: `python -m parrot` ended with exit code {done.returncode}"] if done.returncode else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
