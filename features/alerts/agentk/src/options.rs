//! The flags for the sources of alerts.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "these comments are help texts, where brackets mean optional"
)]

use std::{path::PathBuf, sync::Arc};

use agentk_core::upstream::{ClientTls, ClientTlsConfig, Pem, Scheme, ServerUrl};
use anyhow::Context as _;
use clap::{Args, ValueHint, builder::NonEmptyStringValueParser};
use rustls::pki_types::ServerName;

use super::{AlertSources, HubbleRelay};

/// The sources of alerts.
#[derive(Debug, Args)]
pub(crate) struct AlertsOptions {
    /// Hubble Relay to follow for traffic that network policies drop: http(s)://host[:port]
    ///
    /// Flows that policies with the annotation app.gitlab.com/alert drop are reported to kas, and callers see them with the service alerts.
    /// The policy file limits them (service alerts). See docs/alerts.md.
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url, env = "AGENTK_HUBBLE_ADDRESS", help_heading = "Alerts")]
    pub hubble_address: Option<ServerUrl>,
    /// Certificates (PEM) to trust for Hubble Relay instead of the system's; read again for each connection
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "hubble_address",
        env = "AGENTK_HUBBLE_CA_CERT_FILE", help_heading = "Alerts")]
    pub hubble_ca_cert_file: Option<PathBuf>,
    /// Certificate chain (PEM) of agentk for Hubble Relay; read again for each connection
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires_all = ["hubble_address", "hubble_client_key_file"],
        env = "AGENTK_HUBBLE_CLIENT_CERT_FILE", help_heading = "Alerts")]
    pub hubble_client_cert_file: Option<PathBuf>,
    /// Private key (PEM) of that certificate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "hubble_client_cert_file",
        env = "AGENTK_HUBBLE_CLIENT_KEY_FILE", help_heading = "Alerts")]
    pub hubble_client_key_file: Option<PathBuf>,
    /// Name in the certificate of Hubble Relay, if it is not the host of the address
    #[arg(long, value_name = "NAME", requires = "hubble_address", env = "AGENTK_HUBBLE_TLS_SERVER_NAME", help_heading = "Alerts",
        value_parser = NonEmptyStringValueParser::new())]
    pub hubble_tls_server_name: Option<String>,
    /// Report violations that policy engines write as Events: Kyverno, Gatekeeper
    ///
    /// alerts.event_reasons of this agent's configuration has the reasons of these Events. See docs/alerts.md.
    #[arg(long, env = "AGENTK_POLICY_ENGINE_ALERTS", help_heading = "Alerts")]
    pub policy_engine_alerts: bool,
}

impl AlertsOptions {
    /// Returns the sources, or `None` if no flag names one. It reads every file that is named, which blocks.
    pub(super) fn sources(self) -> anyhow::Result<Option<AlertSources>> {
        let hubble = self.hubble_address.map(|url| {
            anyhow::ensure!(
                url.base_path().is_empty(),
                "--hubble-address {url} has a path, which gRPC does not support"
            );
            let name = self.hubble_tls_server_name.map(ServerName::try_from).transpose();
            let server_name =
                name.context("--hubble-tls-server-name is neither a DNS name nor an IP address")?;
            let certificate = self.hubble_client_cert_file.zip(self.hubble_client_key_file);
            let config = ClientTlsConfig {
                ca: self.hubble_ca_cert_file.map(Pem::File),
                identity: certificate.map(|(chain, key)| (Pem::File(chain), Pem::File(key))),
                server_name,
                http2: true,
                ..ClientTlsConfig::default()
            };
            let tls = match url.scheme() {
                Scheme::Http
                    if config.ca.is_some() || config.identity.is_some() || config.server_name.is_some() =>
                {
                    anyhow::bail!(
                        "--hubble-address {url} has no TLS, for which there are certificates: write https://"
                    )
                }
                // Root certificates are needed for TLS only.
                Scheme::Http => ClientTls::system(),
                Scheme::Https => ClientTls::new(config).context("the certificates for --hubble-address")?,
            };
            Ok(HubbleRelay::new(url, Arc::new(tls)))
        });
        let sources = AlertSources { hubble: hubble.transpose()?, policy_engines: self.policy_engine_alerts };
        Ok((sources.hubble.is_some() || sources.policy_engines).then_some(sources))
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches as _};

    use super::*;

    fn sources(flags: &str) -> Result<Option<AlertSources>, String> {
        let line = format!("agentk {flags}");
        let command = AlertsOptions::augment_args(Command::new("agentk"));
        let matches = command.try_get_matches_from(line.split_whitespace()).unwrap();
        let options = AlertsOptions::from_arg_matches(&matches).unwrap();
        AlertsOptions::sources(options).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn alerts_are_off_without_a_source() {
        assert!(sources("").unwrap().is_none());
        assert!(sources("--policy-engine-alerts").unwrap().unwrap().hubble.is_none());
        assert!(sources("--hubble-address http://hubble-relay:80").unwrap().unwrap().hubble.is_some());
    }

    #[test]
    fn address_and_certificates_have_to_agree() {
        for (flags, expected) in [
            ("--hubble-address http://hubble-relay/prefix", "has a path, which gRPC does not support"),
            ("--hubble-address http://hubble-relay --hubble-ca-cert-file ca.crt", "write https://"),
            ("--hubble-address http://hubble-relay --hubble-tls-server-name ui", "write https://"),
            (
                "--hubble-address https://hubble-relay --hubble-tls-server-name a/b",
                "--hubble-tls-server-name is neither",
            ),
            ("--hubble-address https://hubble-relay --hubble-ca-cert-file absent", "cannot read absent"),
        ] {
            let error = sources(flags).unwrap_err();
            assert!(error.contains(expected), "{flags}: {error}");
        }
    }
}
