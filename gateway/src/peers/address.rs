//! Where this replica's peers find it, and what an address of a peer looks like: pure.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use http::{Uri, uri::Scheme};
use ipnet::IpNet;
use rustls::pki_types::ServerName;

/// A replica's whole address.
pub const URL: &str = "OWN_PRIVATE_API_URL";
/// The networks that this replica's address is in.
pub const CIDR: &str = "OWN_PRIVATE_API_CIDR";
/// The port, where the address comes from a network.
pub const PORT: &str = "OWN_PRIVATE_API_PORT";
/// The scheme, where the address comes from a network.
pub const SCHEME: &str = "OWN_PRIVATE_API_SCHEME";
/// The name in the certificates of all replicas.
pub const HOST: &str = "OWN_PRIVATE_API_HOST";

/// `http://host:port` or `https://host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerUrl {
    /// Whether TLS is spoken there.
    pub tls: bool,
    /// A name or an address; one of IPv6 without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// A text that is no address of a peer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address of a replica: write it like http://10.0.0.1:8155, or https:// with TLS")]
pub struct NotAPeerUrl(String);

/// What the environment and the machine say.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// [`URL`].
    pub url: Option<String>,
    /// [`CIDR`].
    pub cidr: Option<String>,
    /// [`PORT`].
    pub port: Option<String>,
    /// [`SCHEME`].
    pub scheme: Option<String>,
    /// [`HOST`].
    pub host: Option<String>,
    /// The addresses of this machine.
    pub addresses: Vec<IpAddr>,
}

/// Why no address can be published.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAddress {
    /// Two ways to say it.
    #[error("{0} and {1} are both set: {2}")]
    Both(&'static str, &'static str, &'static str),
    /// A variable that cannot be used.
    #[error("{variable}: {what}")]
    Unusable {
        /// Which.
        variable: &'static str,
        /// Why.
        what: String,
    },
    /// The listener takes connections at any address, and the machine has none or several.
    #[error(
        "private_api.listen.address is {listen}, which is no address that peers could reach, and this machine has {has}: set \
         {URL} to this replica's own address, or {CIDR} to a network that it is in"
    )]
    Unspecified {
        /// Of the listener.
        listen: SocketAddr,
        /// What there is instead.
        has: String,
    },
}

impl Surroundings {
    /// Of this process.
    pub fn here() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let addresses = if_addrs::get_if_addrs().unwrap_or_default();
        Self {
            url: variable(URL),
            cidr: variable(CIDR),
            port: variable(PORT),
            scheme: variable(SCHEME),
            host: variable(HOST),
            addresses: addresses.iter().map(if_addrs::Interface::ip).collect(),
        }
    }

    /// What peers are told: exactly one of the variables says it, or else the listener at `listen`.
    pub fn own_url(&self, listen: SocketAddr, tls: bool) -> Result<PeerUrl, NoAddress> {
        let unusable = |variable, what: String| Err(NoAddress::Unusable { variable, what });
        if self.cidr.is_none() {
            for (variable, value) in [(PORT, &self.port), (SCHEME, &self.scheme)] {
                if value.is_some() {
                    return unusable(variable, format!("it goes with {CIDR}, which is not set"));
                }
            }
        }
        match (&self.url, &self.cidr) {
            (Some(_), Some(_)) => {
                Err(NoAddress::Both(URL, CIDR, "one of them says where peers find this replica"))
            }
            (Some(url), None) => match url.parse() {
                Ok(PeerUrl { tls: said, .. }) if said != tls => unusable(URL, mismatch(tls)),
                Ok(url) => Ok(url),
                Err(error) => unusable(URL, NotAPeerUrl::to_string(&error)),
            },
            (None, Some(networks)) => self.within(networks, listen, tls),
            (None, None) if !listen.ip().is_unspecified() => {
                Ok(PeerUrl::new(listen.ip(), listen.port(), tls))
            }
            (None, None) => {
                let reachable = |address: &&IpAddr| is_reachable(address) && fits(listen, address);
                let candidates: Vec<IpAddr> = self.addresses.iter().filter(reachable).copied().collect();
                match candidates[..] {
                    [address] => Ok(PeerUrl::new(address, listen.port(), tls)),
                    _ => Err(NoAddress::Unspecified { listen, has: listed(&candidates) }),
                }
            }
        }
    }

    fn within(&self, networks: &str, listen: SocketAddr, tls: bool) -> Result<PeerUrl, NoAddress> {
        let unusable = |variable, what: String| Err(NoAddress::Unusable { variable, what });
        let said = match self.scheme.as_deref().map(is_tls) {
            None => tls,
            Some(Some(said)) => said,
            Some(None) => return unusable(SCHEME, "it is one of http, https, grpc and grpcs".to_owned()),
        };
        if said != tls {
            return unusable(SCHEME, mismatch(tls));
        }
        let port = match self.port.as_deref().map(str::parse) {
            None => listen.port(),
            Some(Ok(port)) if port != 0 => port,
            Some(_) => return unusable(PORT, "it is a port, 1 to 65535".to_owned()),
        };
        for network in networks.split(',').map(str::trim) {
            let Ok(network) = network.parse::<IpNet>() else {
                return unusable(CIDR, format!("{network:?} is not a network: write it like 10.0.0.0/8"));
            };
            let own = self.addresses.iter().find(|own| !own.is_loopback() && network.contains(*own));
            if let Some(own) = own {
                return Ok(PeerUrl::new(*own, port, tls));
            }
        }
        let addresses: Vec<IpAddr> = self.addresses.iter().filter(|a| is_reachable(a)).copied().collect();
        unusable(CIDR, format!("this machine has no address in {networks}; it has {}", listed(&addresses)))
    }
}

impl PeerUrl {
    fn new(host: IpAddr, port: u16, tls: bool) -> Self {
        Self { tls, host: host.to_string(), port }
    }
}

impl FromStr for PeerUrl {
    type Err = NotAPeerUrl;

    fn from_str(text: &str) -> Result<Self, NotAPeerUrl> {
        let malformed = || NotAPeerUrl(text.chars().take(256).collect());
        let uri: Uri = text.parse().map_err(|_| malformed())?;
        let bare = uri.path_and_query().is_none_or(|path| path == "/");
        let tls = uri.scheme().map(Scheme::as_str).and_then(is_tls);
        let host = uri.host().and_then(unbracketed);
        let user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
        match (tls, host, uri.port_u16()) {
            (Some(tls), Some(host), Some(port)) if bare && !user && port != 0 => {
                Ok(Self { tls, host: host.to_owned(), port })
            }
            _ => Err(malformed()),
        }
    }
}

impl fmt::Display for PeerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tls, host, port } = self;
        let scheme = if *tls { "https" } else { "http" };
        match host.contains(':') {
            true => write!(f, "{scheme}://[{host}]:{port}"),
            false => write!(f, "{scheme}://{host}:{port}"),
        }
    }
}

/// A host as it is looked up: `http` lets anything stand before brackets, and finds a port behind them.
fn unbracketed(host: &str) -> Option<&str> {
    match host.strip_prefix('[') {
        Some(address) => address.strip_suffix(']').filter(|address| address.parse::<Ipv6Addr>().is_ok()),
        None => ServerName::try_from(host).is_ok().then_some(host),
    }
}

/// What is spoken under a scheme. GitLab's kas speaks gRPC there, and so calls it.
fn is_tls(scheme: &str) -> Option<bool> {
    match scheme {
        "http" | "grpc" => Some(false),
        "https" | "grpcs" => Some(true),
        _ => None,
    }
}

fn mismatch(tls: bool) -> String {
    let (listener, scheme) = if tls { ("speaks TLS", "https") } else { ("has no certificate", "http") };
    format!("private_api.listen {listener}, so the scheme is {scheme}")
}

fn is_reachable(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !address.is_loopback() && !link_local
}

/// Whether a listener at any address takes connections to this one.
fn fits(listen: SocketAddr, address: &IpAddr) -> bool {
    listen.is_ipv6() || address.is_ipv4()
}

fn listed(addresses: &[IpAddr]) -> String {
    match addresses {
        [] => "none".to_owned(),
        _ => addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTEN: &str = "0.0.0.0:8155";

    /// A pod with one address.
    fn pod(edit: impl FnOnce(&mut Surroundings)) -> Surroundings {
        let addresses = ["127.0.0.1", "::1", "fe80::1", "10.1.2.3"].map(|a| a.parse().unwrap()).to_vec();
        let mut pod = Surroundings { addresses, ..Surroundings::default() };
        edit(&mut pod);
        pod
    }

    fn url(listen: &str, tls: bool, edit: impl FnOnce(&mut Surroundings)) -> Result<String, String> {
        let url = pod(edit).own_url(listen.parse().unwrap(), tls);
        url.map(|url| url.to_string()).map_err(|error| error.to_string())
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn without_variables_it_is_the_listener() {
        assert_eq!(url("10.1.2.3:8155", false, |_| {}).unwrap(), "http://10.1.2.3:8155");
        assert_eq!(url("[fd00::1]:8155", true, |_| {}).unwrap(), "https://[fd00::1]:8155");
        // At any address of a pod that has one.
        assert_eq!(url(LISTEN, false, |_| {}).unwrap(), "http://10.1.2.3:8155");
        assert_eq!(url("[::]:8155", false, |_| {}).unwrap(), "http://10.1.2.3:8155");
    }

    #[test]
    fn an_address_is_not_guessed() {
        let error = url(LISTEN, false, |pod| pod.addresses.push("192.0.2.7".parse().unwrap())).unwrap_err();
        assert!(error.contains("10.1.2.3, 192.0.2.7") && error.contains("OWN_PRIVATE_API_URL"), "{error}");
        let error = url(LISTEN, false, |pod| pod.addresses.clear()).unwrap_err();
        assert!(error.contains("this machine has none"), "{error}");
    }

    #[test]
    fn a_whole_url_is_taken_with_either_name_of_its_scheme() {
        for (said, published) in [
            ("grpc://10.9.9.9:8155", "http://10.9.9.9:8155"),
            ("http://kas-0.kas:8155/", "http://kas-0.kas:8155"),
            ("grpc://[fd00::1]:8155", "http://[fd00::1]:8155"),
        ] {
            assert_eq!(url(LISTEN, false, |pod| pod.url = text(said)).unwrap(), published);
        }
        let tls = url(LISTEN, true, |pod| pod.url = text("grpcs://10.9.9.9:8155"));
        assert_eq!(tls.unwrap(), "https://10.9.9.9:8155");
    }

    #[test]
    fn a_network_finds_the_first_address_within_it() {
        let found = |cidr: &str| url(LISTEN, false, |pod| pod.cidr = text(cidr));
        assert_eq!(found("10.0.0.0/8").unwrap(), "http://10.1.2.3:8155");
        assert_eq!(found("192.0.2.0/24, 10.0.0.0/8").unwrap(), "http://10.1.2.3:8155");
        let error = found("127.0.0.0/8").unwrap_err();
        assert_eq!(
            error,
            "OWN_PRIVATE_API_CIDR: this machine has no address in 127.0.0.0/8; it has 10.1.2.3"
        );
        let all = url(LISTEN, true, |pod| {
            pod.cidr = text("10.0.0.0/8");
            pod.port = text("9000");
            pod.scheme = text("grpcs");
        });
        assert_eq!(all.unwrap(), "https://10.1.2.3:9000");
    }

    #[test]
    fn an_error_names_its_variable() {
        type Edit = fn(&mut Surroundings);
        let cases: [(&str, bool, Edit); 9] = [
            ("OWN_PRIVATE_API_URL and OWN_PRIVATE_API_CIDR are both set", false, |pod| {
                pod.url = text("http://10.1.2.3:1");
                pod.cidr = text("10.0.0.0/8");
            }),
            ("OWN_PRIVATE_API_URL: \"10.1.2.3\"", false, |pod| pod.url = text("10.1.2.3")),
            ("OWN_PRIVATE_API_URL: \"unix:///run/kas\"", false, |pod| pod.url = text("unix:///run/kas")),
            ("OWN_PRIVATE_API_URL: private_api.listen speaks TLS", true, |pod| pod.url = text("grpc://a:1")),
            ("OWN_PRIVATE_API_CIDR: \"lan\"", false, |pod| pod.cidr = text("lan")),
            ("OWN_PRIVATE_API_PORT: it goes with", false, |pod| pod.port = text("1")),
            ("OWN_PRIVATE_API_SCHEME: it goes with", false, |pod| pod.scheme = text("grpc")),
            ("OWN_PRIVATE_API_PORT: it is a port", false, |pod| {
                pod.cidr = text("10.0.0.0/8");
                pod.port = text("0");
            }),
            ("OWN_PRIVATE_API_SCHEME: it is one of", false, |pod| {
                pod.cidr = text("10.0.0.0/8");
                pod.scheme = text("ftp");
            }),
        ];
        for (expected, tls, edit) in cases {
            let error = url(LISTEN, tls, edit).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn an_address_of_a_peer_is_a_scheme_a_host_and_a_port() {
        for bad in [
            "",
            "http://",
            "http://a",
            "http://a:0",
            "http://:1",
            "http://u@a:1",
            "http://a:1/x",
            "http://a:1?x",
            "ftp://a:1",
            "a:1",
            "http://a:99999",
            "http://[::1",
            "http://0[::1]:1",
            "http://[a]:1",
            "\u{0}",
        ] {
            assert!(bad.parse::<PeerUrl>().is_err(), "{bad}");
        }
        let long = format!("http://{}", "a".repeat(10_000));
        assert!(long.parse::<PeerUrl>().unwrap_err().to_string().len() < 400);
    }
}
