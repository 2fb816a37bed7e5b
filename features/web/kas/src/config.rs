//! Section `web`: the listener of the web page.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use kas_listen::{
    addresses::{AddressRules, ProxyProtocol},
    listen_address,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;
use settings::{
    ConfigError, Network,
    patterns::{NETWORK, SOCKET_ADDRESS},
};

use crate::documents::DocumentSite;

/// Section `web`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebConfig {
    /// The listener.
    pub listen: WebListen,
    /// The folder of documents that `make site` wrote, which the listener serves at `/docs/`. It is read at the start.
    #[schemars(with = "Option<PathBuf>")]
    pub docs_directory: Option<Spanned<PathBuf>>,
    /// The files of this folder, once they are read.
    #[serde(skip)]
    pub documents: Option<Arc<DocumentSite>>,
}

/// Section `web.listen`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("dependencies" = {"certificate_file": ["key_file"], "key_file": ["certificate_file"]}))]
pub struct WebListen {
    /// The address for browsers. Without TLS it must be loopback, or behind a proxy of `trusted_proxies`.
    #[serde(default = "default_address", deserialize_with = "listen_address::address")]
    #[schemars(with = "String", regex(pattern = SOCKET_ADDRESS))]
    pub address: SocketAddr,
    /// The certificate chain (PEM).
    #[schemars(with = "Option<PathBuf>")]
    pub certificate_file: Option<Spanned<PathBuf>>,
    /// The private key (PEM).
    #[schemars(with = "Option<PathBuf>")]
    pub key_file: Option<Spanned<PathBuf>>,
    /// The addresses of proxies whose `X-Forwarded-For` and PROXY header are trusted.
    #[schemars(with = "Vec<String>", inner(regex(pattern = NETWORK)))]
    #[serde(default)]
    pub trusted_proxies: Vec<Network>,
    /// The header of a proxy with which each connection begins.
    #[serde(default)]
    pub proxy_protocol: ProxyProtocol,
    /// The networks of browsers. An empty list allows every address.
    #[schemars(with = "Vec<String>", inner(regex(pattern = NETWORK)))]
    #[serde(default)]
    pub allowed_networks: Vec<Network>,
}

impl WebListen {
    /// Returns the rules of the listener about addresses.
    pub fn addresses(&self) -> AddressRules {
        AddressRules::new(&self.trusted_proxies, self.proxy_protocol, &self.allowed_networks)
    }
}

impl WebConfig {
    /// Iterates over the paths of the section.
    pub fn paths(&mut self) -> impl Iterator<Item = &mut Spanned<PathBuf>> {
        let Self { listen: WebListen { certificate_file, key_file, .. }, docs_directory, .. } = self;
        [certificate_file, key_file, docs_directory].into_iter().flatten()
    }

    /// Reads the folder of documents. `file` is the configuration.
    ///
    /// # Errors
    ///
    /// The folder cannot be read, or has no documents.
    pub fn read_documents(&mut self, file: &Path) -> Result<(), ConfigError> {
        let Some(path) = &self.docs_directory else { return Ok(()) };
        let documents = DocumentSite::read(&path.value).map_err(|error| {
            let what = format!("{}: {error}", path.value.display());
            ConfigError::new(file, path.referenced, "web.docs_directory", what)
        })?;
        self.documents = Some(Arc::new(documents));
        Ok(())
    }
}

fn default_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8156))
}
