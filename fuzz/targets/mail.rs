//! libFuzzer entry of `gdrcore_fuzz::mail`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    gdrcore_fuzz::mail(data);
});
