//! libFuzzer entry of `gdrcore_fuzz::policy`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    gdrcore_fuzz::policy(data);
});
