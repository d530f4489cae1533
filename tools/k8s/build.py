"""`kube`: Kubernetes, etcd and CoreDNS as one program, built from their published Go modules.

The name of the call selects the part; `bin` has links of these names. The main module is Kubernetes's own go.mod, so that every
dependency has the version of the release. The folders that only its repository has (`./staging/...`) are replaced by the modules that
are published from them. The `main` of each command becomes a package of its own. Shared code is compiled and linked once.
"""

from __future__ import annotations

import re
from pathlib import Path

from tools.k8s.go import module_folder, run_go
from tools.k8s.kept import Kept

# 1.36 is the last version that works with containerd 1.6 of Debian 12, which cannot report its cgroup driver to the kubelet.
KUBERNETES = "1.36.3"
# The newest CoreDNS that needs no newer dependency than Kubernetes has.
COREDNS = "1.14.1"
COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
PROGRAMS = ("etcd", *COMMANDS, "coredns")
PLUGINS = ("bind", "cache", "errors", "health", "kubernetes", "log", "ready", "template")

_DNS_FLAGS = ("conf", "plugins", "pidfile", "version", "quiet", "dns.port", "p")

_COREDNS = """\
package coredns

import (
	"github.com/coredns/coredns/coremain"
{plugins}
)

func Main() {{ coremain.Run() }}
"""

_MAIN = """\
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdmain"
{imports}
)

func main() {{
	programs := map[string]func(){{
		"etcd": func() {{ etcdmain.Main(os.Args) }},
{entries}
	}}
	name := filepath.Base(os.Args[0])
	if programs[name] == nil && len(os.Args) > 1 {{
		name = os.Args[1]
		os.Args = os.Args[1:]
	}}
	if name != "coredns" {{
		dropDNSFlags(name)
	}}
	program := programs[name]
	if program == nil {{
		fmt.Fprintln(os.Stderr, "kube: no program", name)
		os.Exit(2)
	}}
	program()
}}

// CoreDNS registers global flags for whatever it is linked into; some of them mean something else to the other programs.
func dropDNSFlags(name string) {{
	dropped := map[string]bool{{{dropped}}}
	kept := flag.NewFlagSet(name, flag.ExitOnError)
	flag.VisitAll(func(one *flag.Flag) {{
		if !dropped[one.Name] {{
			kept.Var(one.Value, one.Name, one.Usage)
		}}
	}})
	flag.CommandLine = kept
}}
"""


def _package(command: str) -> str:
    return command.replace("-", "")


def _main_source() -> str:
    packages = [*map(_package, COMMANDS), "coredns"]
    entries = [f'\t\t"{program}": {_package(program)}.Main,' for program in (*COMMANDS, "coredns")]
    dropped = ", ".join(f'"{flag}": true' for flag in _DNS_FLAGS)
    return _MAIN.format(dropped=dropped, imports="\n".join(f'\t"kube/{package}"' for package in packages), entries="\n".join(entries))


def _coredns_source() -> str:
    return _COREDNS.format(plugins="\n".join(f'\t_ "github.com/coredns/coredns/plugin/{plugin}"' for plugin in PLUGINS))


def main_module(theirs: str) -> str:
    """The go.mod of the program, made from that of Kubernetes."""
    # k8s.io/kubernetes 1.N.M publishes its staging folders as modules 0.N.M.
    published = "v0." + KUBERNETES.removeprefix("1.")
    text = re.sub(r"(?m)^module .*$", "module kube", theirs, count=1)
    text = re.sub(r"(?m)(k8s\.io/\S+) => \./staging/src/k8s\.io/\S+", rf"\1 => \1 {published}", text)
    return f"{text}\nrequire (\n\tk8s.io/kubernetes v{KUBERNETES}\n\tgithub.com/coredns/coredns v{COREDNS}\n)\n"


def command_package(command: str, source: str) -> str:
    """The main.go of a command, turned into a package with the function `Main`."""
    text = re.sub(r"(?m)^package main$", f"package {_package(command)}", source, count=1)
    return re.sub(r"(?m)^func main\(\)", "func Main()", text, count=1)


def _make(work: Path) -> None:
    source = work / "source"
    source.mkdir()
    kubernetes = module_folder(work, "k8s.io/kubernetes", KUBERNETES, folder=source)
    (source / "go.mod").write_text(main_module((kubernetes / "go.mod").read_text()))
    (source / "go.sum").write_bytes((kubernetes / "go.sum").read_bytes())
    (source / "main.go").write_text(_main_source())
    for command in COMMANDS:
        package = source / _package(command)
        package.mkdir()
        for file in (kubernetes / "cmd" / command).glob("*.go"):
            if re.search(r"(?m)^func main\(\)", text := file.read_text()):
                (package / "main.go").write_text(command_package(command, text))
    (source / "coredns").mkdir()
    (source / "coredns" / "main.go").write_text(_coredns_source())
    run_go(work, "build", "-mod=mod", "-trimpath", f"-ldflags={_LINK}", "-o", str(work / "bin" / "kube"), ".", folder=source)
    for program in PROGRAMS:
        (work / "bin" / program).symlink_to("kube")


_VERSION = {
    "gitVersion": f"v{KUBERNETES}",
    "gitMajor": "1",
    "gitMinor": KUBERNETES.split(".")[1],
    "gitTreeState": "clean",
}
_LINK = " ".join(
    [
        "-s -w",
        *(
            f"-X {package}.{name}={value}"
            for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
            for name, value in _VERSION.items()
        ),
    ]
)

KUBE = Kept("kube", "\n".join([KUBERNETES, COREDNS, _LINK, _main_source(), _coredns_source(), *PROGRAMS]), _make)
