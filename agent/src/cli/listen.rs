//! The options of an agentk to which kas connects.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "these comments are help texts, where brackets mean optional"
)]

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, ValueHint};

use super::listen_address;

/// The options of an agentk to which kas connects.
#[derive(Debug, Default, Args)]
pub struct ListenOptions {
    /// Address at which kas connects to agentk, in a cluster that may open no connections: [host]:port
    ///
    /// Beyond this machine, it needs a certificate, and --listen-client-ca-file or --listen-key-file, by which kas authenticates. See
    /// docs/receptive.md.
    #[arg(long, value_name = "ADDRESS", value_parser = listen_address, conflicts_with = "kas_address", env = "AGENTK_LISTEN",
        help_heading = "kas dials")]
    pub listen: Option<SocketAddr>,
    /// Certificate chain (PEM) of agentk; read again when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires_all = ["listen", "listen_certificate_key_file"],
        env = "AGENTK_LISTEN_CERTIFICATE_FILE", help_heading = "kas dials")]
    pub listen_certificate_file: Option<PathBuf>,
    /// Private key (PEM) of that certificate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "listen_certificate_file",
        env = "AGENTK_LISTEN_CERTIFICATE_KEY_FILE", help_heading = "kas dials")]
    pub listen_certificate_key_file: Option<PathBuf>,
    /// Certificates (PEM) of the authority of kas's certificate, without which no connection is accepted
    ///
    /// Every certificate of the authority is accepted: use one that issues certificates for kas only.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "listen_certificate_file",
        env = "AGENTK_LISTEN_CLIENT_CA_FILE", help_heading = "kas dials")]
    pub listen_client_ca_file: Option<PathBuf>,
    /// File that contains the key that kas has to send; read again when it changes
    ///
    /// The identity file of kas names a file with the same key (agents[].key_file). While the key is rotated, the file of agentk may
    /// have two, on two lines.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "listen", env = "AGENTK_LISTEN_KEY_FILE",
        help_heading = "kas dials")]
    pub listen_key_file: Option<PathBuf>,
}
