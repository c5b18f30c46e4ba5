//! libFuzzer entry of `gdrcore_fuzz::remote`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    gdrcore_fuzz::remote(data);
});
