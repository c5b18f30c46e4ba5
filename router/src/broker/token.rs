//! Tokens, by which a session gets its numbers and its address back after a restart of the router.
//!
//! ```text
//!  0  "gdt1"          4  u32 session    8  u64 epoch of the router that gave it
//! 16  u32 first block 20 u32 blocks    24  address (16 bytes)
//! 40  u64 SipHash-2-4 of the tenant's name and network
//! 48  SipHash-2-4-128 of all before, under the router's key
//! ```
//!
//! The key is secret: with it anyone can make tokens. With a token a process can resume the
//! session, if the kernel identifies it as the session's tenant.

use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128, SipHasher24 as SipHasher24x128};
use std::hash::Hasher;
use std::ops::Range;

/// A token.
pub type Token = [u8; 64];
/// No token.
pub const NONE: Token = [0; 64];
/// Bytes of the router's key.
pub const KEY: usize = 16;

const MAGIC: [u8; 4] = *b"gdt1";
/// Offset of the hash of all bytes before it.
const MAC: usize = 48;

/// The fields of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// The number of the session.
    pub session: u32,
    /// The life of the router that gave it.
    pub epoch: u64,
    /// The session's blocks.
    pub blocks: Range<u32>,
    /// Its address.
    pub gid: [u8; 16],
    /// Its tenant, by [`tenant_hash`].
    pub tenant: u64,
}

/// A tenant's name and network in eight bytes.
pub(super) fn tenant_hash(key: &[u8; KEY], name: &str, network: &str) -> u64 {
    let mut hasher = SipHasher24::new_with_key(key);
    for text in [name, network] {
        hasher.write(&(text.len() as u64).to_le_bytes());
        hasher.write(text.as_bytes());
    }
    hasher.finish()
}

fn mac(key: &[u8; KEY], body: &[u8]) -> [u8; 16] {
    let mut hasher = SipHasher24x128::new_with_key(key);
    hasher.write(body);
    hasher.finish128().as_bytes()
}

impl Claim {
    /// The token with these fields.
    pub fn seal(&self, key: &[u8; KEY]) -> Token {
        let mut token = NONE;
        token[..4].copy_from_slice(&MAGIC);
        token[4..8].copy_from_slice(&self.session.to_le_bytes());
        token[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        token[16..20].copy_from_slice(&self.blocks.start.to_le_bytes());
        token[20..24].copy_from_slice(&(self.blocks.len() as u32).to_le_bytes());
        token[24..40].copy_from_slice(&self.gid);
        token[40..48].copy_from_slice(&self.tenant.to_le_bytes());
        let mac = mac(key, &token[..MAC]);
        token[MAC..].copy_from_slice(&mac);
        token
    }

    /// Reads a token; `None`: the key did not make it.
    pub fn open(key: &[u8; KEY], token: &Token) -> Option<Claim> {
        let expected = mac(key, &token[..MAC]);
        // Compares all bytes, so that the time does not reveal how many are right.
        let differ = expected.iter().zip(&token[MAC..]).fold(0, |all, (a, b)| all | (a ^ b));
        if differ != 0 || token[..4] != MAGIC {
            return None;
        }
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|k| token[at + k]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let first = word(16);
        Some(Claim {
            session: word(4),
            epoch: long(8),
            blocks: first..first.checked_add(word(20))?,
            gid: std::array::from_fn(|k| token[24 + k]),
            tenant: long(40),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_what_was_sealed_and_every_other_bit_is_refused() {
        let key = [7; KEY];
        let claim = Claim {
            session: 0x0102_0304,
            epoch: 0x1122_3344_5566_7788,
            blocks: 300..316,
            gid: std::array::from_fn(|k| k as u8),
            tenant: tenant_hash(&key, "blue", "default"),
        };
        let token = claim.seal(&key);
        assert_eq!(Claim::open(&key, &token), Some(claim));
        for bit in 0..8 * token.len() {
            let mut forged = token;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Claim::open(&key, &forged), None, "bit {bit}");
        }
        assert_eq!(Claim::open(&[8; KEY], &token), None);
        for len in 0..token.len() {
            let mut cut = token;
            cut[len..].fill(0);
            assert_eq!(Claim::open(&key, &cut), None, "{len} bytes");
        }
    }

    #[test]
    fn names_and_networks_are_told_apart() {
        let key = [7; KEY];
        let of = |name: &str, network: &str| tenant_hash(&key, name, network);
        assert_ne!(of("a", "bc"), of("ab", "c"));
        assert_ne!(of("a", "b"), of("b", "a"));
        assert_ne!(of("a", ""), of("", "a"));
    }
}
