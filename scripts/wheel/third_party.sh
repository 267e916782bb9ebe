#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# third_party.sh PREFIX: static libraries for the inside of a wheel, from the sources of this Debian release: position
# independent, which Debian's own archives are not (those of OpenSSL are), and curl with HTTP and TLS alone, where Debian's
# has thirty libraries behind it. PREFIX/licences and PREFIX/versions get what each one's licence and version are. Does nothing
# when all is there.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
source scripts/wheel/sources.sh

prefix=$(realpath -m "$1")
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
sources=$prefix.source
# Nothing of them shall be visible outside of the file that they are linked into.
flags="-O2 -fPIC -ffunction-sections -fdata-sections"

with_cmake() {
  local directory=$1
  shift
  cmake -S "$directory" -B "$directory/build-static" -GNinja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
    -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags -fvisibility-inlines-hidden" "$@" &&
    cmake --build "$directory/build-static" --parallel "$jobs" &&
    cmake --install "$directory/build-static"
}

fmtlib() { with_cmake "$1" -DFMT_TEST=OFF -DFMT_DOC=OFF; }

highway() { with_cmake "$1" -DHWY_ENABLE_TESTS=OFF -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF; }

libzstd() {
  with_cmake "$1/build/cmake" -DZSTD_BUILD_PROGRAMS=OFF -DZSTD_BUILD_SHARED=OFF -DZSTD_MULTITHREAD_SUPPORT=OFF
}

libsodium() {
  (cd "$1" && autoreconf --install --force &&
    ./configure --quiet --prefix="$prefix" --disable-shared --enable-static --with-pic CFLAGS="$flags" &&
    make -s -j"$jobs" -C src && make -s -C src install && make -s install-pkgconfigDATA)
}

# Certificates are found as OpenSSL finds them: SSL_CERT_FILE, SSL_CERT_DIR, then its own directory.
curl() {
  with_cmake "$1" -DHTTP_ONLY=ON -DBUILD_CURL_EXE=OFF -DENABLE_MANUAL=OFF -DCURL_ZLIB=OFF -DCURL_BROTLI=OFF \
    -DCURL_ZSTD=OFF -DUSE_NGHTTP2=OFF -DUSE_LIBIDN2=OFF -DCURL_USE_LIBPSL=OFF -DCURL_USE_LIBSSH2=OFF \
    -DCURL_USE_OPENSSL=ON -DOPENSSL_USE_STATIC_LIBS=ON -DCURL_CA_BUNDLE=none -DCURL_CA_PATH=none \
    -DCURL_CA_FALLBACK=ON
}

make_one() {
  source_of "$release" "$1" "$sources/$1" && "$1" "$sources/$1" && cp "$sources/$1/debian/copyright" "$prefix/licences/$1" &&
    dpkg-parsechangelog -l "$sources/$1/debian/changelog" -S Version >"$prefix/versions/$1"
}

need autoconf automake cmake dpkg-dev g++ libssl-dev libtool make ninja-build
mkdir -p "$prefix/licences" "$prefix/versions" "$prefix/lib"
c++ -O2 -fPIC -c scripts/wheel/newer_than_glibc.cpp -o "$prefix/lib/newer_than_glibc.o"
for name in fmtlib highway libzstd libsodium curl; do
  [[ -e $prefix/versions/$name ]] || step "static $name" make_one "$name"
done
rm -rf "$sources"
