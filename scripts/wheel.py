"""Makes a Python wheel (PEP 427) of a staged installation: no Python in it, `pip install` puts the files below the
environment's prefix as they are staged.

usage: wheel.py STAGE FILE     the file's name has version and platform (PEP 427): NAME-VERSION-TAG.whl
"""

import base64
import hashlib
import os
import sys
import time
import zipfile
from pathlib import Path

SUMMARY = "A software EFA device for unmodified programs, and the conformance suite of the EFA RDM protocol"


def entries(stage, data):
    """Names in the wheel, and the files that they are. Programs go where scripts go; pip makes those executable."""
    for path in sorted(stage.rglob("*")):
        if path.is_file():
            name = path.relative_to(stage)
            place = f"scripts/{name.name}" if name.parts[0] == "bin" else f"data/{name.as_posix()}"
            yield f"{data}/{place}", path


def metadata(version, stage):
    readme = (stage / "share/doc/efa-rdm/README.md").read_text()
    return f"""\
Metadata-Version: 2.1
Name: efa-rdm
Version: {version}
Summary: {SUMMARY}
License: MIT OR Apache-2.0, and those of linked crates: THIRD-PARTY-LICENSES
Keywords: efa,rdma,libfabric,mpi
Classifier: Environment :: Console
Classifier: Intended Audience :: Developers
Classifier: License :: OSI Approved :: Apache Software License
Classifier: License :: OSI Approved :: MIT License
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: System :: Networking
Description-Content-Type: text/markdown

{readme}"""


def main():
    stage, target = Path(sys.argv[1]), Path(sys.argv[2])
    name, version, tag = target.stem.split("-", 2)
    info = f"{name}-{version}.dist-info"
    stamp = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
    record = []

    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:

        def add(name, content, mode):
            entry = zipfile.ZipInfo(name, stamp)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | mode) << 16
            wheel.writestr(entry, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")

        for entry, path in entries(stage, f"{name}-{version}.data"):
            add(entry, path.read_bytes(), path.stat().st_mode & 0o777)
        for license in ["LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY-LICENSES"]:
            add(f"{info}/licenses/{license}", (stage / "share/doc/efa-rdm" / license).read_bytes(), 0o644)
        add(f"{info}/METADATA", metadata(version, stage).encode(), 0o644)
        root_is_purelib = "false"
        wheel_file = f"Wheel-Version: 1.0\nGenerator: efa-rdm\nRoot-Is-Purelib: {root_is_purelib}\nTag: {tag}\n"
        add(f"{info}/WHEEL", wheel_file.encode(), 0o644)
        add(f"{info}/RECORD", "".join(record + [f"{info}/RECORD,,\n"]).encode(), 0o644)


main()
