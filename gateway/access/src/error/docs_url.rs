//! The address of the documents, to which errors link.

use std::str::FromStr;

use http::Uri;
use proto::Reason;
use serde::Deserialize;

/// The URL of the folder that has `errors.html`, without a slash at its end.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct DocsUrl(String);

/// The error of a text that is no such URL. It does not have the text, which may contain a password.
#[derive(Debug, thiserror::Error)]
#[error(
    "is not the URL of a folder of documents, such as https://kas.example.com/docs/0.2.0/docs: https or http, without user, \
     query and fragment"
)]
pub struct DocsUrlError;

impl DocsUrl {
    /// Returns the URL of the section about a reason.
    pub fn of_reason(&self, reason: Reason) -> String {
        format!("{}/errors.html#{reason}", self.0)
    }
}

impl FromStr for DocsUrl {
    type Err = DocsUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri = text.parse::<Uri>().ok();
        let is_web = uri.is_some_and(|uri| {
            matches!(uri.scheme_str(), Some("https" | "http"))
                && uri.host().is_some_and(|host| !host.is_empty())
        });
        // `Uri` removes the fragment of a text that it parses.
        if is_web && text.is_ascii() && !text.contains(['@', '?', '#']) {
            return Ok(Self(text.trim_end_matches('/').to_owned()));
        }
        Err(DocsUrlError)
    }
}

impl TryFrom<String> for DocsUrl {
    type Error = DocsUrlError;

    fn try_from(text: String) -> Result<Self, DocsUrlError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_names_the_page_and_the_reason() {
        for text in ["https://kas.example.com/docs/0.2.0/docs", "https://kas.example.com/docs/0.2.0/docs/"] {
            let link = text.parse::<DocsUrl>().unwrap().of_reason(Reason::TunnelLost);
            assert_eq!(link, "https://kas.example.com/docs/0.2.0/docs/errors.html#tunnel-lost");
        }
        assert!("http://[::1]:8156/docs".parse::<DocsUrl>().is_ok());
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "/docs",
            "kas.example.com/docs",
            "ftp://kas.example.com/docs",
            "javascript:alert(1)",
            "https://user:secret@kas.example.com/docs",
            "https://kas.example.com/docs?a",
            "https://kas.example.com/docs#a",
            "https://kas.example.com/a b",
            "https://kas.example.com/ä",
            "https://kas.example.com/docs\n",
        ] {
            let error = text.parse::<DocsUrl>().unwrap_err().to_string();
            assert!(
                error.starts_with("is not the URL of a folder") && !error.contains("secret"),
                "{text}: {error}"
            );
        }
    }
}
