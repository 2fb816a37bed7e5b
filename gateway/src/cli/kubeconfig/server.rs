//! Where callers reach kas.

use std::{net::SocketAddr, str::FromStr};

use http::Uri;
use proto::{AgentName, ServiceName};
use rustls::pki_types::{CertificateDer, ServerName};
use webpki::EndEntityCert;

/// The URL of kas's public listener, or of an ingress before it, without a slash at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server(String);

/// Not such a URL.
#[derive(Debug, thiserror::Error)]
#[error("write it like https://kas.example.com:8154: https or http, a host, no user and no query")]
pub(super) struct InvalidServer;

impl Server {
    /// What a configuration says by itself: a listener with one address, and with a certificate that is valid for it.
    pub(super) fn of(listen: SocketAddr, certificate: Option<&CertificateDer<'_>>) -> Result<Self, String> {
        let unknown = |why: &str| Err(format!("--server is needed: {why}"));
        let Some(certificate) = certificate else {
            return unknown(
                "the public listener has no certificate, and kubectl sends no token over plain http",
            );
        };
        if listen.ip().is_unspecified() {
            return unknown(&format!("{listen} is every address of kas's machine, and not a name of it"));
        }
        if listen.port() == 0 {
            return unknown(&format!("{listen} is a port that the system chooses"));
        }
        let name = ServerName::from(listen.ip());
        let valid =
            EndEntityCert::try_from(certificate).and_then(|it| it.verify_is_valid_for_subject_name(&name));
        match valid {
            Ok(()) => Ok(Self(format!("https://{listen}"))),
            Err(_) => {
                unknown(&format!("the certificate of the public listener is not valid for {}", listen.ip()))
            }
        }
    }

    /// Whether it is asked over TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.0.starts_with("https://")
    }

    /// The URL of an agent's Kubernetes API.
    pub(super) fn of_agent(&self, agent: &AgentName) -> String {
        format!("{}/agents/{agent}/{}", self.0, ServiceName::KUBERNETES)
    }
}

impl FromStr for Server {
    type Err = InvalidServer;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri: Uri = text.parse().map_err(|_| InvalidServer)?;
        let known = matches!(uri.scheme_str(), Some("https" | "http"));
        let named = uri.authority().is_some_and(|it| !it.host().is_empty() && !it.as_str().contains('@'));
        if !known || !named || uri.query().is_some() || text.contains('#') {
            return Err(InvalidServer);
        }

        // As the parser understood it: the scheme in lower case.
        Ok(Self(uri.to_string().trim_end_matches('/').to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_url_that_a_path_can_follow() {
        let agent: AgentName = "production".parse().unwrap();
        for (text, expected) in [
            ("https://kas.example.com", "https://kas.example.com/agents/production/kubernetes"),
            ("HTTPS://kas:8154/", "https://kas:8154/agents/production/kubernetes"),
            ("http://[::1]:8154/kas/", "http://[::1]:8154/kas/agents/production/kubernetes"),
        ] {
            assert_eq!(text.parse::<Server>().unwrap().of_agent(&agent), expected);
        }
        for bad in [
            "",
            "kas:8154",
            "wss://kas",
            "https://",
            "https:///x",
            "https://a@kas",
            "https://kas?x",
            "https://kas/#",
        ] {
            assert!(bad.parse::<Server>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_configuration_says_where_kas_is_only_if_that_will_work() {
        let names = ["127.0.0.1".to_owned(), "kas".to_owned()];
        let pair = rcgen::generate_simple_self_signed(names).unwrap();
        let of = |listen: &str, with| Server::of(listen.parse().unwrap(), with);
        assert_eq!(of("127.0.0.1:8154", Some(pair.cert.der())).unwrap().0, "https://127.0.0.1:8154");
        for (listen, with, why) in [
            ("127.0.0.1:8154", None, "no certificate"),
            ("0.0.0.0:8154", Some(pair.cert.der()), "every address"),
            ("127.0.0.1:0", Some(pair.cert.der()), "the system chooses"),
            ("127.0.0.2:8154", Some(pair.cert.der()), "not valid for 127.0.0.2"),
        ] {
            let error = of(listen, with).unwrap_err();
            assert!(error.starts_with("--server is needed: ") && error.contains(why), "{error}");
        }
    }
}
