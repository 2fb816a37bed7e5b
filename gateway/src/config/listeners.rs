//! Checks of the listeners against each other: two of them have different addresses, and PROXY headers come from proxies.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

use settings::ConfigError;

use super::Config;
use kas_listen::addresses::ProxyProtocol;

impl Config {
    /// Narrows the address of each listener to its network.
    pub(super) fn apply_networks(&mut self, file: &Path) -> Result<(), ConfigError> {
        let (agent, public) = (&mut self.agent.listen, &mut self.agent.kubernetes_api.listen);
        let observability = &mut self.observability.listen;
        let private = self.private_api.as_mut().map(|api| &mut api.listen);
        let api = self.api.as_mut().map(|api| &mut api.listen);
        let listeners = [
            ("agent", agent.network, &mut agent.address),
            ("agent.kubernetes_api", public.network, &mut public.address),
            ("observability", observability.network, &mut observability.address),
        ];
        let private = private.map(|listen| ("private_api", listen.network, &mut listen.address));
        let api = api.map(|listen| ("api", listen.network, &mut listen.address));
        for (section, network, address) in listeners.into_iter().chain(private).chain(api) {
            *address = network.narrow(*address).map_err(|what| {
                ConfigError::about(file, &self.keys, format!("{section}.listen.address"), what)
            })?;
        }
        Ok(())
    }

    /// Returns an error if a listener expects PROXY headers and has no proxy that may send them.
    pub(super) fn check_proxies(&self, file: &Path) -> Result<(), ConfigError> {
        let (agent, public) = (&self.agent.listen, &self.agent.kubernetes_api.listen);
        let api =
            self.api.as_ref().map(|api| ("api", api.listen.proxy_protocol, &api.listen.trusted_proxies));
        let listeners = [
            ("agent", agent.proxy_protocol, &agent.trusted_proxies),
            ("agent.kubernetes_api", public.proxy_protocol, &public.trusted_proxies),
        ];
        let web =
            self.web.as_ref().map(|web| ("web", web.listen.proxy_protocol, &web.listen.trusted_proxies));
        for (section, protocol, trusted) in listeners.into_iter().chain(api).chain(web) {
            if protocol != ProxyProtocol::Off && trusted.is_empty() {
                let what = format!(
                    "connections with a PROXY header are accepted from proxies only: set {section}.listen.trusted_proxies"
                );
                return Err(self.error(file, format!("{section}.listen.proxy_protocol"), what));
            }
        }
        Ok(())
    }

    /// Returns an error if sessions of browsers could cross a network without TLS.
    pub(super) fn check_web(&self, file: &Path) -> Result<(), ConfigError> {
        let Some(listen) = self.web.as_ref().map(|web| &web.listen) else { return Ok(()) };
        let has_tls = listen.certificate_file.is_some();
        if has_tls || listen.address.ip().is_loopback() || !listen.trusted_proxies.is_empty() {
            return Ok(());
        }
        let what = "browsers send sessions only over TLS: set certificate_file and key_file, or trusted_proxies if a proxy ends TLS, \
                    or listen on loopback";
        Err(self.error(file, "web.listen.address", what))
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
        listeners.extend(self.web.iter().map(|web| ("web.listen.address", web.listen.address)));
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
    use settings::{KeyLocations, parse};

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

    /// Returns the addresses of the five listeners with the same `listen` section, or the error.
    fn addresses(listen: &str) -> Result<Vec<String>, String> {
        let private = format!("private_api: {{listen: {listen}}}");
        let api =
            format!("api: {{listen: {}, authentication_secret_file: s}}}}", listen.trim_end_matches('}'));
        let text = format!(
            "agent: {{listen: {listen}, kubernetes_api: {{listen: {listen}}}}}\nobservability: {{listen: {listen}}}\n{private}\n{api}\n"
        );
        let file = Path::new("kas.yaml");
        let mut config: Config = parse(file, &text).map_err(|error| error.to_string())?;
        config.keys = KeyLocations::parse(&text);
        config.apply_networks(file).map_err(|error| error.to_string())?;
        let addresses = [
            config.agent.listen.address,
            config.agent.kubernetes_api.listen.address,
            config.observability.listen.address,
            config.private_api.unwrap().listen.address,
            config.api.unwrap().listen.address,
        ];
        Ok(addresses.iter().map(SocketAddr::to_string).collect())
    }

    #[test]
    fn address_of_gitlab_has_the_same_meaning_in_each_listener() {
        for (listen, expected) in [
            ("{address: ':8150'}", "[::]:8150"),
            ("{address: :8150}", "[::]:8150"),
            ("{address: localhost:8150}", "127.0.0.1:8150"),
            ("{network: tcp, address: localhost:8150}", "127.0.0.1:8150"),
            ("{network: tcp4, address: ':8150'}", "0.0.0.0:8150"),
            ("{network: tcp4, address: 10.0.0.1:8150}", "10.0.0.1:8150"),
            ("{network: tcp6, address: localhost:8150}", "[::1]:8150"),
            ("{network: tcp6, address: '[fd00::1]:8150'}", "[fd00::1]:8150"),
        ] {
            assert_eq!(addresses(listen), Ok(vec![expected.to_owned(); 5]), "{listen}");
        }
    }

    #[test]
    fn address_outside_of_its_network_is_refused_with_its_key() {
        for (listen, expected) in [
            ("{network: tcp4, address: '[::1]:8150'}", "[::1]:8150 is not an address of the network tcp4"),
            (
                "{network: tcp6, address: 10.0.0.1:8150}",
                "10.0.0.1:8150 is not an address of the network tcp6",
            ),
            // The system accepts IPv4 at this address, which GitLab's kas does not.
            ("{network: tcp6, address: ':8150'}", "would accept IPv4, too"),
            ("{network: tcp6, address: 0.0.0.0:8150}", "would accept IPv4, too"),
        ] {
            let error = addresses(listen).unwrap_err();
            assert!(error.starts_with("kas.yaml:1:") && error.contains("agent.listen.address: "), "{error}");
            assert!(error.contains(expected), "{error}");
        }
        for (listen, expected) in [
            (
                "{network: unix, address: /run/kas.sock}",
                "agent.listen.network: unix is not supported: use tcp",
            ),
            ("{network: udp}", "\"udp\" is none of tcp, tcp4 and tcp6"),
            ("{address: ':port'}", "agent.listen.address: invalid socket address syntax"),
            ("{address: 'localhost'}", "agent.listen.address: invalid socket address syntax"),
            ("{address: 'kas.example.com:8150'}", "agent.listen.address: invalid socket address syntax"),
        ] {
            let error = addresses(listen).unwrap_err();
            assert!(error.contains(expected), "{error}");
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
