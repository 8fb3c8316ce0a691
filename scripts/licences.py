"""Writes to standard output what is linked into the programs and libraries of packages besides their own code: name,
version, licence and authors of each crate, the notices of Rust's standard library, and the texts of all licences.

usage: licences.py TRIPLE PACKAGE...     the target, and the packages of the workspace here that are built for it
"""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

NOTICE = re.compile(r"(un)?licen[cs]e|copying|copyright|notice|authors|patents", re.IGNORECASE)
SOURCES = {".rs", ".c", ".h", ".S", ".py"}

# What a licence says, if the crate that it is for does not bring it: our own files have the same words.
STANDARD = {
    "MIT": (ROOT / "LICENSE-MIT", "Permission is hereby granted"),
    "Apache-2.0": (ROOT / "LICENSE-APACHE", ""),
}

# Rust's own list, and Debian's, whose packages of Rust have no other.
OF_THE_STANDARD_LIBRARY = ["doc/rust/COPYRIGHT-library.html", "doc/libstd-rust-dev/copyright"]


class Texts:
    """The texts, each once, however many crates have it and break its lines. A number stands for it."""

    def __init__(self):
        self.texts = {}

    def number(self, text):
        words = " ".join(text.split())
        number, _ = self.texts.setdefault(words, (len(self.texts) + 1, text))
        return number

    def numbered(self):
        for number, text in self.texts.values():
            yield number, "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


class Page(HTMLParser):
    """The words of Rust's list. What stands in it as it was written is a text."""

    def __init__(self, texts):
        super().__init__()
        self.texts = texts
        self.words = []
        self.text = None

    def handle_starttag(self, tag, _):
        if tag == "pre":
            self.text = ""

    def handle_endtag(self, tag):
        if tag == "pre":
            self.words.append(f"[{self.texts.number(self.text)}]\n")
            self.text = None

    def handle_data(self, data):
        if self.text is None:
            self.words.append(data)
        else:
            self.text += data


def fail(reason):
    sys.exit(f"licences.py: {reason}")


def output(*command):
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        fail(f"{' '.join(command[:2])} failed")
    return ended.stdout


def linked(triple, names):
    """The crates that are linked in, with the features that they have there: not what only builds or tests them."""
    options = ["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"]
    packages = [f"--package={name}" for name in names]
    tree = output("cargo", "tree", "--locked", "--target", triple, *options, *packages)
    crates = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    metadata = json.loads(
        output("cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={triple}")
    )
    of_others = [package for package in metadata["packages"] if package["id"] not in metadata["workspace_members"]]
    found = [package for package in of_others if (package["name"], f"v{package['version']}") in crates]
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def notices(package):
    """Names and texts of the crate's own notices, also of those that it has from others."""
    directory = Path(package["manifest_path"]).parent
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        is_notice = NOTICE.match(path.name) or name.as_posix() == package["license_file"]
        if is_notice and path.is_file() and path.suffix not in SOURCES:
            yield name.as_posix(), path.read_text()


def has_licence(names):
    """Whether there is more than lists of authors and notices of what a crate has from others."""
    own = [name for name in names if "/" not in name]
    return any(re.match("(un)?licen[cs]e|copying", name, re.IGNORECASE) for name in own)


def standard(package):
    """Name and text of the licence of a crate that does not bring it; its authors are named beside it."""
    expression = package["license"] or "no licence"
    for licence in re.split(" OR |/", expression):
        if licence in STANDARD:
            path, begin = STANDARD[licence]
            text = path.read_text()
            return licence, text[text.index(begin) :]
    fail(
        f"{package['name']} {package['version']} has no file with its licence ({expression}), whose text is not known "
        "here: add it to STANDARD in scripts/licences.py, or do without the crate"
    )


def entry(package, texts):
    found = list(notices(package))
    if not has_licence([name for name, _ in found]) and not package["license_file"]:
        found.append(standard(package))
    lines = [
        f"{package['name']} {package['version']}",
        f"  licence: {package['license'] or package['license_file']}",
        f"  authors: {', '.join(package['authors']) or 'as its texts say'}",
        *(f"  {name} [{texts.number(text)}]" for name, text in found),
    ]
    return "\n".join(lines)


def standard_library(texts):
    compiler = os.environ.get("RUSTC", "rustc")
    share = Path(output(compiler, "--print", "sysroot").strip()) / "share"
    release = " ".join(output(compiler, "--version").split()[:2])
    path = next((share / name for name in OF_THE_STANDARD_LIBRARY if (share / name).exists()), None)
    if path is None:
        words = "licence: MIT OR Apache-2.0, The Rust Project Developers; the toolchain has no list of its notices"
    elif path.suffix == ".html":
        page = Page(texts)
        page.feed(path.read_text())
        lines = [line.strip() for line in "".join(page.words).splitlines()]
        words = "\n".join(line for line in lines if line)
    else:
        words = f"{path.name} [{texts.number(path.read_text())}]"
    return f"Rust's standard library, of {release}\n" + "\n".join(f"  {line}" for line in words.splitlines())


def main():
    triple, *names = sys.argv[1:]
    texts = Texts()
    entries = [entry(package, texts) for package in linked(triple, names)]
    entries.append(standard_library(texts))
    rule = "-" * 80
    print(f"The programs and libraries of efa-rdm for {triple} are linked with these crates, and with")
    print("Rust's standard library. A number in brackets stands for a text below.\n")
    print("\n\n".join(entries))
    for number, text in texts.numbered():
        print(f"\n{rule}\n[{number}]\n{rule}\n\n{text}")


main()
