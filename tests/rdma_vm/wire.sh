#!/bin/sh
# Two RoCE devices with a wire between them, in one network namespace.
#   wire.sh make    rxe0 on rva, 10.77.0.1   <-- veth -->   rxe1 on rvb, 10.77.0.2
#   wire.sh down    pull the plug of rvb
#   wire.sh up      put it in again
# Both addresses are local, so the kernel would carry packets between them over lo. Instead of the rule that finds local
# addresses first, there are rules that do so only for what comes in by the wire, and that send the rest out over it.
set -e

setting() {
    echo "$2" > "/proc/sys/net/ipv4/conf/$1"
}

# A reply to ARP comes so soon over veth that the kernel's ib_addr misses it and waits until its time is up.
reach() {
    ip neigh replace 10.77.0.2 lladdr 02:00:0a:4d:00:02 dev rva nud permanent
    ip neigh replace 10.77.0.1 lladdr 02:00:0a:4d:00:01 dev rvb nud permanent
    ip route replace 10.77.0.2 dev rva src 10.77.0.1 table 771
    ip route replace 10.77.0.1 dev rvb src 10.77.0.2 table 772
}

end() {
    # device, address, address of the other end, table
    setting "$1/accept_local" 1
    setting "$1/rp_filter" 0
    setting "$1/arp_ignore" 1
    setting "$1/arp_announce" 2
    ip addr add "$2/24" dev "$1"
    ip link set "$1" mtu 9000 up
    ip rule add pref 1 iif "$1" lookup local
    ip rule add pref 2 from "$2" to "$3" lookup "$4"
}

case $1 in
make)
    ip link add rva address 02:00:0a:4d:00:01 type veth peer name rvb address 02:00:0a:4d:00:02
    setting all/rp_filter 0
    end rva 10.77.0.1 10.77.0.2 771
    end rvb 10.77.0.2 10.77.0.1 772
    reach
    ip rule add pref 9 lookup local
    ip rule del pref 0
    rdma link add rxe0 type rxe netdev rva
    rdma link add rxe1 type rxe netdev rvb
    # The GID of an IPv4 address appears a moment after its device. It ends in the address.
    for end in rxe0:0a4d:0001 rxe1:0a4d:0002; do
        left=50
        until grep -qs "ffff:${end#*:}" "/sys/class/infiniband/${end%%:*}"/ports/1/gids/[0-7]; do
            left=$((left - 1))
            [ "$left" -gt 0 ]
            sleep 0.1
        done
    done
    ;;
down)
    ip link set rvb down
    ;;
up)
    # The kernel dropped routes and neighbors with the device.
    ip link set rvb up
    reach
    ;;
*)
    echo "wire.sh make|down|up" >&2
    exit 2
    ;;
esac
