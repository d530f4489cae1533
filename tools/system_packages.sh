#!/usr/bin/env bash
# Installs the Debian packages that a category of the work needs and this machine lacks.
#
#     tools/system_packages.sh [--list] CATEGORY...
#
# Categories: build (the native module), fuse (mounts, and what pyfuse3 is built with), test (a terminal, hosts in network
# namespaces, Prometheus, what makes stand-ins of libraries), browser (of the dashboard's tests), slurm (a scheduler), ssh (a server),
# k8s (what runs pods), vm (an emulated machine with RDMA devices), skypilot (what it runs on nodes), bench (profiles). A line of the
# table is "category | what must be there | packages", which is a program on PATH, or a path. Nothing is done where nothing is missing.
# Without root or apt it only says what is missing, and leaves it to the step that needs it to fail, or to be left out with a word.
set -euo pipefail

table='
build | cc      | gcc libc6-dev
test  | tmux    | tmux
browser | chromium | chromium fonts-dejavu-core
fuse  | fusermount3 | fuse3
fuse  | /usr/include/fuse3 | libfuse3-dev
fuse  | pkg-config | pkg-config
fuse  | cc      | gcc libc6-dev
fuse  | busybox | busybox-static
fuse  | mksquashfs | squashfs-tools
fuse  | squashfuse | squashfuse
fuse  | unshare | util-linux
slurm | slurmctld | slurm-wlm munge
ssh   | sshd    | openssh-server openssh-client
test  | ip      | iproute2
test  | ss      | iproute2
test  | nft     | nftables
test  | unshare | util-linux
test  | mkfs.btrfs | btrfs-progs
test  | faketime | faketime
test  | openssl | openssl
test  | gcc     | gcc libc6-dev
test  | readelf | binutils
test  | prometheus | prometheus
test  | promtool | prometheus
k8s   | containerd | containerd
k8s   | runc    | runc
k8s   | /usr/lib/cni/bridge | containernetworking-plugins
k8s   | conntrack | conntrack
k8s   | iptables | iptables
k8s   | busybox | busybox-static
k8s   | ip      | iproute2
k8s   | nsenter | util-linux
k8s   | openssl | openssl
k8s   | debootstrap | debootstrap
vm    | qemu-system-x86_64 | qemu-system-x86 seabios
vm    | busybox | busybox-static
vm    | cpio    | cpio
vm    | modprobe | kmod
vm    | setpriv | util-linux
vm    | rdma    | iproute2
vm    | ibv_devices | rdma-core ibverbs-providers ibverbs-utils
vm    | ib_read_bw | perftest
vm    | /usr/lib/python3/dist-packages/pyverbs | python3-pyverbs
skypilot | sudo   | sudo
skypilot | rsync  | rsync
skypilot | curl   | curl
skypilot | wget   | wget
skypilot | nc     | netcat-openbsd
skypilot | socat  | socat
skypilot | gcc    | gcc
skypilot | patch  | patch
skypilot | lspci  | pciutils
skypilot | sshd   | openssh-server
bench | perf    | linux-perf
bench | strace  | strace
bench | unshare | util-linux
bench | ip      | iproute2
'

list=false
if [ "${1:-}" = --list ]; then
    list=true
    shift
fi
missing=()
for category in "$@"; do
    known=false
    while IFS='|' read -r name program packages; do
        name=${name// /} program=${program// /}
        [ "$name" = "$category" ] || continue
        known=true
        PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null 2>&1 && continue
        [ ! -e "$program" ] || continue
        read -ra words <<<"$packages"
        missing+=("${words[@]}")
    done <<<"$table"
    if [ "$known" = false ]; then
        echo "system_packages: no category '$category'" >&2
        exit 2
    fi
done
if [ "$list" = true ]; then
    [ "${#missing[@]}" -eq 0 ] || printf '%s\n' "${missing[@]}"
    exit 0
fi
[ "${#missing[@]}" -gt 0 ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "system_packages: missing here: ${missing[*]} (Debian's names); install them, or run this as root on Debian" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
# No package starts its daemon: tests start what they need, each in a folder of its own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi
# Another installation on this machine is waited for.
wait=(-o DPkg::Lock::Timeout=600)
apt-get "${wait[@]}" update -qq
apt-get "${wait[@]}" install -y -qq --no-install-recommends "${missing[@]}"
