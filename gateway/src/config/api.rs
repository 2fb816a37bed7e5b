//! Section `api`: where programs ask who is connected.

use std::{net::SocketAddr, path::PathBuf};

use serde::Deserialize;
use serde_saphyr::Spanned;

/// Section `api`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Api {
    /// The listener.
    pub listen: ApiListen,
}

/// Section `api.listen`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiListen {
    /// Where programs connect.
    #[serde(default = "default_address")]
    pub address: SocketAddr,
    /// What their tokens are made with: base64 of 32 bytes or more.
    pub authentication_secret_file: Spanned<PathBuf>,
    /// Certificate chain, PEM; without it the listener is plain.
    pub certificate_file: Option<Spanned<PathBuf>>,
    /// Private key, PEM.
    pub key_file: Option<Spanned<PathBuf>>,
}

impl Api {
    /// The files that the section names, to be made absolute.
    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut Spanned<PathBuf>> {
        let ApiListen { authentication_secret_file, certificate_file, key_file, .. } = &mut self.listen;
        [certificate_file, key_file].into_iter().flatten().chain([authentication_secret_file])
    }
}

pub(super) fn default_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8153))
}
