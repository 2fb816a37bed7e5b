//! Checks of the listeners against each other: two of them have different addresses, and PROXY headers come from proxies.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

use super::{Config, ConfigError, ProxyProtocol};

impl Config {
    /// Returns an error if a listener expects PROXY headers and has no proxy that may send them.
    pub(super) fn check_proxies(&self, file: &Path) -> Result<(), ConfigError> {
        let (agent, public) = (&self.agent.listen, &self.agent.kubernetes_api.listen);
        let api =
            self.api.as_ref().map(|api| ("api", api.listen.proxy_protocol, &api.listen.trusted_proxies));
        let listeners = [
            ("agent", agent.proxy_protocol, &agent.trusted_proxies),
            ("agent.kubernetes_api", public.proxy_protocol, &public.trusted_proxies),
        ];
        for (section, protocol, trusted) in listeners.into_iter().chain(api) {
            if protocol != ProxyProtocol::Off && trusted.is_empty() {
                let what = format!(
                    "connections with a PROXY header are accepted from proxies only: set {section}.listen.trusted_proxies"
                );
                return Err(self.error(file, format!("{section}.listen.proxy_protocol"), what));
            }
        }
        Ok(())
    }

    /// Returns an error if two listeners have overlapping addresses.
    pub fn check_addresses(&self, file: &Path) -> Result<(), ConfigError> {
        let mut listeners = vec![
            ("agent.listen.address", self.agent.listen.address),
            ("agent.kubernetes_api.listen.address", self.agent.kubernetes_api.listen.address),
            ("observability.listen.address", self.observability.listen.address),
        ];
        listeners
            .extend(self.private_api.iter().map(|api| ("private_api.listen.address", api.listen.address)));
        listeners.extend(self.api.iter().map(|api| ("api.listen.address", api.listen.address)));
        while let Some((key, address)) = listeners.pop() {
            if let Some((other, _)) = listeners.iter().find(|(_, other)| overlap(*other, address)) {
                let what = format!("{address} is taken by {other}: each listener needs its own address");
                return Err(self.error(file, key, what));
            }
        }
        Ok(())
    }
}

/// Returns whether only one of two addresses can be bound. An unspecified address includes every address, and `[::]` also those
/// of IPv4.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let covers = |one: IpAddr, other: IpAddr| {
        one == other || (one.is_unspecified() && (one.is_ipv6() || other.is_ipv4()))
    };
    one.port() != 0
        && one.port() == other.port()
        && (covers(one.ip(), other.ip()) || covers(other.ip(), one.ip()))
}

#[cfg(test)]
mod tests {
    use proto::yaml::{KeyLocations, parse};

    use super::*;

    fn config(text: &str) -> Config {
        let mut config: Config = parse(Path::new("kas.yaml"), text).unwrap();
        config.keys = KeyLocations::parse(text);
        config
    }

    #[test]
    fn proxy_protocol_without_proxies_is_refused_with_its_key() {
        let check = |text: &str| {
            let text = format!("identity: {{file: i}}\n{text}");
            config(&text).check_proxies(Path::new("kas.yaml")).map_err(|error| error.to_string())
        };
        for (section, place) in [
            ("agent: {listen: {proxy_protocol: v2}}", "2:18: agent.listen"),
            ("agent: {kubernetes_api: {listen: {proxy_protocol: v2}}}", "2:35: agent.kubernetes_api.listen"),
            ("api: {listen: {authentication_secret_file: s, proxy_protocol: v2}}", "2:47: api.listen"),
        ] {
            let error = check(section).unwrap_err();
            assert!(error.starts_with(&format!("kas.yaml:{place}.proxy_protocol: ")), "{error}");
            assert!(error.ends_with(".listen.trusted_proxies"), "{error}");
            let trusted = section.replace("v2", "v2, trusted_proxies: [10.0.0.0/8]");
            assert_eq!(check(&trusted), Ok(()));
            assert_eq!(check(&section.replace("v2", "off")), Ok(()));
        }
    }

    #[test]
    fn address_of_two_listeners_is_refused_with_both_keys() {
        let check = |text: &str| {
            let text = format!("identity: {{file: i}}\n{text}");
            config(&text).check_addresses(Path::new("kas.yaml")).map_err(|error| error.to_string())
        };
        for taken in ["127.0.0.1:8150", "0.0.0.0:8150", "[::]:8150", "0.0.0.0:8154"] {
            let error = check(&format!("observability: {{listen: {{address: '{taken}'}}}}\n")).unwrap_err();
            assert!(error.starts_with("kas.yaml:2:26: observability.listen.address: "), "{error}");
            assert!(error.contains(" is taken by agent."), "{error}");
        }
        for free in ["127.0.0.2:8150", "127.0.0.1:8160", "[::1]:8150", "127.0.0.1:0"] {
            assert_eq!(
                check(&format!("observability: {{listen: {{address: '{free}'}}}}\n")),
                Ok(()),
                "{free}"
            );
        }
        let any = "{listen: {address: '127.0.0.1:0'}}";
        assert_eq!(check(&format!("agent: {any}\nobservability: {any}\n")), Ok(()));
    }
}
