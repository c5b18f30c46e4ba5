//! libFuzzer entry of `gdrcore_fuzz::relay`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    gdrcore_fuzz::relay(data);
});
