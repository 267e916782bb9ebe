# SPDX-License-Identifier: Apache-2.0

"""Source of the site, for scripts/site.sh and mkdocs.yml.

    scripts/site.py DIRECTORY

Copies every Markdown file of this repository into DIRECTORY, with the files that they link to, and writes a page for
each public Python module. As a hook of mkdocs, takes the order of the pages from docs/README.md.
"""

import pathlib
import re
import shutil
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^()\s#]+)(?:#[^()\s]*)?\)")
ROLE = re.compile(r":(?:class|attr|func|meth|mod|data):<code>~?")
MODULES = (
    "sparsecast",
    "sparsecast.torch",
    "sparsecast.control",
    "sparsecast.errors",
    "sparsecast.stores",
    "sparsecast.relay",
    "sparsecast.megatron",
    "sparsecast.transforms",
    "sparsecast.adapters",
    "sparsecast.record",
    "sparsecast.alarms",
)


def linked(page: pathlib.Path) -> set[pathlib.Path]:
    """Returns the files of the repository that a page links to; fails for one that does not exist."""
    found = set()
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        path = (page.parent / target).resolve()
        if not path.is_relative_to(REPOSITORY) or not path.exists():
            raise SystemExit(f"{page.relative_to(REPOSITORY)} links to {target}, which does not exist")
        found.add(path)
    return found


def write_source(directory: pathlib.Path) -> None:
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    pages = [REPOSITORY / name for name in names.stdout.split() if not name.startswith(".")]
    for path in {*pages, *(target for page in pages for target in linked(page))}:
        copy = directory / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            shutil.copyfile(path, copy)
    for module in MODULES:
        page = directory / "api" / "python" / f"{module}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"# {module}\n\n::: {module}\n", encoding="utf-8")


def on_config(config):  # noqa: ANN001, ANN201
    """Begins with the README, then has the sections of docs/README.md in its order, then the interfaces."""
    index = (REPOSITORY / "docs" / "README.md").read_text(encoding="utf-8")
    config.nav = [{"sparsecast": "README.md"}]
    for section in index.split("\n## ")[2:]:
        targets = [target for target in LINK.findall(section) if target.endswith(".md")]
        pages = [str((REPOSITORY / "docs" / target).resolve().relative_to(REPOSITORY)) for target in targets]
        config.nav.append({section.partition("\n")[0]: pages})
    python = [{module: f"api/python/{module}.md"} for module in MODULES]
    config.nav.append(
        {
            "Interfaces": [
                *python,
                {"C++ classes": "cpp/annotated.md"},
                {"C++ functions": "cpp/namespacesparsecast.md"},
                {"C": "cpp/sparsecast_8h.md"},
            ]
        }
    )
    return config


def on_page_content(html, **_):  # noqa: ANN001, ANN003, ANN201
    """Leaves the name alone of what a docstring refers to by a role of Sphinx."""
    return ROLE.sub("<code>", html)


if __name__ == "__main__":
    write_source(pathlib.Path(sys.argv[1]))
