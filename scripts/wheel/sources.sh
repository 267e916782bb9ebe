# SPDX-License-Identifier: Apache-2.0

# shellcheck shell=bash
# Packages, and sources of packages, by apt, for the making of wheels. Source it after scripts/lib.sh.

debian=${SPARSECAST_DEBIAN:-http://deb.debian.org/debian}
ubuntu=${SPARSECAST_UBUNTU:-http://archive.ubuntu.com/ubuntu}

# need PACKAGE...: installs those that this machine lacks.
need() {
  local missing
  mapfile -t missing < <(missing_of "$@")
  ((${#missing[@]} == 0)) || step "install ${#missing[@]} packages" apt_install "${missing[@]}"
}

# with_archive LINE COMMAND...: runs the command in an empty folder, with an apt that knows the archive of this line of a
# sources.list alone, and then removes the folder. This machine's own settings and lists of apt are left alone.
with_archive() {
  local line=$1 apt code=0
  shift
  apt=$(mktemp -d)
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/download"
  printf '%s\n' "$line" >"$apt/sources.list"
  cat >"$apt/apt.conf" <<END
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$apt/lists";
Dir::State::Status "/dev/null";
Dir::Cache "$apt/cache";
APT::Sandbox::User "";
END
  (cd "$apt/download" && export APT_CONFIG=$apt/apt.conf && apt-get update -qq && "$@") || code=$?
  rm -rf "$apt"
  return $code
}

# is_ubuntu RELEASE: whether it is one of Ubuntu's; else it is one of Debian's.
is_ubuntu() {
  [[ $1 == @(bionic|jammy|noble)?(-*) ]]
}

# ubuntu_keyring: prints the path of the keys of Ubuntu's archive, which are taken from Debian where this machine has none.
ubuntu_keyring() {
  local keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg keys=$repository/.cache/wheel/keys
  if [[ ! -e $keyring ]]; then
    [[ -e $keys$keyring ]] || unpack_packages trixie main "$keys" ubuntu-keyring ubuntu-archive-keyring >&2 || return
    keyring=$keys$keyring
  fi
  echo "$keyring"
}

# archive_line TYPE RELEASE COMPONENTS: the line of a sources.list, of the type deb or deb-src, for that release.
archive_line() {
  local keyring=/usr/share/keyrings/debian-archive-keyring.gpg mirror=$debian
  if is_ubuntu "$2"; then
    keyring=$(ubuntu_keyring) mirror=$ubuntu || return
  fi
  echo "$1 [signed-by=$keyring] $mirror $2 $3"
}

# source_of RELEASE PACKAGE DIRECTORY: the source of PACKAGE in that release, unpacked and patched in DIRECTORY.
source_of() {
  rm -rf "$3"
  mkdir -p "$(dirname "$3")"
  # shellcheck disable=SC2016
  with_archive "$(archive_line deb-src "$1" main)" bash -c 'apt-get source -qq "$1" && mv ./*/ "$2"' - "$2" "$3"
}

# unpack_packages RELEASE COMPONENTS DIRECTORY PACKAGE...: the files of packages of that release, below DIRECTORY. Nothing is
# installed.
unpack_packages() {
  mkdir -p "$3"
  # shellcheck disable=SC2016
  with_archive "$(archive_line deb "$1" "$2")" \
    bash -c 'apt-get download -qq "${@:2}" && for deb in *.deb; do dpkg-deb -x "$deb" "$1" || exit; done' - "${@:3}"
}
