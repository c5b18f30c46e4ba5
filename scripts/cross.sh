# Sourced: has cargo link for aarch64 by Debian's cross compiler. The drop-in's version scripts need
# LLD, which rustc has.
# shellcheck shell=sh
lld=$(echo "$(rustc --print sysroot)"/lib/rustlib/*/bin/gcc-ld)
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-Clink-arg=-B$lld -Clink-arg=-fuse-ld=lld"
