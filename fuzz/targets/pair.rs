//! libFuzzer entry of `gdrcore_fuzz::pair`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    gdrcore_fuzz::pair(data);
});
