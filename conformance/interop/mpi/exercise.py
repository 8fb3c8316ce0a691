"""An mpi4py program that verifies what it receives. Any MPI library, any number of ranks from 2.

Objects go pickled (with a length first, then the content), arrays as they are. Rank 0 prints a line
for each part; a wrong value ends the job with status 1.
"""

import array
import sys
import traceback

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size


def content(key, length):
    """Bytes that differ for shifted, swapped and stale data."""
    block = bytes((key * 37 + i * 11 + (i >> 8) * 7) & 0xFF for i in range(1021))
    return (block * (length // len(block) + 1))[:length]


def expect(condition, what):
    if not condition:
        raise AssertionError(f"rank {rank}: {what}")


def p2p():
    following, previous = (rank + 1) % size, (rank - 1) % size
    for length in (0, 1, 100, 8000, 65536, 1 << 20, 8 << 20):
        received, mine = bytearray(length), content(rank, length)
        requests = [
            world.Irecv([received, MPI.BYTE], previous, 1),
            world.Isend([mine, MPI.BYTE], following, 1),
        ]
        MPI.Request.Waitall(requests)
        expect(received == content(previous, length), f"{length} bytes from {previous}")
    for length in (0, 10, 100_000):
        thing = {"from": rank, "text": "x" * length, "list": list(range(length // 10))}
        other = world.sendrecv(thing, following, 2, None, previous, 2)
        expect(other == {**thing, "from": previous}, f"object of {length} from {previous}")


def collectives():
    for root in range(size):
        expect(world.bcast(("word", root) if rank == root else None, root) == ("word", root), "bcast")
        gathered = world.gather(rank * 3, root)
        expect(gathered == ([r * 3 for r in range(size)] if rank == root else None), "gather")
        part = world.scatter([r * r for r in range(size)] if rank == root else None, root)
        expect(part == rank * rank, "scatter")
    expect(world.allreduce(rank + 1) == size * (size + 1) // 2, "allreduce of objects")
    expect(world.alltoall([(rank, r) for r in range(size)]) == [(r, rank) for r in range(size)], "alltoall")
    for count in (1, 3000, 200_000):
        numbers = array.array("d", [rank + i for i in range(count)])
        sums = array.array("d", bytes(8 * count))
        world.Allreduce([numbers, MPI.DOUBLE], [sums, MPI.DOUBLE])
        expect(all(sums[i] == size * (size - 1) / 2 + size * i for i in range(count)), "Allreduce")


def rma():
    following, previous = (rank + 1) % size, (rank - 1) % size
    length = 100_000
    window = MPI.Win.Allocate(length, 1, comm=world)
    memory = memoryview(window).cast("B")
    # It must live until the fence: the library reads it then.
    mine = content(rank, length)
    window.Fence()
    window.Put([mine, MPI.BYTE], following)
    window.Fence()
    expect(memory[:length] == content(previous, length), "Put")
    fetched = bytearray(length)
    window.Fence()
    window.Get([fetched, MPI.BYTE], following)
    window.Fence()
    expect(fetched == content(rank, length), "Get")
    memory.release()
    window.Free()

    counter = array.array("q", [0])
    window = MPI.Win.Create(counter, 8, comm=world)
    one, before = array.array("q", [1]), array.array("q", [0])
    for _ in range(20):
        window.Lock(0)
        window.Fetch_and_op([one, MPI.INT64_T], [before, MPI.INT64_T], 0)
        window.Unlock(0)
    world.Barrier()
    window.Lock(0)
    window.Get([before, MPI.INT64_T], 0)
    window.Unlock(0)
    expect(before[0] == 20 * size, f"counter is {before[0]}")
    world.Barrier()
    window.Free()


def main():
    expect(size > 1, "one rank cannot talk: start at least two")
    for part in (p2p, collectives, rma):
        start = MPI.Wtime()
        part()
        world.Barrier()
        if rank == 0:
            print(f"{part.__name__}: verified on {size} ranks in {MPI.Wtime() - start:.1f} s", flush=True)


try:
    main()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    world.Abort(1)
