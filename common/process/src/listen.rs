//! The sockets of listeners.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket};

/// Connections that wait until they are accepted. Thousands of agents come at the same moment when another replica ends, and a connection
/// that finds no room is delayed by a second. 4096 is what Linux allows at most without a setting (`net.core.somaxconn`).
const BACKLOG: u32 = 4096;

/// Binds an address. `[::]` accepts IPv6 and IPv4, whatever the system's default is, and is `0.0.0.0` where the kernel has no IPv6.
///
/// # Errors
///
/// The address cannot be bound.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    listen_on(address, TcpSocket::new_v6)
}

fn listen_on(address: SocketAddr, new_v6: impl FnOnce() -> io::Result<TcpSocket>) -> io::Result<TcpListener> {
    let is_any = address.ip() == Ipv6Addr::UNSPECIFIED;
    let (socket, address) = match address {
        SocketAddr::V4(_) => (TcpSocket::new_v4()?, address),
        SocketAddr::V6(_) => match new_v6() {
            Ok(socket) => (socket, address),
            Err(_) if is_any => (TcpSocket::new_v4()?, (Ipv4Addr::UNSPECIFIED, address.port()).into()),
            Err(error) => return Err(error),
        },
    };
    if is_any && address.is_ipv6() {
        SockRef::from(&socket).set_only_v6(false)?;
    }
    // A process that starts anew binds the address while connections of the former one are closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tokio::net::TcpStream;

    use super::*;

    async fn accepts(listener: &TcpListener, address: impl Into<IpAddr>) -> bool {
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((address.into(), port)).await.is_ok()
    }

    /// Returns whether this machine has no address of IPv6, as containers often have none.
    fn is_without_ipv6() -> bool {
        let is_without = std::net::TcpListener::bind("[::1]:0").is_err();
        if is_without {
            eprintln!("SKIPPED: this machine has no ::1");
        }
        is_without
    }

    #[tokio::test]
    async fn all_addresses_are_those_of_both_families() {
        if is_without_ipv6() {
            return;
        }
        let listener = listen("[::]:0".parse().unwrap()).unwrap();
        assert!(accepts(&listener, Ipv4Addr::LOCALHOST).await);
        assert!(accepts(&listener, Ipv6Addr::LOCALHOST).await);
    }

    #[tokio::test]
    async fn address_of_one_family_is_that_of_no_other() {
        if is_without_ipv6() {
            return;
        }
        let v6 = listen("[::1]:0".parse().unwrap()).unwrap();
        assert!(accepts(&v6, Ipv6Addr::LOCALHOST).await);
        assert_eq!(v6.local_addr().unwrap().ip(), Ipv6Addr::LOCALHOST);
        let v4 = listen("0.0.0.0:0".parse().unwrap()).unwrap();
        assert!(accepts(&v4, Ipv4Addr::LOCALHOST).await);
        assert_eq!(v4.local_addr().unwrap().ip(), Ipv4Addr::UNSPECIFIED);
    }

    #[tokio::test]
    async fn all_addresses_are_those_of_ipv4_where_the_kernel_has_no_ipv6() {
        let without = || Err(io::Error::other("address family not supported"));
        let listener = listen_on("[::]:0".parse().unwrap(), without).unwrap();
        assert!(accepts(&listener, Ipv4Addr::LOCALHOST).await);
        assert!(listen_on("[::1]:0".parse().unwrap(), without).is_err());
    }

    #[tokio::test]
    async fn address_that_another_listener_has_is_refused() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let error = listen(listener.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
