//! Connections to servers that a stranger may have named: URLs, the addresses that kas and agentk may dial, and the check at each
//! connection.
#![warn(missing_docs)]

mod policy;
mod service_address;
mod url;

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};

pub use self::{
    policy::{AddressError, AddressPolicy},
    service_address::is_service_address,
    url::{Scheme, ServerUrl, ServerUrlError},
};

/// The reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name of the host has no address.
    #[error("{host} cannot be resolved: {error}")]
    Resolve {
        /// The host.
        host: String,
        /// The error of the resolver.
        error: io::Error,
    },
    /// The rules refuse all addresses of the host.
    #[error("{host}: {error}")]
    Address {
        /// The host.
        host: String,
        /// The reason.
        error: AddressError,
    },
    /// The last address that the rules allow does not accept a connection.
    #[error("{address} does not accept a connection: {error}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        error: io::Error,
    },
}

/// Connects to an address of a host that the rules allow, if there are some. The check is that of the address to which kas connects: a
/// second lookup of the name could have another result. `time` is that for the lookup, and for each address.
///
/// # Errors
///
/// The host has no address that the rules allow and that accepts a connection.
pub async fn connect(
    host: &str,
    port: u16,
    rules: Option<&AddressPolicy>,
    time: Duration,
) -> Result<TcpStream, ConnectError> {
    let resolve = |error| ConnectError::Resolve { host: host.to_owned(), error };
    let found = timeout(time, lookup_host((host, port))).await;
    let found = found.map_err(|_| resolve(io::ErrorKind::TimedOut.into()))?.map_err(resolve)?;
    let mut error = resolve(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for address in found {
        if let Some(Err(refused)) = rules.map(|rules| rules.check(address.ip())) {
            error = ConnectError::Address { host: host.to_owned(), error: refused };
            continue;
        }
        match timeout(time, TcpStream::connect(address)).await {
            Ok(Ok(tcp)) => return Ok(tcp),
            Ok(Err(cause)) => error = ConnectError::Connect { address, error: cause },
            Err(_) => error = ConnectError::Connect { address, error: io::ErrorKind::TimedOut.into() },
        }
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn rules_are_those_of_the_address_of_a_name() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let time = Duration::from_secs(10);
        let strict = AddressPolicy::new("agent.gitops.allowed_networks", &[]);
        for host in ["localhost", "127.0.0.1"] {
            let error = connect(host, port, Some(&strict), time).await.unwrap_err();
            assert!(matches!(error, ConnectError::Address { .. }), "{error}");
            assert!(connect(host, port, None, time).await.is_ok(), "{host}");
        }
        let open = AddressPolicy::new("agent.gitops.allowed_networks", &["127.0.0.0/8".parse().unwrap()]);
        assert!(connect("127.0.0.1", port, Some(&open), time).await.is_ok());
        drop(listener);
        let error = connect("127.0.0.1", port, None, time).await.unwrap_err();
        assert!(matches!(error, ConnectError::Connect { .. }), "{error}");
    }
}
