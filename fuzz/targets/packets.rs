//! libFuzzer entry of `gdrcore_fuzz::packets`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    gdrcore_fuzz::packets(data);
});
