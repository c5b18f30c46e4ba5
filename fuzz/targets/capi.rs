//! libFuzzer entry of `gdrcore_fuzz::capi`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    gdrcore_fuzz::capi(data);
});
