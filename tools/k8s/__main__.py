"""A Kubernetes cluster on this machine.

    python -m tools.k8s build                       the programs, if they have not been built: 15 minutes of processor time
    python -m tools.k8s up DIR [--nodes N] [--image ARCHIVE]...
    python -m tools.k8s down DIR
    python -m tools.k8s image ARCHIVE [ROOT NAME]   of this machine's busybox, or of the root file system ROOT
    python -m tools.k8s build-image DOCKERFILE NAME ARCHIVE    its image with the wheels of this checkout, without an engine
    python -m tools.k8s bin                         where the programs are

`up` returns when all nodes are Ready and prints the variables that a client needs in its environment.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from tools import standing
from tools.k8s import image_build
from tools.k8s.build import KUBE
from tools.k8s.cluster import END_TIMEOUT_S, KubeCluster, missing
from tools.k8s.images import Image, write_host_images, write_root_image
from tools.k8s.slot import remove_leftovers


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.k8s", description="A Kubernetes cluster on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("build", help="build the programs, if they are missing or damaged")
    verbs.add_parser("bin", help="print the folder of the programs")
    up = verbs.add_parser("up", help="start a cluster and wait until all nodes are Ready")
    up.add_argument("directory", type=Path, metavar="DIR")
    up.add_argument("--nodes", type=int, default=2)
    up.add_argument("--image", type=Path, action="append", default=[], metavar="ARCHIVE", help="an image archive for all nodes")
    down = verbs.add_parser("down", help="end it, with its pods")
    down.add_argument("directory", type=Path, metavar="DIR")
    built = verbs.add_parser("build-image", help="write the archive of the image that a Dockerfile makes")
    built.add_argument("dockerfile", type=Path, metavar="DOCKERFILE")
    built.add_argument("name", metavar="NAME")
    built.add_argument("archive", type=Path, metavar="ARCHIVE")
    image = verbs.add_parser("image", help="write an image archive")
    image.add_argument("archive", type=Path, metavar="ARCHIVE")
    image.add_argument("root", type=Path, nargs="?", metavar="ROOT")
    image.add_argument("name", nargs="?", metavar="NAME")
    options = parser.parse_args()
    if options.verb == "image" and (options.root is None) != (options.name is None):
        parser.error("image: ROOT needs a NAME")
    return _do(options)


def _do(options: argparse.Namespace) -> int:
    if options.verb == "build":
        print(KUBE.build())
    elif options.verb == "bin":
        if damage := KUBE.damage():
            print(damage, file=sys.stderr)
            return 1
        print(KUBE.folder / "bin")
    elif options.verb == "down":
        code = standing.down(options.directory, END_TIMEOUT_S)
        remove_leftovers()  # the leftovers of a cluster that was killed
        return code
    elif options.verb == "up":
        if lacking := missing():
            print(lacking, file=sys.stderr)
            return 1
        try:
            cluster = KubeCluster(options.directory, options.nodes, images=options.image)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
        path = f"{KUBE.folder / 'bin'}:$PATH"
        return standing.up(options.directory, cluster, f"export KUBECONFIG={cluster.kubeconfig}\nexport PATH={path}")
    elif options.verb == "build-image":
        if lacking := image_build.missing():
            print(lacking, file=sys.stderr)
            return 1
        try:
            shutil.copyfile(image_build.built(options.dockerfile, options.name), options.archive)
        except (OSError, ValueError, RuntimeError) as error:
            print(error, file=sys.stderr)
            return 1
    elif options.root is None:
        write_host_images(options.archive)
    else:
        write_root_image(options.archive, options.root, options.name, Image(["/bin/sh"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
