//! The patterns of texts, for the JSON Schema.

/// An IP address or `localhost`, and a port. Without an address it is every address of the machine.
pub const SOCKET_ADDRESS: &str = r"^([0-9.]+|\[[0-9A-Fa-f:.%]+\]|localhost)?:[0-9]{1,5}$";
/// An IP network in CIDR notation.
pub const NETWORK: &str = "^[0-9A-Fa-f:.]+/[0-9]{1,3}$";
/// The beginning of paths.
pub(super) const URL_PATH_PREFIX: &str = "^/([0-9A-Za-z._~-]+/?)*$";
/// A pattern of the host names of agents.
pub(super) const HOST_PATTERN: &str = r"^\{agent\}(\.[0-9A-Za-z-]+)+$";
/// The URL of a server.
pub const HTTP_URL: &str = "^https?://.";
/// A host and a port, or a socket.
pub(super) const REDIS_ADDRESS: &str = "^((unix:)?/.+|.+:[0-9]{1,5})$";
