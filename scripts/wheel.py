"""Makes a Python wheel (PEP 427) of a staged installation: no Python in it, `pip install` puts the files below the
environment's prefix as they are staged.

usage: wheel.py STAGE FILE     the file's name has version and platform (PEP 427): NAME-VERSION-TAG.whl
With EFA_RDM_REPOSITORY, an address, and EFA_RDM_REVISION, a commit of it, the description has links.
"""

import base64
import hashlib
import os
import sys
import time
import zipfile
from pathlib import Path

from links import is_elsewhere, replaced

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = os.environ.get("EFA_RDM_REPOSITORY", "").rstrip("/")
SUMMARY = "A software EFA device for unmodified programs, and the conformance suite of the EFA RDM protocol"


def entries(stage, data):
    """Names in the wheel, and the files that they are. Programs go where scripts go; pip makes those executable."""
    for path in sorted(stage.rglob("*")):
        if path.is_file():
            name = path.relative_to(stage)
            place = f"scripts/{name.name}" if name.parts[0] == "bin" else f"data/{name.as_posix()}"
            yield f"{data}/{place}", path


def description():
    """The README, for a page that has no files beside it: its links lead to the repository, or there are none."""

    def turn(link):
        image, words, target = link.groups()
        if is_elsewhere(target):
            return link[0]
        if not REPOSITORY:
            return words
        kind = "raw" if image else "blob"
        return f"{image}[{words}]({REPOSITORY}/{kind}/{os.environ['EFA_RDM_REVISION']}/{target})"

    return replaced((ROOT / "README.md").read_text(), turn)


def metadata(version):
    # No Requires-Python: there is no Python in it, and the tag says what the binaries run on.
    project = f"Project-URL: Repository, {REPOSITORY}\n" if REPOSITORY else ""
    return f"""\
Metadata-Version: 2.1
Name: efa-rdm
Version: {version}
Summary: {SUMMARY}
License: MIT OR Apache-2.0, and those of linked crates: THIRD-PARTY-LICENSES
{project}Keywords: efa,rdma,libfabric,mpi
Classifier: Environment :: Console
Classifier: Intended Audience :: Developers
Classifier: License :: OSI Approved :: Apache Software License
Classifier: License :: OSI Approved :: MIT License
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: System :: Networking
Description-Content-Type: text/markdown

{description()}"""


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
        add(f"{info}/METADATA", metadata(version).encode(), 0o644)
        root_is_purelib = "false"
        wheel_file = f"Wheel-Version: 1.0\nGenerator: efa-rdm\nRoot-Is-Purelib: {root_is_purelib}\nTag: {tag}\n"
        add(f"{info}/WHEEL", wheel_file.encode(), 0o644)
        add(f"{info}/RECORD", "".join(record + [f"{info}/RECORD,,\n"]).encode(), 0o644)


main()
