//! The options of the audit webhook.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "these comments are help texts, where brackets mean optional"
)]

use std::{net::SocketAddr, path::PathBuf};

use agentk_core::listen::listen_address;
use clap::{Args, ValueHint};

/// The options of the webhook that receives the audit events of the API server.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Audit log of the cluster")]
pub(crate) struct AuditOptions {
    /// Address at which the API server sends its audit events: [host]:port
    ///
    /// The path is /audit. agentk keeps the events without bodies, queries and messages, and callers with the right cluster_audit read
    /// them. One process has one address and one directory: run one pod with these flags. See docs/cluster-audit.md.
    #[arg(long, value_name = "ADDRESS", value_parser = listen_address, env = "AGENTK_AUDIT_LISTEN",
        requires_all = ["audit_certificate_file", "audit_certificate_key_file", "audit_client_ca_file", "audit_directory"])]
    pub audit_listen: Option<SocketAddr>,
    /// Certificate chain (PEM) of agentk for the API server; read again when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "audit_listen",
        env = "AGENTK_AUDIT_CERTIFICATE_FILE")]
    pub audit_certificate_file: Option<PathBuf>,
    /// Private key (PEM) of that certificate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "audit_listen",
        env = "AGENTK_AUDIT_CERTIFICATE_KEY_FILE")]
    pub audit_certificate_key_file: Option<PathBuf>,
    /// Certificates (PEM) of the authority of the API server's client certificate
    ///
    /// Every certificate of the authority may send events: use one that issues no other certificates, and not that of the cluster.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "audit_listen",
        env = "AGENTK_AUDIT_CLIENT_CA_FILE")]
    pub audit_client_ca_file: Option<PathBuf>,
    /// Directory of the events, which no other process may use
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath, requires = "audit_listen",
        env = "AGENTK_AUDIT_DIRECTORY")]
    pub audit_directory: Option<PathBuf>,
    /// Most bytes of the events; the oldest ones are removed
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20, value_parser = clap::value_parser!(u64).range(1 << 20..=1 << 40),
        env = "AGENTK_AUDIT_MAX_BYTES")]
    pub audit_max_bytes: u64,
}
