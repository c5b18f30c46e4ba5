//! libFuzzer entry of `gdrcore_fuzz::pcap`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    gdrcore_fuzz::pcap(data);
});
