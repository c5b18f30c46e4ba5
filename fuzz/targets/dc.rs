//! libFuzzer entry of `gdrcore_fuzz::dc`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    gdrcore_fuzz::dc(data);
});
