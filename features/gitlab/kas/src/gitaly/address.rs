//! The address of a Gitaly server, as GitLab sends it.

use std::{fmt, path::PathBuf, str::FromStr};

/// The port of `dns:` addresses without one: the default of gRPC's name resolution.
const DNS_PORT: u16 = 443;

/// The address of a Gitaly server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GitalyAddress {
    /// `tcp://host:port`, or `dns:host:port`: without TLS.
    Tcp(HostPort),
    /// `tls://host:port`.
    Tls(HostPort),
    /// `unix:/path` or `unix:///path`: a socket of this machine.
    Unix(PathBuf),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// A name or an IP address; an IPv6 address without its brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// The error of an address that kas cannot use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address:?} is no address of Gitaly: {problem}")]
pub struct InvalidAddress {
    address: String,
    problem: &'static str,
}

impl FromStr for GitalyAddress {
    type Err = InvalidAddress;

    fn from_str(address: &str) -> Result<Self, InvalidAddress> {
        let error = |problem| InvalidAddress { address: address.chars().take(100).collect(), problem };
        let authority = |rest: &str, port| parse_authority(rest, port).map_err(error);
        if let Some(rest) = address.strip_prefix("tcp://") {
            authority(rest, None).map(Self::Tcp)
        } else if let Some(rest) = address.strip_prefix("tls://") {
            authority(rest, None).map(Self::Tls)
        } else if let Some(rest) = address.strip_prefix("dns:") {
            let name = match rest.strip_prefix("//") {
                None => rest,
                Some(rest) => rest.strip_prefix('/').ok_or_else(|| {
                    error("kas uses the name servers of the system, so write dns:///<host>:<port>")
                })?,
            };
            authority(name, Some(DNS_PORT)).map(Self::Tcp)
        } else if let Some(rest) = address.strip_prefix("unix:") {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            if !path.starts_with('/') || path.contains('\0') {
                return Err(error("the path of the socket is not absolute"));
            }
            Ok(Self::Unix(path.into()))
        } else {
            Err(error("it does not begin with tcp://, tls://, dns: or unix:"))
        }
    }
}

fn parse_authority(text: &str, default_port: Option<u16>) -> Result<HostPort, &'static str> {
    let text = text.strip_suffix('/').unwrap_or(text);
    let (host, port) = match text.rsplit_once(':') {
        // The colons of an IPv6 address are within brackets.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let port = match port {
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => port.parse().ok(),
        Some(_) => None,
        None => default_port,
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let valid = match bracketed {
        Some(host) => host.bytes().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(&byte)),
        None => host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)),
    };
    let host = bracketed.unwrap_or(host);
    if host.is_empty() || !valid {
        return Err("its host is neither a name nor an IP address");
    }
    let port = port.filter(|port| *port > 0).ok_or("its port is missing or invalid")?;
    Ok(HostPort { host: host.to_owned(), port })
}

impl fmt::Display for GitalyAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Tls(address) => write!(f, "tls://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_one_of_four_schemes() {
        for (text, expected) in [
            ("tcp://gitaly.internal:8075", "tcp://gitaly.internal:8075"),
            ("tcp://10.0.0.1:8075/", "tcp://10.0.0.1:8075"),
            ("tcp://[fd00::1]:8075", "tcp://[fd00::1]:8075"),
            ("tls://praefect_1.example.com:3305", "tls://praefect_1.example.com:3305"),
            ("dns:praefect:2305", "tcp://praefect:2305"),
            ("dns:///praefect.consul:2305", "tcp://praefect.consul:2305"),
            ("dns:praefect", "tcp://praefect:443"),
            ("unix:/var/opt/gitlab/gitaly/gitaly.socket", "unix:/var/opt/gitlab/gitaly/gitaly.socket"),
            ("unix:///run/gitaly.socket", "unix:/run/gitaly.socket"),
        ] {
            let address: GitalyAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), expected);
        }
    }

    #[test]
    fn invalid_address_is_refused_with_its_problem() {
        for (text, expected) in [
            ("", "does not begin with"),
            ("http://gitaly:80", "does not begin with"),
            ("gitaly:8075", "does not begin with"),
            ("tcp://gitaly", "port"),
            ("tcp://gitaly:0", "port"),
            ("tcp://gitaly:+80", "port"),
            ("tcp://gitaly:70000", "port"),
            ("tcp://:8075", "host"),
            ("tcp://user:password@gitaly:8075", "host"),
            ("tcp://fd00::1:8075", "host"),
            ("tls://[fd00::1", "host"),
            ("tcp://gitaly:8075/path", "port"),
            ("dns://10.0.0.53/praefect:2305", "name servers"),
            ("unix:gitaly.socket", "not absolute"),
            ("unix://host/path", "not absolute"),
        ] {
            let error = text.parse::<GitalyAddress>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
