//! libFuzzer entry of `gdrcore_fuzz::wire`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| gdrcore_fuzz::wire(data));
