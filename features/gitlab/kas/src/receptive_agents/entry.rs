//! One agent of the list.

use std::sync::Arc;

use access::{AgentUrl, DialCredentials, DialTarget};
use kas_core::agents::DIAL_ALPN;
use proto::dial_token::DialTokenKey;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// The longest URL and the longest PEM text, in bytes.
const MAX_URL: usize = 2048;
const MAX_PEM: usize = 64 << 10;

/// The fields of an entry. Errors have nothing of the keys.
struct Entry<'a>(&'a Value);

/// The authorities of the system, which entries without their own ones trust.
pub(super) struct DefaultRoots {
    store: Arc<RootCertStore>,
    digest: [u8; 32],
}

/// Returns the target of an entry, which trusts these roots unless it has its own.
///
/// # Errors
///
/// The entry cannot be used, for this reason.
pub(super) fn parse(value: &Value, default: &DefaultRoots) -> Result<DialTarget, String> {
    let entry = Entry(value);
    let url = entry.url()?;
    let tls_server_name = entry.text("tls_host", MAX_URL)?.map(str::to_owned);
    let token_key = entry.token_key()?;
    let certificate = entry.certificate()?;
    if token_key.is_none() && certificate.is_none() {
        return Err("it has neither a client certificate nor a key for tokens".to_owned());
    }
    let own_roots = entry.roots()?;
    let mut digest = Sha256::new();
    digest.update(value.to_string());
    // An entry that trusts the system is another one once the system trusts others.
    if own_roots.is_none() {
        digest.update(default.digest);
    }
    let tls = tls_config(own_roots.unwrap_or_else(|| Arc::clone(&default.store)), certificate)?;
    let credentials = DialCredentials { tls: tls.into(), token_key, digest: digest.finalize().into() };
    Ok(DialTarget::with_credentials(url, tls_server_name, credentials))
}

impl DefaultRoots {
    pub(super) fn new(store: RootCertStore) -> Self {
        let anchors = store.roots.iter();
        let mut digests: Vec<[u8; 32]> = anchors
            .map(|anchor| {
                let mut digest = Sha256::new();
                digest.update(&*anchor.subject);
                digest.update(&*anchor.subject_public_key_info);
                digest.finalize().into()
            })
            .collect();
        // The order has no meaning, and may differ each time.
        digests.sort_unstable();
        let digest = Sha256::digest(digests.as_flattened()).into();
        Self { store: store.into(), digest }
    }
}

impl<'a> Entry<'a> {
    /// Returns a field that has a text. GitLab writes `null` for what an entry does not have.
    fn text(&self, path: &str, max: usize) -> Result<Option<&'a str>, String> {
        match path.split('.').fold(self.0, |value, key| &value[key]) {
            Value::Null => Ok(None),
            Value::String(text) if text.is_empty() => Ok(None),
            Value::String(text) if text.len() <= max => Ok(Some(text)),
            Value::String(_) => Err(format!("{path} is longer than {max} bytes")),
            _ => Err(format!("{path} is no text")),
        }
    }

    /// Returns the URL as kas writes it. GitLab allows the schemes of gRPC only.
    fn url(&self) -> Result<AgentUrl, String> {
        let url = self.text("url", MAX_URL)?.ok_or("it has no url")?;
        let url = match url.split_once("://") {
            Some(("grpcs", rest)) => format!("wss://{rest}"),
            Some(("grpc", rest)) => format!("ws://{rest}"),
            _ => url.to_owned(),
        };
        let url: AgentUrl =
            url.parse().map_err(|_| "its url is not like grpcs://agentk.example.com:8150".to_owned())?;
        // With a path, the people who choose the URL could choose a request to a server that is no agentk.
        if url.path() != "/" {
            return Err("its url has a path".to_owned());
        }
        Ok(url)
    }

    fn token_key(&self) -> Result<Option<DialTokenKey>, String> {
        let key = self.text("jwt.private_key", MAX_PEM)?;
        key.map(|key| DialTokenKey::parse(key).map_err(|error| format!("jwt.private_key: {error}")))
            .transpose()
    }

    fn certificate(&self) -> Result<Option<(&'a str, &'a str)>, String> {
        match (self.text("mtls.client_cert", MAX_PEM)?, self.text("mtls.client_key", MAX_PEM)?) {
            (Some(chain), Some(key)) => Ok(Some((chain, key))),
            (None, None) => Ok(None),
            _ => Err("one of mtls.client_cert and mtls.client_key is missing".to_owned()),
        }
    }

    /// Returns the authorities of the entry, if it has its own ones.
    fn roots(&self) -> Result<Option<Arc<RootCertStore>>, String> {
        let pem = self.text("ca_cert", MAX_PEM)?;
        pem.map(|pem| {
            tls::parse_roots(pem.as_bytes()).map(Arc::new).map_err(|error| format!("ca_cert {error}"))
        })
        .transpose()
    }
}

fn tls_config(roots: Arc<RootCertStore>, certificate: Option<(&str, &str)>) -> Result<ClientConfig, String> {
    let Some((chain, key)) = certificate else { return Ok(tls::client_config(roots, &[DIAL_ALPN])) };
    tls::client_config_with_certificate(roots, &[DIAL_ALPN], (chain.as_bytes(), key.as_bytes()))
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::TrustAnchor;
    use serde_json::json;

    use super::{DefaultRoots, DialTarget, RootCertStore, Value};

    const KEY: &str = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";

    fn parse(value: Value) -> Result<DialTarget, String> {
        super::parse(&value, &DefaultRoots::new(RootCertStore::empty()))
    }

    #[test]
    fn entry_with_a_key_is_a_target() {
        let entry = |url: &str| json!({"id": 7, "url": url, "jwt": {"private_key": KEY}, "mtls": null, "ca_cert": null, "tls_host": "a"});
        let target = parse(entry("grpcs://agentk.example.com:8150")).unwrap();
        assert_eq!(
            (target.url.to_string(), target.tunnels),
            ("wss://agentk.example.com:8150/".to_owned(), 2)
        );
        assert_eq!(target.tls_server_name.as_deref(), Some("a"));
        assert!(target.credentials.as_ref().unwrap().token_key.is_some());
        assert!(!format!("{target:?}").contains(KEY));
        assert_eq!(target, parse(entry("grpcs://agentk.example.com:8150")).unwrap());
        let mut changed = entry("grpcs://agentk.example.com:8150");
        changed["jwt"]["private_key"] = json!("BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=");
        assert_ne!(target, parse(changed).unwrap(), "another key is another target");
        assert!(!parse(entry("grpc://127.0.0.1:1")).unwrap().url.is_secure());
    }

    #[test]
    fn entry_with_the_roots_of_the_system_changes_with_them() {
        let roots = |texts: &[&str]| {
            let anchors = texts.iter().map(|text| TrustAnchor {
                subject: text.as_bytes().to_vec().into(),
                subject_public_key_info: b"key".to_vec().into(),
                name_constraints: None,
            });
            DefaultRoots::new(RootCertStore { roots: anchors.collect() })
        };
        let entry = json!({"url": "grpcs://a", "jwt": {"private_key": KEY}});
        let target = super::parse(&entry, &roots(&["a", "b"])).unwrap();
        assert_eq!(target, super::parse(&entry, &roots(&["b", "a"])).unwrap(), "the order has no meaning");
        assert_ne!(target, super::parse(&entry, &roots(&["a", "c"])).unwrap());
    }

    #[test]
    fn unusable_entry_has_a_reason_without_its_secrets() {
        for (entry, expected) in [
            (json!({"url": 5}), "url is no text"),
            (json!({"url": "grpcs://user:hunter2@a"}), "its url is not like"),
            (json!({"url": "grpcs://a/hunter2", "jwt": {"private_key": KEY}}), "its url has a path"),
            (json!({"url": "grpcs://a"}), "it has neither a client certificate nor a key"),
            (json!({"url": "grpcs://a", "jwt": "hunter2"}), "it has neither"),
            (
                json!({"url": "grpcs://a", "jwt": {"private_key": "hunter2"}}),
                "jwt.private_key: it is not the base64",
            ),
            (
                json!({"url": "grpcs://a", "mtls": {"client_key": "hunter2"}}),
                "one of mtls.client_cert and mtls.client_key",
            ),
            (
                json!({"url": "grpcs://a", "mtls": {"client_key": "hunter2", "client_cert": "hunter2"}}),
                "the client certificate is not PEM",
            ),
            (
                json!({"url": "grpcs://a", "jwt": {"private_key": KEY}, "ca_cert": "hunter2"}),
                "ca_cert holds no PEM",
            ),
            (json!({"url": "grpcs://a", "tls_host": "h".repeat(3000)}), "tls_host is longer than 2048"),
        ] {
            let error = parse(entry).unwrap_err();
            assert!(error.starts_with(expected) && !error.contains("hunter2"), "{error}");
        }
    }
}
