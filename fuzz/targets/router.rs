//! libFuzzer entry of `gdrcore_fuzz::router`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    gdrcore_fuzz::router(data);
});
