#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# root.sh RELEASE DIRECTORY: makes the root of a bare system in DIRECTORY, unless it is there: that release of Debian, or of
# Ubuntu (bionic, jammy, noble), by debootstrap, with Python, what makes virtual environments, and nothing else. Needs
# root. bionic's own Python is older than 3.10: Python 3.11 is compiled for it, in another root of that release. Its glibc,
# 2.27, is older than that of RHEL 8 and its kin (2.28).
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/lib.sh"
source scripts/wheel/sources.sh

release=$1 root=$(realpath -m "$2")

# bootstrap DIRECTORY PACKAGES
bootstrap() {
  local options=(--variant=minbase "--include=$2") mirror=$debian
  if is_ubuntu "$release"; then
    options+=("--keyring=$(ubuntu_keyring)" "--components=main,universe")
    mirror=$ubuntu
  fi
  rm -rf --one-file-system "$1"
  # A release that this machine's debootstrap does not know yet is made as sid is.
  local script=/usr/share/debootstrap/scripts/$release
  [[ -e $script ]] || script=${script%/*}/sid
  debootstrap "${options[@]}" "$release" "$1" "$mirror" "$script"
}

inside() {
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive chroot "$@"
}

# compile_python BUILDER: into /usr/local of the builder, which has a compiler.
compile_python() {
  source_of bookworm python3.11 "$1/source" &&
    inside "$1" apt-get install -y -qq --no-install-recommends gcc libc6-dev libexpat1-dev libffi-dev libssl-dev make zlib1g-dev &&
    inside "$1" sh -c "cd /source && echo 'pyexpat pyexpat.c -lexpat' >>Modules/Setup.local && ./configure --quiet --disable-test-modules --without-ensurepip \
      --with-wheel-pkg-dir=/usr/share/python-wheels OPT='-DNDEBUG -O0' && make -s -j$jobs && make -s install"
}

# old_root DIRECTORY: a root without the release's Python, and with one that is compiled. OpenSSL is that of the updates, which
# Python 3.11 needs.
old_root() {
  bootstrap "$1" libexpat1,libffi6,zlib1g &&
    echo "deb $ubuntu $release-updates main" >>"$1/etc/apt/sources.list" &&
    inside "$1" apt-get update -qq &&
    inside "$1" apt-get install -y -qq --no-install-recommends libssl1.1 &&
    cp -a "$1" "$1.builder" &&
    python3 -m pip download --quiet --disable-pip-version-check --no-deps -d "$1/usr/share/python-wheels" pip setuptools &&
    cp -a "$1/usr/share/python-wheels" "$1.builder/usr/share/" &&
    compile_python "$1.builder" &&
    cp -a "$1.builder/usr/local/." "$1/usr/local/" &&
    rm -rf --one-file-system "$1.builder"
}

[[ $(id -u) -eq 0 ]] || die "a root of another system needs root"
if [[ ! -d $root ]]; then
  need debootstrap
  mkdir -p "$(dirname "$root")"
  if [[ $release == bionic ]]; then
    step "root of $release, with Python 3.11" old_root "$root.partial"
  else
    step "root of $release" bootstrap "$root.partial" python3,python3-venv
  fi
  mv "$root.partial" "$root"
fi
