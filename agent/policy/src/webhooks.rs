//! The webhooks that the owner of the cluster allows: the URLs to which agentk may send events, each with the file of its key.

use std::{net::IpAddr, path::PathBuf};

use outbound::{ServerUrl, is_service_address};

/// A URL to which agentk may send events, or all URLs with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedWebhook {
    /// The URL, without the `*` at its end.
    url: String,
    /// The URL ends with `*`.
    is_prefix: bool,
    secret_file: Option<PathBuf>,
}

impl AllowedWebhook {
    /// Parses the URL of an entry. The error is a sentence.
    pub(crate) fn new(url: &str, secret_file: Option<PathBuf>) -> Result<Self, &'static str> {
        let (base, is_prefix) = url.strip_suffix('*').map_or((url, false), |base| (base, true));
        if base.contains('*') {
            return Err("a URL has '*' only at its end");
        }
        if is_prefix && !base.ends_with('/') {
            return Err("write '*' after a '/', so that the URL has one host and whole segments");
        }
        let parsed: Result<ServerUrl, _> = base.parse();
        let parsed = parsed.map_err(|_| "not a URL; write it like http://receiver.ci.svc:8080/hook")?;
        // `http://host*` would be any host with this beginning.
        let path = base.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
        if is_prefix && path.is_none() {
            return Err("write the whole host, and '*' after a '/'");
        }
        if let Ok(address) = parsed.host().parse::<IpAddr>()
            && !address.is_loopback()
            && !is_service_address(&address)
        {
            return Err(
                "agentk sends nothing to this address: it is link-local, of a metadata service, or of no single server",
            );
        }
        Ok(Self { url: base.to_owned(), is_prefix, secret_file })
    }

    fn allows(&self, url: &str) -> bool {
        if self.is_prefix { url.starts_with(&self.url) && !has_dot_segment(url) } else { url == self.url }
    }

    /// Returns the file with the key of signatures. Flux' notification controller needs none.
    pub fn secret_file(&self) -> Option<&PathBuf> {
        self.secret_file.as_ref()
    }
}

/// Returns the entry that allows a URL.
pub(crate) fn find<'a>(allowed: &'a [AllowedWebhook], url: &str) -> Option<&'a AllowedWebhook> {
    allowed.iter().find(|entry| entry.allows(url))
}

/// Returns whether a receiver could resolve a segment of the path to a directory above it.
fn has_dot_segment(url: &str) -> bool {
    url.split(['/', '?', '#']).any(|segment| {
        let segment = segment.to_ascii_lowercase().replace("%2e", ".");
        segment == "." || segment == ".." || segment.contains("%2f") || segment.contains("%5c")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_allowed_exactly_or_below_a_path() {
        let allowed = ["http://receiver.ci.svc:8080/hook", "https://other.ci.svc/hooks/*"];
        let allowed: Vec<_> = allowed.iter().map(|url| AllowedWebhook::new(url, None).unwrap()).collect();
        for (url, expected) in [
            ("http://receiver.ci.svc:8080/hook", true),
            ("http://receiver.ci.svc:8080/hook/", false),
            ("http://receiver.ci.svc:80/hook", false),
            ("https://receiver.ci.svc:8080/hook", false),
            ("https://other.ci.svc/hooks/a", true),
            ("https://other.ci.svc/hooks/", true),
            ("https://other.ci.svc/hooks", false),
            ("https://other.ci.svc/hooks/../admin", false),
            ("https://other.ci.svc/hooks/%2e%2E/admin", false),
            ("https://other.ci.svc/hooks/..%2fadmin", false),
            ("https://other.ci.svc.evil.example.com/hooks/a", false),
        ] {
            assert_eq!(find(&allowed, url).is_some(), expected, "{url}");
        }
    }

    #[test]
    fn url_that_allows_too_much_is_refused() {
        for url in [
            "*",
            "http://*",
            "http://receiver*",
            "http://receiver.ci.svc:80*",
            "http://*.ci.svc/",
            "http://receiver/a*",
            "http://169.254.169.254/*",
            "http://[fe80::1]/",
            "http://[fd00:ec2::254]/",
            "http://0.0.0.0/",
            "receiver",
            "ftp://receiver/",
        ] {
            assert!(AllowedWebhook::new(url, None).is_err(), "{url}");
        }
        assert!(AllowedWebhook::new("http://127.0.0.1:8080/*", None).is_ok(), "a container of the same pod");
    }
}
