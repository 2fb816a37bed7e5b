//! The patterns of texts that several configuration files have, for the JSON Schema.

/// An IP address or `localhost`, and a port. Without an address it is every address of the machine.
pub const SOCKET_ADDRESS: &str = r"^([0-9.]+|\[[0-9A-Fa-f:.%]+\]|localhost)?:[0-9]{1,5}$";
/// An IP network in CIDR notation.
pub const NETWORK: &str = "^[0-9A-Fa-f:.]+/[0-9]{1,3}$";
/// The URL of a server.
pub const HTTP_URL: &str = "^https?://.";
