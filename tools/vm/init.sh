#!/bin/busybox sh
# The first process of the guest. The host's files are the lower layer of a file system in memory; `exchange` is a directory that both
# sides write to: it has the command and what is to be writable, and gets the exit code.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read -r module; do $b insmod "/modules/$module"; done </modules/order

share() { # TAG FOLDER OPTIONS
    $b mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2"
}
share exchange /exchange cache=none
share root /lower ro,cache=loose
$b mount -t tmpfs ram /ram
$b mkdir /ram/upper /ram/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/ram/upper,workdir=/ram/work overlay /joined
$b mount -t proc proc /joined/proc
$b mount -t sysfs sys /joined/sys
$b mount --move /dev /joined/dev
for folder in dev/shm run; do
    $b mkdir -p "/joined/$folder"
    $b mount -t tmpfs ram "/joined/$folder"
done
$b mkdir -p /joined/dev/pts
$b mount -t devpts devpts /joined/dev/pts
$b ln -s /proc/self/fd /joined/dev/fd
$b mkdir /joined/run/exchange
$b mount --bind /exchange /joined/run/exchange
i=0
while read -r folder; do
    $b mkdir -p "/joined$folder"
    share "writable$i" "/joined$folder" cache=none
    i=$((i + 1))
done </exchange/writable
$b chroot /joined /bin/bash /run/exchange/command >/joined/dev/vport0p1 2>/joined/dev/vport0p2 </joined/dev/null
echo $? >/exchange/code
$b poweroff -f
