//! The URL of kas for callers.

use std::{fmt::Display, net::SocketAddr, str::FromStr};

use http::{Uri, uri::Authority};
use proto::ServiceName;
use rustls::pki_types::{CertificateDer, ServerName};
use webpki::EndEntityCert;

/// The URL of the public listener, or of an ingress in front of it, without a trailing slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerUrl(String);

/// The error of an invalid URL.
#[derive(Debug, thiserror::Error)]
#[error("write it like https://kas.example.com:8154: https or http, a host, no user and no query")]
pub(super) struct ServerUrlError;

impl ServerUrl {
    /// Returns the URL of a listener that has one address and a certificate for it.
    pub(super) fn from_listener(
        listen: SocketAddr,
        certificate: Option<&CertificateDer<'_>>,
    ) -> Result<Self, String> {
        let unknown = |why: &str| Err(format!("--server is needed: {why}"));
        let Some(certificate) = certificate else {
            return unknown(
                "the public listener has no certificate, and kubectl sends no token over plain http",
            );
        };
        if listen.ip().is_unspecified() {
            return unknown(&format!("{listen} is every address of the machine of kas"));
        }
        if listen.port() == 0 {
            return unknown(&format!("{listen} is a random port"));
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

    /// Returns the URL of the Kubernetes API of an agent.
    pub(super) fn agent_url(&self, agent: &dyn Display) -> String {
        format!("{}/agents/{agent}/{}", self.0, ServiceName::KUBERNETES)
    }

    /// Returns the URL of another host with the scheme and the port of this one. Returns `None` if this one has a path, which
    /// requests to the host of an agent cannot have.
    pub(super) fn with_host(&self, host: &str) -> Option<String> {
        let (scheme, rest) = self.0.split_once("://").expect("the parser accepts URLs with a scheme only");
        let authority: Authority = rest.parse().ok()?;
        let port = authority.port().map_or_else(String::new, |port| format!(":{port}"));
        Some(format!("{scheme}://{host}{port}"))
    }
}

impl FromStr for ServerUrl {
    type Err = ServerUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri: Uri = text.parse().map_err(|_| ServerUrlError)?;
        let known = matches!(uri.scheme_str(), Some("https" | "http"));
        let named = uri.authority().is_some_and(|it| !it.host().is_empty() && !it.as_str().contains('@'));
        if !known || !named || uri.query().is_some() || text.contains('#') {
            return Err(ServerUrlError);
        }

        // Formatted by the parser, with the scheme in lower case.
        Ok(Self(uri.to_string().trim_end_matches('/').to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_a_url_without_query() {
        let agent: proto::AgentName = "production".parse().unwrap();
        for (text, expected) in [
            ("https://kas.example.com", "https://kas.example.com/agents/production/kubernetes"),
            ("HTTPS://kas:8154/", "https://kas:8154/agents/production/kubernetes"),
            ("http://[::1]:8154/kas/", "http://[::1]:8154/kas/agents/production/kubernetes"),
        ] {
            assert_eq!(text.parse::<ServerUrl>().unwrap().agent_url(&agent), expected);
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
            assert!(bad.parse::<ServerUrl>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn host_of_an_agent_has_scheme_and_port_of_the_server() {
        for (text, expected) in [
            ("https://kas.example.com", Some("https://a.k8s.test")),
            ("https://kas.example.com:8154/", Some("https://a.k8s.test:8154")),
            ("http://[::1]:80", Some("http://a.k8s.test:80")),
            ("https://kas.example.com/kas", None),
        ] {
            let server = text.parse::<ServerUrl>().unwrap();
            assert_eq!(server.with_host("a.k8s.test").as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn url_of_listener_needs_a_certificate_for_its_address() {
        let names = ["127.0.0.1".to_owned(), "kas".to_owned()];
        let pair = rcgen::generate_simple_self_signed(names).unwrap();
        let url = |listen: &str, with| ServerUrl::from_listener(listen.parse().unwrap(), with);
        assert_eq!(url("127.0.0.1:8154", Some(pair.cert.der())).unwrap().0, "https://127.0.0.1:8154");
        for (listen, with, why) in [
            ("127.0.0.1:8154", None, "no certificate"),
            ("0.0.0.0:8154", Some(pair.cert.der()), "every address"),
            ("127.0.0.1:0", Some(pair.cert.der()), "a random port"),
            ("127.0.0.2:8154", Some(pair.cert.der()), "not valid for 127.0.0.2"),
        ] {
            let error = url(listen, with).unwrap_err();
            assert!(error.starts_with("--server is needed: ") && error.contains(why), "{error}");
        }
    }
}
