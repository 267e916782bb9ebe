# SPDX-License-Identifier: Apache-2.0

# shellcheck shell=bash
# Packages, and sources of packages, by apt, for the making of wheels. Source it after scripts/lib.sh.

# need PACKAGE...: installs those that this machine lacks.
need() {
  local missing
  mapfile -t missing < <(missing_of "$@")
  ((${#missing[@]} == 0)) || step "install ${#missing[@]} packages" apt_install "${missing[@]}"
}

# debian_source RELEASE PACKAGE DIRECTORY: the source of PACKAGE in that release of Debian, unpacked and patched in DIRECTORY.
# apt's own settings and lists are left alone.
debian_source() {
  local release=$1 package=$2 directory=$3 apt
  apt=$(mktemp -d)
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/download"
  printf 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
    "${SPARSECAST_DEBIAN:-http://deb.debian.org/debian}" "$release" >"$apt/sources.list"
  cat >"$apt/apt.conf" <<END
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$apt/lists";
Dir::Cache "$apt/cache";
APT::Sandbox::User "";
END
  APT_CONFIG=$apt/apt.conf apt-get update -qq || return
  (cd "$apt/download" && APT_CONFIG=$apt/apt.conf apt-get source -qq "$package") || return
  rm -rf "$directory"
  mkdir -p "$(dirname "$directory")"
  mv "$apt/download"/*/ "$directory"
  rm -rf "$apt"
}
