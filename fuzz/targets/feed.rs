//! libFuzzer entry of `gdrcore_fuzz::feed`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    gdrcore_fuzz::feed(data);
});
