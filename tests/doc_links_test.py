#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""The documents hold together: links and anchors resolve, paths that they name exist, prose lines fit 120 columns, the
index names every document, and the README stays short.

    tests/doc_links_test.py [unittest arguments]
"""

import pathlib
import re
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
TOP_LEVEL = ("README.md", "CONTRIBUTING.md", "TESTING.md", "CHANGELOG.md", "SECURITY.md")
MOST_README_LINES = 119
MOST_COLUMNS = 120

FENCE = re.compile(r"^\s*(```|~~~)")
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$")
LINK = re.compile(r"\]\(([^()\s]+)\)")  # The text may begin on the line before.
CODE = re.compile(r"`([^`]+)`")
# A path of this repository; what is generated (build/, .venv/) is not looked at.
PATH = re.compile(
    r"^(src|cuda|include|tools|python|tests|mpi_tests|bench|fuzz|examples|scripts|docs|layouts|testdata"
    r"|cmake)/[\w./*-]*$"
)
PUBLIC_HEADER = re.compile(r"^sparsecast/\w+\.(hpp|h)$")
# LAYOUT.json, FILE and the like stand for a reader's own file.
PLACEHOLDER = re.compile(r"^(?!README|TESTING|CHANGELOG|CONTRIBUTING)[A-Z][A-Z_]+(\.\w+)?$")


def documents():
    top = [REPOSITORY / name for name in TOP_LEVEL if (REPOSITORY / name).exists()]
    return top + sorted((REPOSITORY / "docs").rglob("*.md"))


def records():
    """Documents that lie beside what they are about; what they name may be of another time."""
    folders = [REPOSITORY / name for name in ("bench", "examples", "testdata")]
    return [path for folder in folders for path in sorted(folder.rglob("*.md"))]


def prose(path):
    """(line number, line) of all lines outside fenced blocks."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(path):
    """The names that GitHub gives to the headings of a document."""
    names = set()
    for _, line in prose(path):
        heading = HEADING.match(line)
        if not heading:
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[2]).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        unique, repeats = name, 0
        while unique in names:
            repeats += 1
            unique = f"{name}-{repeats}"
        names.add(unique)
    return names


def named_paths(line):
    """Paths of the repository that a line names in code spans."""
    for span in CODE.findall(line):
        word = span.split()[0].rstrip(".,:;")
        word = re.sub(r":\d+$", "", word)
        if PUBLIC_HEADER.match(word):
            word = "include/" + word
        if PATH.match(word) and not any(PLACEHOLDER.match(part) for part in word.split("/")):
            yield word


def is_there(word):
    return any(REPOSITORY.glob(word.rstrip("/"))) if "*" in word else (REPOSITORY / word).exists()


class Documents(unittest.TestCase):
    def check(self, problems):
        self.assertFalse(problems, "\n" + "\n".join(problems))

    def where(self, path, number):
        return f"{path.relative_to(REPOSITORY)}:{number}"

    def test_links_and_anchors_resolve(self):
        problems = []
        for path in documents() + records():
            for number, line in prose(path):
                for link in LINK.findall(CODE.sub("", line)):
                    if re.match(r"[a-z]+:", link):
                        continue
                    file, _, anchor = link.partition("#")
                    target = (path.parent / file).resolve() if file else path
                    if not target.exists():
                        problems.append(f"{self.where(path, number)}: there is no {file}")
                    elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                        problems.append(f"{self.where(path, number)}: {target.name} has no heading #{anchor}")
        self.check(sorted(set(problems)))

    def test_paths_that_are_named_exist(self):
        problems = []
        for path in documents():
            if path.name == "CHANGELOG.md":
                continue  # It names what was, too.
            for number, line in prose(path):
                problems += [
                    f"{self.where(path, number)}: there is no {word}"
                    for word in named_paths(line)
                    if not is_there(word)
                ]
        self.check(problems)

    def test_prose_fits_the_width(self):
        problems = []
        for path in documents():
            for number, line in prose(path):
                # Tables, pictures and indented code have no place to break.
                if len(line) > MOST_COLUMNS and not re.match(r"\s*\||!\[| {4}", line):
                    problems.append(f"{self.where(path, number)}: {len(line)} columns")
        self.check(problems)

    def test_the_index_names_every_document(self):
        index = REPOSITORY / "docs" / "README.md"
        linked = {
            (index.parent / link.partition("#")[0]).resolve() for _, line in prose(index) for link in LINK.findall(line)
        }
        self.check(
            [
                f"docs/README.md does not name {path.relative_to(REPOSITORY)}"
                for path in documents()
                if path.parent != REPOSITORY and path != index and path not in linked
            ]
        )

    def test_the_readme_is_short(self):
        lines = (REPOSITORY / "README.md").read_text(encoding="utf-8").count("\n")
        self.assertLessEqual(lines, MOST_README_LINES)

    def test_the_readme_has_a_program_to_run(self):
        # python/tests/install/run.sh runs the first block of Python.
        text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
        block = re.search(r"^```python\n(.*?)^```$", text, re.M | re.S)
        self.assertIsNotNone(block)
        compile(block[1], "README.md", "exec")


if __name__ == "__main__":
    unittest.main(verbosity=2)
