//! The address of a receiver, and the files that are read for each delivery.

use std::{fmt, net::IpAddr};

use http::{HeaderValue, Uri};
use rustls::RootCertStore;
use secrecy::{ExposeSecret as _, SecretString};
use settings::Secret;

use super::{WebhookSettings, read_file};

/// The URL of a receiver.
#[derive(Clone)]
pub(super) struct WebhookUrl {
    uri: Uri,
    is_secure: bool,
    host: String,
    port: u16,
}

/// The content of the files of a webhook.
pub(super) struct WebhookFiles {
    pub(super) url: WebhookUrl,
    pub(super) secret: Option<Secret>,
    /// The value of the header `Authorization`.
    pub(super) authorization: Option<HeaderValue>,
    pub(super) roots: RootCertStore,
}

/// The error of a text that is no URL of a receiver. It does not have the text, which may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WebhookUrlError {
    #[error("it is not a URL of https, such as https://hooks.example.com/kas")]
    Invalid,
    #[error("it has a user or a fragment, which a URL of a receiver cannot have")]
    UserOrFragment,
    #[error(
        "http needs allowed_networks with the network of the receiver: everybody on the way can read the events"
    )]
    PlainText,
}

impl WebhookUrl {
    pub(super) fn parse(text: &str, allows_plain_text: bool) -> Result<Self, WebhookUrlError> {
        let uri: Uri = text.parse().map_err(|_| WebhookUrlError::Invalid)?;
        let (is_secure, port) = match uri.scheme_str() {
            Some("https") => (true, 443),
            Some("http") => (false, 80),
            _ => return Err(WebhookUrlError::Invalid),
        };
        let authority = uri.authority().ok_or(WebhookUrlError::Invalid)?;
        if authority.as_str().contains('@') || text.contains('#') {
            return Err(WebhookUrlError::UserOrFragment);
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(port);
        if host.is_empty() || port == 0 {
            return Err(WebhookUrlError::Invalid);
        }
        if !is_secure && !allows_plain_text {
            return Err(WebhookUrlError::PlainText);
        }
        Ok(Self { is_secure, host, port, uri })
    }

    /// Returns the host, if it is an address.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    pub(super) fn is_secure(&self) -> bool {
        self.is_secure
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the value of the header `Host`.
    pub(super) fn authority(&self) -> &str {
        self.uri.authority().map_or("", |authority| authority.as_str())
    }

    /// Returns the target of the request.
    pub(super) fn path(&self) -> &str {
        self.uri.path_and_query().map_or("/", |path| path.as_str())
    }
}

impl WebhookSettings {
    /// Returns the content of all files. This blocks.
    pub(super) fn read_files(&self) -> Result<WebhookFiles, String> {
        let (url, secret) = (self.read_url()?, self.read_secret()?);
        Ok(WebhookFiles { url, secret, authorization: self.read_token()?, roots: self.read_roots()? })
    }

    /// Returns the URL, from its file if it is in one. This blocks.
    pub(super) fn read_url(&self) -> Result<WebhookUrl, String> {
        if let Some(url) = &self.url {
            return Ok(url.clone());
        }
        let path = self.url_file.as_deref().ok_or("the webhook has no URL")?;
        let text = SecretString::from(read_file(path)?);
        let url = WebhookUrl::parse(text.expose_secret().trim(), self.allows_plain_text)
            .map_err(|error| error.to_string())?;
        if let Some(address) = url.address() {
            self.addresses.check(address).map_err(|error| error.to_string())?;
        }
        Ok(url)
    }

    /// Returns the keys that sign, if there are some. This blocks.
    pub(super) fn read_secret(&self) -> Result<Option<Secret>, String> {
        let Some(path) = &self.secret_file else { return Ok(None) };
        let text = SecretString::from(read_file(path)?);
        let secret = Secret::parse(text.expose_secret());
        secret.map(Some).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Returns the header field with the token, if there is one. This blocks.
    pub(super) fn read_token(&self) -> Result<Option<HeaderValue>, String> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let token = SecretString::from(read_file(path)?);
        let bearer = format!("Bearer {}", token.expose_secret().trim());
        let mut value = HeaderValue::try_from(bearer)
            .ok()
            .filter(|value| value.len() > "Bearer ".len())
            .ok_or_else(|| format!("{}: it is not one line with a token", path.display()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// Returns the certificates to trust. This blocks.
    pub(super) fn read_roots(&self) -> Result<RootCertStore, String> {
        let Some(path) = &self.ca_file else { return Ok(tls::system_roots()) };
        let text = read_file(path)?;
        tls::parse_roots(text.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Without the path, which may be a secret.
impl fmt::Debug for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_url() {
        let url = WebhookUrl::parse("https://hooks.example.com/a/b?c=d", false).unwrap();
        assert_eq!(
            (url.host(), url.port(), url.authority(), url.path()),
            ("hooks.example.com", 443, "hooks.example.com", "/a/b?c=d")
        );
        assert_eq!(format!("{url:?}"), "hooks.example.com:443");
        let url = WebhookUrl::parse("http://[fd00::1]:8080", true).unwrap();
        assert_eq!(
            (url.host(), url.port(), url.authority(), url.path()),
            ("fd00::1", 8080, "[fd00::1]:8080", "/")
        );
        assert!(url.address().is_some() && !url.is_secure());
        for (text, error) in [
            ("hooks.example.com", WebhookUrlError::Invalid),
            ("https://", WebhookUrlError::Invalid),
            ("https://a:0/", WebhookUrlError::Invalid),
            ("https://a@b/", WebhookUrlError::UserOrFragment),
            ("https://b/#c", WebhookUrlError::UserOrFragment),
            ("http://b/", WebhookUrlError::PlainText),
        ] {
            assert_eq!(WebhookUrl::parse(text, false).unwrap_err(), error, "{text}");
        }
    }
}
