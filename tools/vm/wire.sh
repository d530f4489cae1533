#!/bin/bash
# wire.sh N: a wire between two interfaces, wire(2N) and wire(2N+1), each with a soft-RoCE device, rxe(2N) and rxe(2N+1), and an address,
# 10.99.N.1 and 10.99.N.2.
#
# Soft-RoCE of this kernel knows no network namespaces, so both ends are addresses of one machine, which would deliver to itself without
# the wire. Routes that name the interface that the sender is bound to come before those of own addresses.
set -e
n=$1
near=wire$((2 * n)) far=wire$((2 * n + 1))
near_mac=02:99:00:00:0$n:01 far_mac=02:99:00:00:0$n:02
near_ip=10.99.$n.1 far_ip=10.99.$n.2
ip link add $near address $near_mac type veth peer name $far address $far_mac
ip addr add $near_ip/24 dev $near
ip addr add $far_ip/24 dev $far
for interface in $near $far; do
    echo 1 >/proc/sys/net/ipv4/conf/$interface/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$interface/rp_filter
    # Room for packets of 4 KiB of data.
    ip link set $interface mtu 4200 up
done
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
ip neigh add $far_ip lladdr $far_mac dev $near nud permanent
ip neigh add $near_ip lladdr $near_mac dev $far nud permanent
ip route add $far_ip dev $near src $near_ip table $((100 + 2 * n))
ip route add $near_ip dev $far src $far_ip table $((101 + 2 * n))
ip rule add pref 1 oif $near to $far_ip lookup $((100 + 2 * n))
ip rule add pref 2 oif $far to $near_ip lookup $((101 + 2 * n))
if ip rule del pref 0 2>/dev/null; then ip rule add pref 9 lookup local; fi
rdma link add rxe$((2 * n)) type rxe netdev $near
rdma link add rxe$((2 * n + 1)) type rxe netdev $far
