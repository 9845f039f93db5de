#!/bin/sh
# The guest's second program, with the host's root file system: what a system needs to run a command, the wire, the
# command itself. Runs from the exchange folder, as /mnt/stage.sh.
#   /mnt/started   made before the command can have had any effect: a boot that fails earlier may be tried again
#   /mnt/status    the command's exit status, written last
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs -o mode=755 run /run
mkdir /run/tmp
export TMPDIR=/run/tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
for link in fd:/proc/self/fd stdin:/proc/self/fd/0 stdout:/proc/self/fd/1 stderr:/proc/self/fd/2; do
    ln -sfn "${link#*:}" "/dev/${link%%:*}"
done
echo rdma-vm > /proc/sys/kernel/hostname
ip link set lo up
ulimit -l unlimited
ulimit -n 65536

# Linux 6.1 drops packets of Soft-RoCE beyond its default of 1000, and a READ then takes seconds.
echo 100000 > /proc/sys/net/core/netdev_max_backlog
echo 16777216 > /proc/sys/net/core/rmem_max
echo 16777216 > /proc/sys/net/core/wmem_max
sh /mnt/wire.sh make > /mnt/wire 2>&1 || echo "s3verbs: the wire failed" > /dev/kmsg

for port in /sys/class/virtio-ports/*; do
    read -r name < "$port/name"
    [ "$name" = output ] && output=/dev/${port##*/}
done
# A write to the port is cut at 32 KiB, which an unbuffered program takes for all of it; cat tries again.
mkfifo /run/output
cat < /run/output > "$output" &
reader=$!
: > /mnt/started
setsid sh /mnt/command.sh < /dev/null > /run/output 2>&1
status=$?
# A process that the command left behind may hold the pipe.
left=50
while kill -0 "$reader" 2> /dev/null && [ "$left" -gt 0 ]; do
    left=$((left - 1))
    sleep 0.1
done
dmesg > /mnt/kernel.log
echo "$status" > /mnt/status.part
mv /mnt/status.part /mnt/status
sync
echo 1 > /proc/sys/kernel/sysrq
echo b > /proc/sysrq-trigger
sleep 60
