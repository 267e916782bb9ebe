#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# scripts/site.sh [--serve]
#
# Installs what is missing, and makes the site of the documents and of the public interfaces: build/site/html/index.html.
# Fails for a link or an anchor that leads nowhere. With --serve, shows it at http://127.0.0.1:8000.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

fill_site_environment() {
  local target
  target=$(readlink .venv-site)
  rm -rf "$target" && python3 -m venv "$target" &&
    "$target/bin/python3" -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt &&
    touch "$target/complete"
}

install_packages doxygen
link_environment .venv-site docs/requirements.txt || step "Python environment in .venv-site" fill_site_environment
rm -rf build/site
mkdir -p build/site/source
python3 scripts/site.py build/site/source
export NO_MKDOCS_2_WARNING=1
step "site" .venv-site/bin/mkdocs build
printf '%s\n' "file://$repository/build/site/html/index.html"
[[ ${1:-} != --serve ]] || exec python3 -m http.server --directory build/site/html --bind 127.0.0.1 8000
