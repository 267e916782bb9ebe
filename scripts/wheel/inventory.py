#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""inventory.py notices|sbom THIRD_PARTY CUDA: what is inside a wheel and not ours.

`notices` prints the licences, one after another; `sbom` a CycloneDX document (JSON, 1.6) that names each part with its version,
licence and package. THIRD_PARTY is what third_party.sh made; CUDA is the CUDA toolkit's version, or OFF. Run it with the Python
that has nanobind, cyclonedx-python-lib and, with CUDA, NCCL's headers.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
NVIDIA = """\
The CUDA runtime (cudart_static), CCCL's headers, and NVTX's and NCCL's headers are NVIDIA's.
The runtime is redistributed under the NVIDIA CUDA Toolkit End User License Agreement, attachment A:
https://docs.nvidia.com/cuda/eula/. CCCL, NVTX and NCCL: BSD-3-Clause, Apache-2.0 with LLVM exceptions.
"""


class Part(NamedTuple):
    """`source` parts are compiled from this Debian release's source packages, `debian` ones come from its packages."""

    title: str
    licence: str  # An SPDX expression.
    origin: str  # source, debian, pypi or cuda
    package: str


PARTS = [
    Part("fmt", "MIT", "source", "fmtlib"),
    Part("Highway", "Apache-2.0 OR BSD-3-Clause", "source", "highway"),
    Part("Zstandard", "BSD-3-Clause OR GPL-2.0-only", "source", "libzstd"),
    Part("libsodium", "ISC", "source", "libsodium"),
    Part("curl", "curl", "source", "curl"),
    Part("OpenSSL", "Apache-2.0", "debian", "libssl-dev"),
    Part("xxHash (header)", "BSD-2-Clause", "debian", "libxxhash-dev"),
    Part("JSON for Modern C++ (header)", "MIT", "debian", "nlohmann-json3-dev"),
    Part("CLI11 (header)", "BSD-3-Clause", "debian", "libcli11-dev"),
    Part("libstdc++ and libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1", "debian", "libstdc++6"),
    Part("nanobind", "BSD-3-Clause", "pypi", "nanobind"),
]
CUDA_PARTS = [
    Part("CUDA runtime", "LicenseRef-NVIDIA-CUDA-EULA", "cuda", "cudart_static"),
    Part("CCCL (headers)", "Apache-2.0 WITH LLVM-exception", "cuda", "cccl"),
    Part("NVTX (headers)", "Apache-2.0 WITH LLVM-exception", "cuda", "nvtx"),
    Part("NCCL (headers)", "BSD-3-Clause", "pypi", "nvidia-nccl-cu"),
]


def notice_of(part: Part, third_party: Path) -> str:
    """Returns the text of the part's licence. SystemExit where there is none."""
    if part.origin == "source":
        path = third_party / "licences" / part.package
    elif part.origin == "debian":
        path = Path("/usr/share/doc") / part.package / "copyright"
    else:
        files = importlib.metadata.files(part.package) or []
        path = Path(str(next(file.locate() for file in files if file.name.upper().startswith("LICENSE"))))
    if not path.is_file() or not (text := path.read_text(errors="replace")).strip():
        sys.exit(f"inventory.py: no licence of {part.title} in {path}")
    return text


def print_notices(third_party: Path, cuda: str) -> None:
    print(
        "What is inside this wheel beside sparsecast, compiled into its module and its command, and under which licences."
    )
    print("Debian's copyright files cover whole source packages: parts that they name may not be in here.\n")
    for part in PARTS:
        print(f"{'=' * 64}\n{part.title}, {version_of(part, third_party, cuda)[0]}\n{'=' * 64}")
        print(notice_of(part, third_party), end="\n\n")
    if cuda != "OFF":
        print(NVIDIA)


def version_of(part: Part, third_party: Path, cuda: str) -> tuple[str, str]:
    """Returns the part's version, and its package URL."""
    if part.origin == "cuda":
        # scripts/wheel/cuda.sh puts newer headers of NVTX into a toolkit, and their version beside it.
        newer = Path(shutil.which("nvcc") or "").resolve().parents[1] / "versions" / part.package
        if newer.is_file():
            version = newer.read_text().strip()
            return version, f"pkg:pypi/nvidia-{part.package}@{version}"
        return cuda, f"pkg:generic/nvidia/{part.package}@{cuda}"
    if part.origin == "pypi":
        package = f"{part.package}{cuda.partition('.')[0]}" if part.package.endswith("-cu") else part.package
        version = importlib.metadata.version(package)
        return version, f"pkg:pypi/{package}@{version}"
    if part.origin == "source":
        debian = (third_party / "versions" / part.package).read_text().strip()
        architecture = "source"
    else:
        query = ["dpkg-query", "-W", "-f", "${Version}", part.package]
        debian = subprocess.run(query, check=True, capture_output=True, text=True).stdout
        architecture = "amd64"
    upstream = re.sub(r"^\d+:|[+~](ds|dfsg).*$|-[^-]*$", "", debian)
    package = part.package.replace("+", "%2B")
    return upstream, f"pkg:deb/debian/{package}@{debian.replace('+', '%2B')}?arch={architecture}"


def print_sbom(third_party: Path, cuda: str) -> None:
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.contrib.this.builders import this_component
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
    from packageurl import PackageURL

    licences = LicenseFactory()

    def component(title: str, licence: str, version: str, url: str) -> Component:
        return Component(
            type=ComponentType.LIBRARY,
            name=title,
            version=version,
            licenses=[licences.make_from_string(licence)],
            purl=PackageURL.from_string(url),
            bom_ref=url,
        )

    project = (REPOSITORY / "pyproject.toml").read_text()
    ours = re.search(r'^version = "(.+)"$', project, re.M)
    assert ours, "pyproject.toml names no version"
    version = ours[1]
    bom = Bom()
    bom.metadata.tools.components.add(this_component())
    whole = component("sparsecast", "Apache-2.0", version, f"pkg:pypi/sparsecast@{version}")
    bom.metadata.component = whole
    parts = PARTS + (CUDA_PARTS if cuda != "OFF" else [])
    inside = [component(part.title, part.licence, *version_of(part, third_party, cuda)) for part in parts]
    bom.components.update(inside)
    bom.register_dependency(whole, inside)
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"inventory.py: no valid CycloneDX: {error}")
    print(text)


def main() -> None:
    what, third_party, cuda = sys.argv[1:]
    {"notices": print_notices, "sbom": print_sbom}[what](Path(third_party), cuda)


if __name__ == "__main__":
    main()
