#!/bin/busybox sh
# The guest's first program, from the initramfs: the host's root file system, read-only, under a file system in memory.
# What the guest writes is lost, except below /mnt, which is the runner's exchange folder.
/bin/busybox --install -s /bin
export PATH=/bin

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev

load() {
    while read -r module; do
        insmod "/modules/$module" || echo "s3verbs: insmod $module failed" > /dev/kmsg
    done < "/modules/$1.order"
}

load root
over_virtio=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "ro,cache=loose,$over_virtio" host /host
mount -t tmpfs -o mode=755,size=75% memory /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work overlay /guest
load rdma

for tree in proc sys dev; do
    mount --move "/$tree" "/guest/$tree"
done
mount -t 9p -o "rw,cache=none,$over_virtio" exchange /guest/mnt
exec switch_root /guest /bin/sh /mnt/stage.sh
