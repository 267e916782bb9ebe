# SPDX-License-Identifier: Apache-2.0
"""Programs that tests put in the place of others."""

import os
import pathlib


def write_program(directory, name, body):
    """Writes a bash script that can be run as `name`."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / name
    file.write_text("#!/usr/bin/env bash\n" + body + "\n", encoding="utf-8")
    file.chmod(0o755)


def path_without(directory, *names):
    """Fills `directory` with links to every program of the PATH but those named. Returns it."""
    directory.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        if not os.path.isdir(folder):
            continue
        for entry in pathlib.Path(folder).iterdir():
            link = directory / entry.name
            if entry.name not in names and not link.is_symlink():
                link.symlink_to(entry)
    return directory
