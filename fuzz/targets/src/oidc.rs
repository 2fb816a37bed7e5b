//! The token of a caller, and the documents of its issuer.
//!
//! * A parsed token is at most 16 KiB long, and its header and payload were base64url.
//! * The keys of a discovery document are at an `https` URL, or on this machine.
//! * Errors are short, whatever the issuer sends.

use oidc::{JwkSet, ProviderMetadata, UnverifiedToken};

/// Checks one input.
pub fn run(data: &[u8]) {
    if let Ok(text) = str::from_utf8(data)
        && let Ok(Some(token)) = UnverifiedToken::parse(text)
    {
        assert!(text.len() <= 16 << 10 && text.starts_with("ey"));
        let (message, _) = text.rsplit_once('.').expect("a token has a signature");
        let base64url = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        assert!(message.bytes().all(base64url), "{message}");
        let _ = (token.issuer(), token.expires());
    }
    for issuer in ["https://a.example", ""] {
        match ProviderMetadata::parse(data, issuer) {
            Ok(metadata) => {
                let keys = metadata.jwks_uri.uri();
                let host = keys.host().unwrap_or_default().to_ascii_lowercase();
                let local = host == "localhost" || host.starts_with("127.") || host == "[::1]";
                assert!(keys.scheme_str() == Some("https") || local, "{keys}");
            }
            Err(error) => assert!(error.to_string().len() < 4096),
        }
    }
    if let Err(error) = JwkSet::parse(data) {
        assert!(error.to_string().len() < 4096);
    }
}
