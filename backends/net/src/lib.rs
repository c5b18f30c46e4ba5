//! Ports of the soft device.
