//! The addresses of the listeners, in the forms of GitLab's kas, too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de::Error as _};

/// The kind of the address of a listener, as in the `network` keys of GitLab's kas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub enum ListenNetwork {
    /// IPv4 or IPv6.
    #[default]
    Tcp,
    /// IPv4.
    Tcp4,
    /// IPv6.
    Tcp6,
}

impl ListenNetwork {
    /// Returns the address within this network: the loopback address and the address of all interfaces exist in both families.
    pub fn narrow(self, address: SocketAddr) -> Result<SocketAddr, String> {
        const V4_ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        const V6_ANY: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        const V4_LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
        const V6_LOOPBACK: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let ip = match (self, address.ip()) {
            (Self::Tcp, _) | (Self::Tcp4, IpAddr::V4(_)) => return Ok(address),
            (Self::Tcp4, V6_ANY) => V4_ANY,
            (Self::Tcp6, V4_LOOPBACK) => V6_LOOPBACK,
            (Self::Tcp6, V4_ANY | V6_ANY) => {
                return Err(format!(
                    "{address} with the network tcp6 would accept IPv4, too: use the network tcp, or the IPv6 address of an interface"
                ));
            }
            (Self::Tcp6, IpAddr::V6(_)) => return Ok(address),
            (Self::Tcp4, IpAddr::V6(_)) => {
                return Err(format!("{address} is not an address of the network tcp4"));
            }
            (Self::Tcp6, IpAddr::V4(_)) => {
                return Err(format!("{address} is not an address of the network tcp6"));
            }
        };
        Ok(SocketAddr::new(ip, address.port()))
    }
}

impl<'de> Deserialize<'de> for ListenNetwork {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        match word.as_str() {
            "tcp" => Ok(Self::Tcp),
            "tcp4" => Ok(Self::Tcp4),
            "tcp6" => Ok(Self::Tcp6),
            "unix" => Err(D::Error::custom(
                "unix is not supported: use tcp with an address such as 127.0.0.1:8150, and allowed_networks to restrict the clients",
            )),
            _ => Err(D::Error::custom(format!("{word:?} is none of tcp, tcp4 and tcp6"))),
        }
    }
}

/// Deserializes the address of a listener. As in GitLab's kas, `:8150` stands for all addresses of the machine, and
/// `localhost:8150` for 127.0.0.1.
pub fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    let address = match text.rsplit_once(':') {
        Some(("", port)) => format!("[::]:{port}").parse(),
        Some(("localhost", port)) => format!("127.0.0.1:{port}").parse(),
        _ => text.parse(),
    };
    address.map_err(D::Error::custom)
}
