"""Mooncake's transfer engine over its transport for EFA: rank 1 writes into the memory of rank 0, and reads it back.

usage, as two ranks of an Open MPI job: mooncake_pair.py DIRECTORY, which both ranks see
"""

import sys

import numpy
from mooncake.engine import TransferEngine

from ranks import LENGTH, PATTERN, RANK, Files, expect

files = Files(sys.argv[1])
engine = TransferEngine()
if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "efa", "") != 0:
    raise SystemExit("the transport for EFA did not start")
buffer = numpy.zeros(LENGTH, dtype=numpy.uint8)
address = buffer.ctypes.data
if engine.register_memory(address, LENGTH) != 0:
    raise SystemExit("memory was not registered")
if RANK == 0:
    files.put("target", f"127.0.0.1:{engine.get_rpc_port()} {address}".encode())
    files.get("end")
    expect("written", buffer)
else:
    target, remote = files.get("target").decode().split()
    buffer[:] = PATTERN
    if engine.transfer_sync_write(target, address, int(remote), LENGTH) != 0:
        raise SystemExit("the write failed")
    buffer[:] = 0
    if engine.transfer_sync_read(target, address, int(remote), LENGTH) != 0:
        raise SystemExit("the read failed")
    expect("read", buffer)
    files.put("end", b"")
