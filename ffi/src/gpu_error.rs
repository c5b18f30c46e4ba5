//! Turns a failure of the CUDA driver into an error with a reason.

use gdrcore_core::Error;
use gdrcore_cuda::{api, Failure};
use gdrcore_net::reason;

/// The error of a failure of the driver. Sets the reason.
pub(crate) fn explain(f: Failure) -> Error {
    let advice = match f.code {
        api::INVALID_DEVICE => ": there is no such GPU; `nvidia-smi` lists them",
        api::NO_DEVICE => ": the driver finds no GPU (CUDA_VISIBLE_DEVICES hides some)",
        _ => "",
    };
    reason::set(f.error(), format_args!("{f}{advice}"));
    f.error()
}
