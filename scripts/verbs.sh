#!/usr/bin/env bash
# Builds libgdrcore_verbs.so, the module of the verbs device, if its build dependencies are
# installed, and checks it with clippy if that is installed. Otherwise prints what is missing, as a
# skipped check.
set -eu
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
missing=()
[ -e /usr/include/infiniband/verbs.h ] || missing+=(libibverbs-dev)
[ -e /usr/include/rdma/rdma_cma.h ] || missing+=(librdmacm-dev)
command -v pkg-config >/dev/null || missing+=(pkg-config)
compgen -G '/usr/lib/llvm-*/lib/libclang[.-][s0-9]*' >/dev/null || [ -n "${LIBCLANG_PATH:-}" ] ||
    missing+=(libclang-dev)
if [ ${#missing[@]} -gt 0 ]; then
    echo "skipped: the module of the verbs device needs ${missing[*]}"
    exit 0
fi
"$CARGO" build --release -p gdrcore-verbs-module --features ibverbs
if "$CARGO" clippy --version >/dev/null 2>&1; then
    "$CARGO" clippy --release -p gdrcore-verbs-module --features ibverbs -- -D warnings
fi
