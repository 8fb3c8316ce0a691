"""Makes the links of staged documents lead to what is staged. In the repository the documents lie beside everything
else. Installed, they are in share/doc/efa-rdm and the data in share/efa-rdm, and most of the sources are nowhere: links
to data are turned to where it is, and in the place of links to what is not installed stands its name in the repository.

usage: links.py STAGE
"""

import os
import re
import sys
from pathlib import Path

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def installed(path, trees):
    """Where a path of the repository is installed."""
    places = (tree / path for tree in trees)
    return next((place for place in places if place.exists()), None)


def replaced(text, turn):
    """A text in which `turn` has replaced the links outside of blocks of code."""
    lines = []
    is_block = False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("```"):
            is_block = not is_block
        lines.append(line if is_block else LINK.sub(turn, line))
    return "".join(lines)


def is_elsewhere(target):
    """Whether a link leads to another place than a file of the repository."""
    return not target or target.startswith("#") or re.match(r"[a-z]+:", target)


def turned(document, tree, trees):
    """The text of a document of one of the trees, with links that lead to what is installed."""
    here = document.relative_to(tree).parent

    def turn(link):
        image, words, target = link.groups()
        if is_elsewhere(target):
            return link[0]
        target, mark, fragment = target.partition("#")
        name = os.path.normpath(here / target)
        place = installed(name, trees)
        if place == tree / name:
            return link[0]
        if place is not None:
            return link[0].replace(f"]({target}", f"]({os.path.relpath(place, document.parent)}", 1)
        if image:
            sys.exit(f"links.py: {document}: the picture {name} is not installed")
        is_named = words.strip("`") in (name, os.path.basename(name))
        return f"`{name}`" if is_named else f"{words} (`{name}`)"

    return replaced(document.read_text(), turn)


def main():
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: links.py STAGE, a directory with share/doc/efa-rdm (`scripts/dist` makes one)")
    stage = Path(sys.argv[1])
    trees = [stage / "share/doc/efa-rdm", stage / "share/efa-rdm"]
    for tree in trees:
        for document in tree.rglob("*.md"):
            document.write_text(turned(document, tree, trees))


if __name__ == "__main__":
    main()
