//! libFuzzer entry of `gdrcore_fuzz::cm`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    gdrcore_fuzz::cm(data);
});
