"""Lists RDMA devices without a library: where they are, as NCCL and uccl ask, and their counters."""

import stat
from pathlib import Path


def text(file):
    return file.read_text().strip()


for device in sorted(Path("/sys/class/infiniband").iterdir()):
    port = device / "ports" / "1"
    print(f"{device.name}: {text(port / 'state')}, {text(port / 'gids' / '0')}")
    place = (device / "device").resolve(strict=True)
    print(f"at {place}")
    print(*(f"{name} {text(place / name)}" for name in ("vendor", "device", "class", "numa_node")))
    print(f"driver {(place / 'driver').resolve().name}")
    listed = Path("/sys/bus/pci/devices") / place.name
    assert listed.resolve(strict=True) == place, listed
    counters = {file.name: int(text(file)) for file in (port / "hw_counters").iterdir()}
    print(f"{len(counters)} counters, {counters['tx_pkts']} packets sent")

for verbs in sorted(Path("/sys/class/infiniband_verbs").glob("uverbs*")):
    assert (Path("/sys/class/infiniband") / text(verbs / "ibdev")).exists(), verbs
    node = Path("/dev/infiniband") / verbs.name
    if stat.S_ISCHR(node.stat().st_mode):
        print(f"node {node} is a character device")
