//! The flags for the sources of alerts.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "these comments are help texts, where brackets mean optional"
)]

use std::path::PathBuf;

use clap::{Args, ValueHint, builder::NonEmptyStringValueParser};

use crate::upstream::ServerUrl;

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
