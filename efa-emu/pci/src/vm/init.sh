#!/usr/bin/busybox sh
# The first program of a guest: loads the driver, runs the guest's command, and says how it ended.
# The kernel sets `guest` to the number of the guest.
/usr/bin/busybox --install -s /applets
[ -e /bin/sh ] || /usr/bin/busybox ln -s busybox /bin/sh
export PATH=/usr/bin:/usr/sbin:/applets HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
hostname "vm$guest"
while read -r module; do
  insmod "/modules/$module"
done </modules/order
ip link set lo up
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.2.2
ip address add "192.168.77.$guest/24" dev eth1 2>/dev/null && ip link set eth1 up
# The second serial line is the command's, without what the kernel says.
stty -F /dev/ttyS1 raw -echo
cd /root
exec >/dev/ttyS1 2>&1 </dev/ttyS1
# After a reboot the command runs again.
echo 'efa-emu-vm: boots'
read -r boot
export boot
exec </dev/null
echo 'efa-emu-vm: runs'
sh "/commands/$guest"
printf '\nefa-emu-vm: exit %s\n' $?
poweroff -f
