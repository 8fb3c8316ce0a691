"""What two ranks of an Open MPI job tell each other in files of a directory that both see."""

import os
import time

import numpy

RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])

LENGTH = 4 << 20

PATTERN = (numpy.arange(LENGTH) * 7 % 251 + 3).astype(numpy.uint8)


class Files:
    def __init__(self, directory):
        self.directory = directory

    def put(self, name, data):
        path = os.path.join(self.directory, name)
        with open(path + ".new", "wb") as file:
            file.write(data)
        os.rename(path + ".new", path)

    def get(self, name):
        path = os.path.join(self.directory, name)
        while not os.path.exists(path):
            time.sleep(0.02)
        with open(path, "rb") as file:
            return file.read()


def expect(what, buffer):
    wrong = int((buffer != PATTERN).sum())
    print(f"{what}: {LENGTH} bytes, {wrong} wrong", flush=True)
    if wrong:
        raise SystemExit(1)
