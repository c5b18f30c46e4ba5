//! Ports in network namespaces of their own: small MTUs, links that refuse.
