//! The address that a replica publishes, and the syntax of such addresses. Pure but for [`NetworkEnv::from_process`].

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use http::{Uri, uri::Scheme};
use ipnet::IpNet;
use rustls::pki_types::ServerName;

/// The variable with the whole address of this replica. The names of all variables are those of GitLab's kas.
pub(super) const URL: &str = "OWN_PRIVATE_API_URL";
/// The variable with the networks that contain the address of this replica.
pub(super) const CIDR: &str = "OWN_PRIVATE_API_CIDR";
/// The variable with the port. It goes with [`CIDR`].
pub(super) const PORT: &str = "OWN_PRIVATE_API_PORT";
/// The variable with the scheme. It goes with [`CIDR`].
pub(super) const SCHEME: &str = "OWN_PRIVATE_API_SCHEME";
/// The variable with the name in the certificates of all replicas.
pub(super) const HOST: &str = "OWN_PRIVATE_API_HOST";

/// The address of a replica: `http://host:port` or `https://host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerUrl {
    /// True if the replica requires TLS.
    pub tls: bool,
    /// A name or an IP address. An IPv6 address has no brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// A text that is not the address of a replica.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the address of a replica: write it like http://10.0.0.1:8155, or like https://10.0.0.1:8155 with TLS"
)]
pub struct PeerUrlError(String);

/// The environment variables and the addresses of this machine.
#[derive(Clone, Debug, Default)]
pub struct NetworkEnv {
    /// `OWN_PRIVATE_API_URL`.
    pub url: Option<String>,
    /// `OWN_PRIVATE_API_CIDR`.
    pub cidr: Option<String>,
    /// `OWN_PRIVATE_API_PORT`.
    pub port: Option<String>,
    /// `OWN_PRIVATE_API_SCHEME`.
    pub scheme: Option<String>,
    /// `OWN_PRIVATE_API_HOST`.
    pub host: Option<String>,
    /// The addresses of this machine.
    pub addresses: Vec<IpAddr>,
}

/// The reason why this replica has no address to publish.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnUrlError {
    /// Both variables of the address are set.
    #[error("{URL} and {CIDR} are both set: only one of them can set the address of this replica")]
    Conflict,
    /// A variable has an invalid value.
    #[error("{variable}: {problem}")]
    InvalidVariable {
        /// The name of the variable.
        variable: &'static str,
        /// The problem with its value.
        problem: String,
    },
    /// The listener is bound to all addresses, and the machine has none or several.
    #[error(
        "private_api.listen.address is {listen}, to which other replicas cannot connect, and this machine has {candidates}: \
         set {URL} to the address of this replica, or {CIDR} to a network that contains it"
    )]
    Ambiguous {
        /// The address of the listener.
        listen: SocketAddr,
        /// The addresses of the machine.
        candidates: String,
    },
}

impl NetworkEnv {
    /// Reads the environment of this process. An empty variable counts as not set.
    pub fn from_process() -> Self {
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

    /// Returns the addresses of this machine that others can reach, those of IPv4 first.
    pub fn reachable_addresses(&self) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = self.addresses.iter().copied().filter(is_reachable).collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        addresses
    }

    /// Returns the address that this replica publishes: that of [`URL`], or an address in the networks of [`CIDR`], or the
    /// address of the listener, or the only address of the machine.
    pub(super) fn own_url(&self, listen: SocketAddr, tls: bool) -> Result<PeerUrl, OwnUrlError> {
        if self.cidr.is_none() {
            for (variable, value) in [(PORT, &self.port), (SCHEME, &self.scheme)] {
                if value.is_some() {
                    return Err(invalid(variable, format!("it goes with {CIDR}, which is not set")));
                }
            }
        }
        match (&self.url, &self.cidr) {
            (Some(_), Some(_)) => Err(OwnUrlError::Conflict),
            (Some(url), None) => match url.parse() {
                Ok(PeerUrl { tls: url_tls, .. }) if url_tls != tls => Err(invalid(URL, mismatch(tls))),
                Ok(url) => Ok(url),
                Err(error) => Err(invalid(URL, PeerUrlError::to_string(&error))),
            },
            (None, Some(networks)) => self.url_in_networks(networks, listen, tls),
            (None, None) if !listen.ip().is_unspecified() => {
                Ok(PeerUrl::new(listen.ip(), listen.port(), tls))
            }
            (None, None) => {
                let reachable = |address: &&IpAddr| is_reachable(address) && accepts(listen, address);
                let candidates: Vec<IpAddr> = self.addresses.iter().filter(reachable).copied().collect();
                match candidates[..] {
                    [address] => Ok(PeerUrl::new(address, listen.port(), tls)),
                    _ => Err(OwnUrlError::Ambiguous { listen, candidates: listed(&candidates) }),
                }
            }
        }
    }

    fn url_in_networks(&self, networks: &str, listen: SocketAddr, tls: bool) -> Result<PeerUrl, OwnUrlError> {
        match self.scheme.as_deref().map(is_tls) {
            Some(None) => {
                return Err(invalid(SCHEME, "it is not one of http, https, grpc and grpcs".to_owned()));
            }
            Some(Some(scheme_tls)) if scheme_tls != tls => return Err(invalid(SCHEME, mismatch(tls))),
            Some(Some(_)) | None => {}
        }
        let port = match self.port.as_deref().map(str::parse) {
            None => listen.port(),
            Some(Ok(port)) if port != 0 => port,
            Some(_) => return Err(invalid(PORT, "it is not a port from 1 to 65535".to_owned())),
        };
        for network in networks.split(',').map(str::trim) {
            let Ok(network) =
                network.parse().or_else(|_| network.parse().map(|address: IpAddr| IpNet::from(address)))
            else {
                return Err(invalid(CIDR, format!("{network:?} is not a network: write it like 10.0.0.0/8")));
            };
            let is_own = |own: &&IpAddr| !own.is_loopback() && accepts(listen, own) && network.contains(*own);
            if let Some(own) = self.addresses.iter().find(is_own) {
                return Ok(PeerUrl::new(*own, port, tls));
            }
        }
        let addresses: Vec<IpAddr> = self.addresses.iter().filter(|a| is_reachable(a)).copied().collect();
        let problem = match listen {
            SocketAddr::V4(_) if !addresses.is_empty() && addresses.iter().all(IpAddr::is_ipv6) => {
                format!(
                    "private_api.listen.address {listen} accepts IPv4 only: write it like :{}",
                    listen.port()
                )
            }
            _ => format!("this machine has no address in {networks}; it has {}", listed(&addresses)),
        };
        Err(invalid(CIDR, problem))
    }
}

impl PeerUrl {
    fn new(host: IpAddr, port: u16, tls: bool) -> Self {
        Self { tls, host: host.to_string(), port }
    }

    /// Returns true if requests to the address stay on this machine.
    pub(super) fn is_loopback(&self) -> bool {
        let address: Result<IpAddr, _> = self.host.parse();
        address.map_or(self.host == "localhost", |address| address.to_canonical().is_loopback())
    }
}

impl FromStr for PeerUrl {
    type Err = PeerUrlError;

    fn from_str(text: &str) -> Result<Self, PeerUrlError> {
        let malformed = || PeerUrlError(text.chars().take(256).collect());
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
        if host.contains(':') {
            write!(f, "{scheme}://[{host}]:{port}")
        } else {
            write!(f, "{scheme}://{host}:{port}")
        }
    }
}

/// Returns a host without the brackets of IPv6, or `None` if it is neither a name nor an address. The crate `http` accepts any
/// text before the brackets, so a valid [`Uri`] is not enough.
fn unbracketed(host: &str) -> Option<&str> {
    match host.strip_prefix('[') {
        Some(address) => address.strip_suffix(']').filter(|address| address.parse::<Ipv6Addr>().is_ok()),
        None => ServerName::try_from(host).is_ok().then_some(host),
    }
}

/// Returns true if the scheme requires TLS, or `None` if it is not supported. GitLab's kas has the schemes of gRPC here.
fn is_tls(scheme: &str) -> Option<bool> {
    match scheme {
        "http" | "grpc" => Some(false),
        "https" | "grpcs" => Some(true),
        _ => None,
    }
}

fn invalid(variable: &'static str, problem: String) -> OwnUrlError {
    OwnUrlError::InvalidVariable { variable, problem }
}

fn mismatch(tls: bool) -> String {
    let (listener, scheme) =
        if tls { ("has a certificate", "https") } else { ("has no certificate", "http") };
    format!("private_api.listen {listener}, so the scheme must be {scheme}")
}

fn is_reachable(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !address.is_loopback() && !link_local
}

/// Returns true if a listener on all addresses accepts connections to this one: a listener on IPv6 accepts IPv4 too.
fn accepts(listen: SocketAddr, address: &IpAddr) -> bool {
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

    /// Returns the environment of a pod with one address.
    fn pod(edit: impl FnOnce(&mut NetworkEnv)) -> NetworkEnv {
        let addresses = ["127.0.0.1", "::1", "fe80::1", "10.1.2.3"].map(|a| a.parse().unwrap()).to_vec();
        let mut pod = NetworkEnv { addresses, ..NetworkEnv::default() };
        edit(&mut pod);
        pod
    }

    fn url(listen: &str, tls: bool, edit: impl FnOnce(&mut NetworkEnv)) -> Result<String, String> {
        let url = pod(edit).own_url(listen.parse().unwrap(), tls);
        url.map(|url| url.to_string()).map_err(|error| error.to_string())
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn listener_is_published_without_variables() {
        assert_eq!(url("10.1.2.3:8155", false, |_| {}).unwrap(), "http://10.1.2.3:8155");
        assert_eq!(url("[fd00::1]:8155", true, |_| {}).unwrap(), "https://[fd00::1]:8155");
        // A listener on all addresses of a pod that has one address.
        assert_eq!(url(LISTEN, false, |_| {}).unwrap(), "http://10.1.2.3:8155");
        assert_eq!(url("[::]:8155", false, |_| {}).unwrap(), "http://10.1.2.3:8155");
    }

    #[test]
    fn reachable_addresses_are_neither_loopback_nor_link_local() {
        let addresses = ["10.1.2.3", "192.0.2.7", "2001:db8::7"].map(|text| text.parse().unwrap());
        let [_, second, ipv6] = addresses;
        let machine = pod(|pod| {
            pod.addresses.insert(0, ipv6);
            pod.addresses.push(second);
        });
        assert_eq!(machine.reachable_addresses(), addresses, "those of IPv4 are first");
        assert!(pod(|pod| pod.addresses.truncate(3)).reachable_addresses().is_empty());
    }

    #[test]
    fn ambiguous_address_is_refused() {
        let error = url(LISTEN, false, |pod| pod.addresses.push("192.0.2.7".parse().unwrap())).unwrap_err();
        assert!(error.contains("10.1.2.3, 192.0.2.7") && error.contains("OWN_PRIVATE_API_URL"), "{error}");
        let error = url(LISTEN, false, |pod| pod.addresses.clear()).unwrap_err();
        assert!(error.contains("this machine has none"), "{error}");
    }

    #[test]
    fn url_variable_is_published_with_http_schemes() {
        for (value, published) in [
            ("grpc://10.9.9.9:8155", "http://10.9.9.9:8155"),
            ("http://kas-0.kas:8155/", "http://kas-0.kas:8155"),
            ("grpc://[fd00::1]:8155", "http://[fd00::1]:8155"),
        ] {
            assert_eq!(url(LISTEN, false, |pod| pod.url = text(value)).unwrap(), published);
        }
        let tls = url(LISTEN, true, |pod| pod.url = text("grpcs://10.9.9.9:8155"));
        assert_eq!(tls.unwrap(), "https://10.9.9.9:8155");
    }

    #[test]
    fn cidr_variable_selects_the_first_address_in_its_networks() {
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

    /// The downward API of Kubernetes has the address of a pod, of either family.
    #[test]
    fn cidr_variable_may_be_the_address_of_the_pod() {
        let found = |listen: &str, cidr: &str| {
            url(listen, false, |pod| {
                pod.cidr = text(cidr);
                pod.addresses = ["::1", "fd00::2", "fd00::1"].map(|a| a.parse().unwrap()).to_vec();
            })
        };
        assert_eq!(url(LISTEN, false, |pod| pod.cidr = text("10.1.2.3")).unwrap(), "http://10.1.2.3:8155");
        assert_eq!(found("[::]:8155", "fd00::1").unwrap(), "http://[fd00::1]:8155");
        let error = found(LISTEN, "fd00::1").unwrap_err();
        assert!(
            error.ends_with("private_api.listen.address 0.0.0.0:8155 accepts IPv4 only: write it like :8155"),
            "{error}"
        );
    }

    #[test]
    fn error_names_its_variable() {
        type Edit = fn(&mut NetworkEnv);
        let cases: [(&str, bool, Edit); 9] = [
            ("OWN_PRIVATE_API_URL and OWN_PRIVATE_API_CIDR are both set", false, |pod| {
                pod.url = text("http://10.1.2.3:1");
                pod.cidr = text("10.0.0.0/8");
            }),
            ("OWN_PRIVATE_API_URL: \"10.1.2.3\"", false, |pod| pod.url = text("10.1.2.3")),
            ("OWN_PRIVATE_API_URL: \"unix:///run/kas\"", false, |pod| pod.url = text("unix:///run/kas")),
            ("OWN_PRIVATE_API_URL: private_api.listen has a certificate", true, |pod| {
                pod.url = text("grpc://a:1")
            }),
            ("OWN_PRIVATE_API_CIDR: \"lan\"", false, |pod| pod.cidr = text("lan")),
            ("OWN_PRIVATE_API_PORT: it goes with", false, |pod| pod.port = text("1")),
            ("OWN_PRIVATE_API_SCHEME: it goes with", false, |pod| pod.scheme = text("grpc")),
            ("OWN_PRIVATE_API_PORT: it is not a port", false, |pod| {
                pod.cidr = text("10.0.0.0/8");
                pod.port = text("0");
            }),
            ("OWN_PRIVATE_API_SCHEME: it is not one of", false, |pod| {
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
    fn peer_url_has_a_scheme_a_host_and_a_port_only() {
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
