# Prepares the tests of rdma-core's Python bindings, which Debian's package `rdma-core` has compressed. They ask `rdma`
# for the device's network interface, and it asks the kernel: here a script answers as iproute2's does on an instance with
# one EFA device.
# usage: sh pyverbs.sh ROOT-OF-PACKAGES DIRECTORY DEVICE
set -eu
lacks() { echo "$1 is not there (Debian package $2)"; exit 77; }
tests=$1/usr/share/doc/rdma-core/tests
[ -f "$tests/run_tests.py" ] || lacks usr/share/doc/rdma-core/tests rdma-core
[ -d "$1/usr/lib/python3/dist-packages/pyverbs" ] || lacks "Python module pyverbs" python3-pyverbs
cd "$2"
cp -RL "$tests" tests
find tests -name '*.gz' -exec gunzip {} +
mkdir bin
cat > bin/rdma << END
#!/bin/sh
echo '[{"ifname":"$3","port":1,"state":"ACTIVE","physical_state":"LINK_UP"}]'
END
chmod +x bin/rdma
