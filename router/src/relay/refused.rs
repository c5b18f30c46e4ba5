//! Why the relay refuses a packet.

/// A reason to refuse a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is malformed, or of a class that the relay does not carry: all but RC, UC, UD, XRC and
    /// CNP.
    Frame,
    /// A datagram whose source is not the sender's.
    Source,
    /// No tenant of the network has the address.
    Address,
    /// The address has no such queue pair, or no session has the connection.
    Qpn,
    /// Policy forbids it.
    Policy,
    /// Too many messages of the connection manager.
    Rate,
}

impl Refused {
    /// All reasons, each at its own number.
    pub const ALL: [Refused; 6] = [
        Refused::Frame,
        Refused::Source,
        Refused::Address,
        Refused::Qpn,
        Refused::Policy,
        Refused::Rate,
    ];

    /// Its word for `gdrcore-routerctl`.
    pub fn name(self) -> &'static str {
        match self {
            Refused::Frame => "bad_frame",
            Refused::Source => "bad_source",
            Refused::Address => "bad_address",
            Refused::Qpn => "bad_qpn",
            Refused::Policy => "policy",
            Refused::Rate => "rate",
        }
    }
}
